"""How often the body of a Loop or a Scan runs, where the file says so."""

from collections.abc import Mapping

from onnxmem.model.graph import Graph, Node
from onnxmem.model.loop_conditions import SCALAR_OPERATORS, LoopBody, Scalar, computed


def trip_count(graph: Graph, node: Node) -> int | None:
    """The iterations of a node with a body; 1 for an If; ``None`` where only a run can tell."""
    if node.onnx_op == "Loop":
        return _loop_trips(graph, node)
    if node.onnx_op == "Scan":
        return _scan_trips(graph, node)
    return 1


def _loop_trips(graph: Graph, node: Node) -> int | None:
    """A Loop's iterations by its limit and its counter, where these are constant."""
    limit, condition = (*node.inputs, "", "")[:2]
    producers = {name: each for each in graph.nodes for name in each.writes}
    most = _scalar(graph, limit, producers)
    going = _scalar(graph, condition, producers) if condition else True
    if (limit and most is None) or going is None:
        return None
    body = node.subgraphs[0][1]
    scalars = LoopBody(
        body.inputs,
        body.outputs,
        [(n.onnx_op, n.inputs, n.outputs[0]) for n in body.nodes if n.onnx_op != "Constant"],
        lambda name: _scalar(graph, name, producers),
    )
    initial = [_scalar(graph, name, producers) for name in node.inputs[2:]]
    return scalars.trips(None if most is None else max(most, 0), going, initial)


def _scalar(graph: Graph, name: str, producers: Mapping[str, Node]) -> Scalar | None:
    """The only element of a whole number or a condition that follows from constants."""
    value = graph.values.get(name)
    if value is not None:
        return value[0] if len(value) == 1 and isinstance(value[0], int) else None
    producer = producers.get(name)
    if producer is None or producer.onnx_op not in SCALAR_OPERATORS:
        return None
    return computed(producer.onnx_op, [_scalar(graph, each, producers) for each in producer.inputs])


def _scan_trips(graph: Graph, node: Node) -> int | None:
    """The length of the first scanned input along its axis."""
    num_scanned = node.attributes.get("num_scan_inputs", 0)
    axes = node.attributes.get("scan_input_axes", (0,))
    if not isinstance(num_scanned, int) or not isinstance(axes, tuple):
        return None
    scanned = node.inputs[-num_scanned:] if 0 < num_scanned <= len(node.inputs) else ("",)
    shape = graph.tensors[scanned[0]].shape if scanned[0] else None
    axis = int(axes[0]) if axes else 0
    return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
