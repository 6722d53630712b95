"""Output types of If, Loop and Scan from those of their bodies.

Source: onnx's inference of these operators, and ``Graph::VerifyNodeAndOpMatch``, which hands types
into the subgraphs and infers them anew.
"""

from collections.abc import Callable, Iterable
from itertools import repeat

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, integers
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.value_types import (
    Dim,
    TensorType,
    ValueType,
    common_dims,
    merged_type,
)

_INT64, _BOOL = 7, 9
_FIRST_CARRIED = 2
"""A Loop's inputs before the values that it carries: the limit and the condition."""
_SCAN_OF_BATCHES = 8


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
    return {
        name: known
        for name, known in zip(node.outputs, _put_out(graph, node), strict=False)
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
    elif node.op_type == "Scan" and node.since_version != _SCAN_OF_BATCHES:
        given = _scan_inputs(graph, node)
    return {
        name: known for name, known in zip(body.inputs, given, strict=False) if known is not None
    }


def _without_shape(known: ValueType | None) -> ValueType | None:
    """A carried value may change its shape from one iteration to the next."""
    return TensorType(known.elem_type, None) if isinstance(known, TensorType) else known


def _scan_inputs(graph: Graph, node: Node) -> list[ValueType | None]:
    """States as they are, and of what is scanned one slice."""
    num_states = _num_states(node)
    given = [graph.type_of(name) for name in node.inputs[:num_states]]
    for name, axis in zip(node.inputs[num_states:], _scan_axes(node, "input"), strict=False):
        known = graph.type_of(name)
        if isinstance(known, TensorType) and known.dims:
            place = axis % len(known.dims)
            dims = (*known.dims[:place], *known.dims[place + 1 :])
            given.append(TensorType(known.elem_type, dims))
        else:
            given.append(_without_shape(known))
    return given


def _num_states(node: Node) -> int:
    """Values that a Scan carries on; the file's number of the others may be any."""
    num_scanned = integer(node, "num_scan_inputs")
    return len(node.inputs) - min(max(num_scanned, 0), len(node.inputs))


def _scan_axes(node: Node, side: str) -> Iterable[int]:
    return integers(node, f"scan_{side}_axes") or repeat(0)


def _length(graph: Graph, node: Node) -> Dim:
    """How many slices a Scan goes through, as a number if any scanned input tells one."""
    scanned = zip(node.inputs[_num_states(node) :], _scan_axes(node, "input"), strict=False)
    dims = ((graph.dims_of(name), axis) for name, axis in scanned)
    lengths: list[Dim] = [known[axis % len(known)] for known, axis in dims if known]
    found = [length for length in lengths if length is not None]
    return next((n for n in found if isinstance(n, int)), found[0] if found else None)


def _put_out(graph: Graph, node: Node) -> list[ValueType | None]:
    if node.op_type == "If":
        return _if(node)
    if node.op_type == "Loop":
        return _loop(node)
    return _scan(node, _length(graph, node)) if node.op_type == "Scan" else []


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
    return [*carried, *(_stacked(known, 0, None) for known in made[num_carried:])]


def _scan(node: Node, length: Dim) -> list[ValueType | None]:
    """Of a Scan without a batch: its first version had one, and is left out."""
    body = node.bodies["body"]
    if node.since_version == _SCAN_OF_BATCHES:
        return []
    num_states = _num_states(node)
    made = [body.type_of(name) for name in body.outputs]
    pairs = zip(made[num_states:], _scan_axes(node, "output"), strict=False)
    return [*made[:num_states], *(_stacked(known, axis, length) for known, axis in pairs)]


def _stacked(known: ValueType | None, axis: int, length: Dim) -> ValueType | None:
    """One more dim, as long as the iterations are many."""
    if not isinstance(known, TensorType) or known.dims is None:
        return known
    place = axis % (len(known.dims) + 1)
    return TensorType(known.elem_type, (*known.dims[:place], length, *known.dims[place:]))
