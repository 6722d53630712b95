"""How often the body of a Loop or a Scan runs, where the file says so."""

from onnxmem.model.graph import Graph, Node


def trip_count(graph: Graph, node: Node) -> int | None:
    """The iterations of a node with a body; 1 for an If; ``None`` where only a run can tell."""
    if node.onnx_op == "Loop":
        return _loop_trips(graph, node)
    if node.onnx_op == "Scan":
        return _scan_trips(graph, node)
    return 1


def _loop_trips(graph: Graph, node: Node) -> int | None:
    """The constant limit of a Loop whose condition never ends it before."""
    limit, condition = (*node.inputs, "", "")[:2]
    trips = graph.values.get(limit, ())
    if len(trips) != 1 or (condition and not all(graph.values.get(condition, (0,)))):
        return None
    body = node.subgraphs[0][1]
    source = {
        inner.outputs[0]: inner.inputs[0] for inner in body.nodes if inner.onnx_op == "Identity"
    }
    last = body.outputs[0]
    while last in source:
        last = source[last]
    stays_true = last in {condition, *body.inputs[1:2]} or all(graph.values.get(last, (0,)))
    return max(trips[0], 0) if stays_true and isinstance(trips[0], int) else None


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
