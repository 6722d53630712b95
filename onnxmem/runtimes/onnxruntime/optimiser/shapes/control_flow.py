"""Output types of If, Loop and Scan from those of their bodies.

Source: onnx's inference of these operators, and ``Graph::VerifyNodeAndOpMatch``, which hands types
into the subgraphs and infers them anew.
"""

from collections.abc import Callable

from onnxmem.runtimes.onnxruntime.optimiser.attributes import integer, integers
from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimiser.value_types import (
    TensorType,
    ValueType,
    common_dims,
    merged_type,
)

_INT64, _BOOL = 7, 9
_FIRST_CARRIED = 2
"""A Loop's inputs before the values that it carries: the limit and the condition."""


def control_flow_types(
    graph: Graph, node: Node, resolve: Callable[[Graph], None]
) -> dict[str, ValueType]:
    """Hand types into a node's subgraphs, infer those, and read what comes out."""
    for name, known in _handed_in(graph, node).items():
        merged = merged_type(known, node.bodies["body"].types.get(name))
        if merged is not None:
            node.bodies["body"].types[name] = merged
    for body in node.bodies.values():
        resolve(body)
    rule = {"If": _if, "Loop": _loop, "Scan": _scan}.get(node.op_type)
    outputs = [] if rule is None else rule(node)
    return {
        name: known
        for name, known in zip(node.outputs, outputs, strict=False)
        if name and known is not None
    }


def _handed_in(graph: Graph, node: Node) -> dict[str, ValueType]:
    body = node.bodies.get("body")
    if body is None:
        return {}
    given: list[ValueType | None] = []
    if node.op_type == "Loop":
        given = [TensorType(_INT64, ()), TensorType(_BOOL, ())]
        given += [_without_shape(graph.type_of(name)) for name in node.inputs[_FIRST_CARRIED:]]
    elif node.op_type == "Scan":
        given = _scan_inputs(graph, node)
    return {
        name: known for name, known in zip(body.inputs, given, strict=False) if known is not None
    }


def _without_shape(known: ValueType | None) -> ValueType | None:
    """A carried value may change its shape from one iteration to the next."""
    return TensorType(known.elem_type, None) if isinstance(known, TensorType) else known


def _scan_inputs(graph: Graph, node: Node) -> list[ValueType | None]:
    num_scanned = integer(node, "num_scan_inputs")
    num_states = len(node.inputs) - num_scanned
    axes = integers(node, "scan_input_axes") or [0] * num_scanned
    given = [graph.type_of(name) for name in node.inputs[:num_states]]
    for name, axis in zip(node.inputs[num_states:], axes, strict=False):
        known = graph.type_of(name)
        if isinstance(known, TensorType) and known.dims:
            place = axis % len(known.dims)
            dims = (*known.dims[:place], *known.dims[place + 1 :])
            given.append(TensorType(known.elem_type, dims))
        else:
            given.append(_without_shape(known))
    return given


def _if(node: Node) -> list[ValueType | None]:
    branches = list(node.bodies.values())
    ends = [[branch.type_of(name) for name in branch.outputs] for branch in branches]
    return [_common(*pair) for pair in zip(*ends, strict=False)] if len(ends) > 1 else []


def _common(one: ValueType | None, other: ValueType | None) -> ValueType | None:
    if not isinstance(one, TensorType) or not isinstance(other, TensorType):
        return one
    if one.dims is None or other.dims is None:
        return TensorType(one.elem_type, None)
    return TensorType(one.elem_type, common_dims(one.dims, other.dims))


def _loop(node: Node) -> list[ValueType | None]:
    body = node.bodies["body"]
    num_carried = len(node.inputs) - _FIRST_CARRIED
    made = [body.type_of(name) for name in body.outputs[1:]]
    carried = [_without_shape(known) for known in made[:num_carried]]
    return [*carried, *(_stacked(known, 0) for known in made[num_carried:])]


def _scan(node: Node) -> list[ValueType | None]:
    body = node.bodies["body"]
    num_states = len(node.inputs) - integer(node, "num_scan_inputs")
    made = [body.type_of(name) for name in body.outputs]
    num_stacked = len(made) - num_states
    axes = integers(node, "scan_output_axes") or [0] * num_stacked
    stacked = [_stacked(known, axis) for known, axis in zip(made[num_states:], axes, strict=False)]
    return [*made[:num_states], *stacked]


def _stacked(known: ValueType | None, axis: int) -> ValueType | None:
    """One more dim, as long as the iterations are many: unknown."""
    if not isinstance(known, TensorType) or known.dims is None:
        return known
    place = axis % (len(known.dims) + 1)
    return TensorType(known.elem_type, (*known.dims[:place], None, *known.dims[place:]))
