"""Type and shape inference of a graph: node by node, merged with the types known before.

Passes read shapes, so that what is inferred here decides which of them fire: it has to know what
onnxruntime knows at that point, and no more. ``model.shapes``, which may know more, does not serve.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, repeat
from typing import Final

import onnx
import onnx.defs
import onnx.numpy_helper
import onnx.shape_inference

from onnxmem.runtimes.onnxruntime.optimizer.graph import (
    INPUTS_MAY_OVERRIDE,
    Dim,
    Graph,
    Node,
    ShapeValue,
    TensorType,
    ValueType,
    common_dims,
    execution_order,
    merged_type,
    write_type,
)
from onnxmem.runtimes.onnxruntime.optimizer.matching import axes_of, integer, integers
from onnxmem.runtimes.onnxruntime.optimizer.operator_shapes import (
    MAX_ELEMENTS,
    onnx_types,
    runtime_types,
)
from onnxmem.runtimes.onnxruntime.optimizer.reading import write_node

# --------------------------------------------------------------------------------------------------
# Elements of small integer tensors that follow from shapes: Shape, Gather, Concat and the like.
#
# onnx's ``PartialDataPropagationFunction`` of each operator, and
# onnxruntime/core/graph/data_propagation/, which adds scalars and Div. Constants take no part but
# as the index of a Gather: measured on onnxruntime 1.31.1. A value whose elements are all known
# counts as a constant in the inference of its readers; partly known values are not stored.


_INT64_SPAN = 2**64
_LEAST_INT64 = -(2**63)


def propagate(graph: Graph, node: Node) -> None:
    """Store the elements of a node's first output, if they follow from shapes."""
    rule = _RULES.get(node.op_type) if not node.domain else None
    if rule is None or not node.outputs:
        return
    value = rule(graph, node)
    if value is not None and 0 < len(value.elements) <= MAX_ELEMENTS:
        graph.shape_values[node.outputs[0]] = value


_Elements = tuple[tuple[int, ...], bool]
"""Elements, and whether the value is a scalar."""


def _known(graph: Graph, name: str) -> _Elements | None:
    value = graph.shape_values.get(name)
    if value is None:
        return None
    return tuple(element for element in value.elements if element is not None), value.is_scalar


def _vector(graph: Graph, name: str) -> tuple[int, ...] | None:
    """The elements of a value of rank 1; ``None`` for a scalar."""
    known = _known(graph, name)
    return None if known is None or known[1] else known[0]


def _shape(graph: Graph, node: Node) -> ShapeValue | None:
    dims = graph.dims_of(node.input_at(0))
    if dims is None:
        return None
    end = node.attributes.get("end")
    selected = dims[integer(node, "start") : None if end is None else end.i]
    known = tuple(dim for dim in selected if isinstance(dim, int))
    return ShapeValue(known) if len(known) == len(selected) else None


def _gather(graph: Graph, node: Node) -> ShapeValue | None:
    """One element at a constant index."""
    data, indices = _vector(graph, node.input_at(0)), graph.array(node.input_at(1))
    if data is None or indices is None or indices.ndim > 1 or indices.size != 1:
        return None
    index = int(indices.item())
    is_in_range = -len(data) <= index < len(data)
    return ShapeValue((data[index],), indices.ndim == 0) if is_in_range else None


def _concat(graph: Graph, node: Node) -> ShapeValue | None:
    parts = [_vector(graph, name) for name in node.inputs]
    known = [part for part in parts if part is not None]
    return ShapeValue(tuple(chain(*known))) if len(known) == len(parts) else None


def _squeeze(graph: Graph, node: Node) -> ShapeValue | None:
    """One element becomes a scalar; of several elements, onnxruntime drops those equal to 1."""
    data = _vector(graph, node.input_at(0))
    if data is None:
        return None
    if len(data) == 1:
        return ShapeValue(data, is_scalar=True)
    return ShapeValue(tuple(element for element in data if element != 1))


def _unsqueeze(graph: Graph, node: Node) -> ShapeValue | None:
    known = _known(graph, node.input_at(0))
    is_scalar = known is not None and known[1] and axes_of(graph, node) in ([0], [-1])
    return ShapeValue(known[0]) if known is not None and is_scalar else None


def _cast(graph: Graph, node: Node) -> ShapeValue | None:
    data = _vector(graph, node.input_at(0))
    return None if data is None else ShapeValue(data)


def _sum_or_product(apply: Callable[[int, int], int]) -> "_Rule":
    """Add, Sub and Mul of two vectors, one of which may have one element, or of two scalars."""

    def rule(graph: Graph, node: Node) -> ShapeValue | None:
        left, right = (_known(graph, node.input_at(index)) for index in (0, 1))
        if left is None or right is None:
            return None
        (one, is_scalar), (other, is_other_scalar) = left, right
        sizes = {len(one), len(other)}
        if len(sizes) > 1 and (1 not in sizes or is_scalar or is_other_scalar):
            return None
        # A single element repeats as often as the other side is long.
        pairs = zip(one * (max(sizes) // len(one)), other * (max(sizes) // len(other)), strict=True)
        elements = tuple(_wrapped(apply(a, b)) for a, b in pairs)
        return ShapeValue(elements, is_scalar and is_other_scalar)

    return rule


def _wrapped(number: int) -> int:
    """Wrap a number around as int64 does."""
    return (number - _LEAST_INT64) % _INT64_SPAN + _LEAST_INT64


def _quotient(graph: Graph, node: Node) -> ShapeValue | None:
    """Div of single elements; C++ rounds toward zero."""
    left, right = (_known(graph, node.input_at(index)) for index in (0, 1))
    if left is None or right is None or len(left[0]) != 1 or len(right[0]) != 1 or not right[0][0]:
        return None
    (dividend,), (divisor,) = left[0], right[0]
    magnitude = abs(dividend) // abs(divisor)
    quotient = magnitude if (dividend < 0) == (divisor < 0) else -magnitude
    return ShapeValue((quotient,), left[1] and right[1])


_Rule = Callable[[Graph, Node], ShapeValue | None]
_RULES: Final[Mapping[str, _Rule]] = {
    "Shape": _shape,
    "Gather": _gather,
    "Concat": _concat,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Cast": _cast,
    "Add": _sum_or_product(lambda a, b: a + b),
    "Sub": _sum_or_product(lambda a, b: a - b),
    "Mul": _sum_or_product(lambda a, b: a * b),
    "Div": _quotient,
}


# --------------------------------------------------------------------------------------------------
# Output types of If, Loop and Scan from those of their bodies.
#
# onnx's inference of these operators (defs/controlflow/utils.cc), and
# ``Graph::InferAndVerifySubgraphTypes``, which sets the types of a subgraph's inputs and infers the
# types inside.


_INT64, _BOOL = 7, 9
_FIRST_CARRIED = 2
"""Index of a Loop's first carried value, after the trip count and the condition."""
_SCAN_OF_BATCHES = 8


def control_flow_types(
    graph: Graph, node: Node, resolve: Callable[[Graph], None]
) -> dict[str, ValueType]:
    """Set the types of the inputs of a node's subgraphs, infer those, and read their outputs."""
    for name, known in _body_input_types(graph, node).items():
        merged = merged_type(known, node.bodies["body"].types.get(name))
        if merged is not None:
            node.bodies["body"].types[name] = merged
    for body in node.bodies.values():
        resolve(body)
    return {
        name: known
        for name, known in zip(node.outputs, _output_types(graph, node), strict=False)
        if name and known is not None
    }


def _body_input_types(graph: Graph, node: Node) -> dict[str, ValueType]:
    body = node.bodies.get("body")
    if body is None:
        return {}
    types: list[ValueType | None] = []
    if node.op_type == "Loop":
        types = [TensorType(_INT64, ()), TensorType(_BOOL, ())]
        types += [_without_shape(graph.type_of(name)) for name in node.inputs[_FIRST_CARRIED:]]
    elif node.op_type == "Scan" and node.since_version != _SCAN_OF_BATCHES:
        types = _scan_inputs(graph, node)
    return {
        name: known for name, known in zip(body.inputs, types, strict=False) if known is not None
    }


def _without_shape(known: ValueType | None) -> ValueType | None:
    """A type without its shape: a carried value may change its shape in every iteration."""
    return TensorType(known.elem_type, None) if isinstance(known, TensorType) else known


def _scan_inputs(graph: Graph, node: Node) -> list[ValueType | None]:
    """The types of the states, and of one slice of each scanned value."""
    num_states = _num_states(node)
    types = [graph.type_of(name) for name in node.inputs[:num_states]]
    axes = _scan_axes(node, "input")
    for name, scan_axis in zip(node.inputs[num_states:], axes, strict=False):
        known = graph.type_of(name)
        if isinstance(known, TensorType) and known.dims:
            axis = scan_axis % len(known.dims)
            dims = (*known.dims[:axis], *known.dims[axis + 1 :])
            types.append(TensorType(known.elem_type, dims))
        else:
            types.append(_without_shape(known))
    return types


def _num_states(node: Node) -> int:
    """The number of a Scan's states; the file's ``num_scan_inputs`` may be any number."""
    num_scanned = integer(node, "num_scan_inputs")
    return len(node.inputs) - min(max(num_scanned, 0), len(node.inputs))


def _scan_axes(node: Node, side: str) -> Iterable[int]:
    return integers(node, f"scan_{side}_axes") or repeat(0)


def _length(graph: Graph, node: Node) -> Dim:
    """The number of iterations of a Scan: a number if a scanned input has one, else a symbol."""
    scanned = zip(node.inputs[_num_states(node) :], _scan_axes(node, "input"), strict=False)
    dims = ((graph.dims_of(name), axis) for name, axis in scanned)
    lengths: list[Dim] = [known[axis % len(known)] for known, axis in dims if known]
    found = [length for length in lengths if length is not None]
    return next((n for n in found if isinstance(n, int)), found[0] if found else None)


def _output_types(graph: Graph, node: Node) -> list[ValueType | None]:
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
    types = [body.type_of(name) for name in body.outputs[1:]]
    carried = [_without_shape(known) for known in types[:num_carried]]
    return [*carried, *(_stacked(known, 0, None) for known in types[num_carried:])]


def _scan(node: Node, length: Dim) -> list[ValueType | None]:
    """Output types of Scan, except of its first version, which had a batch dim."""
    body = node.bodies["body"]
    if node.since_version == _SCAN_OF_BATCHES:
        return []
    num_states = _num_states(node)
    types = [body.type_of(name) for name in body.outputs]
    pairs = zip(types[num_states:], _scan_axes(node, "output"), strict=False)
    return [*types[:num_states], *(_stacked(known, axis, length) for known, axis in pairs)]


def _stacked(known: ValueType | None, scan_axis: int, length: Dim) -> ValueType | None:
    """The type of the outputs of all iterations, stacked along a new axis."""
    if not isinstance(known, TensorType) or known.dims is None:
        return known
    axis = scan_axis % (len(known.dims) + 1)
    return TensorType(known.elem_type, (*known.dims[:axis], length, *known.dims[axis:]))


# --------------------------------------------------------------------------------------------------
# Inference of a whole graph, and of one node.
#
# onnxruntime/core/graph/graph.cc, ``Graph::Resolve``, ``InferAndVerifyTypeMatch`` and
# ``SaveShapeValuesFromDataPropagation``.


def resolve(graph: Graph) -> None:
    """Drop constants that nothing reads, and infer the nodes whose inputs changed."""
    _drop_unused_initializers(graph)
    for node in execution_order(graph):
        infer_node(graph, node)


def _drop_unused_initializers(graph: Graph) -> None:
    """Source: ``Graph::CleanUnusedInitializersAndNodeArgs``.

    From IR version 4 on, an initializer that is a graph input too stays.
    """
    used = _used_names(graph)
    unused = {name for name in graph.initializers if name not in used}
    if graph.ir_version >= INPUTS_MAY_OVERRIDE:
        unused.difference_update(graph.inputs)
    for name in unused:
        graph.drop_initializer(name)
    graph.inputs = [name for name in graph.inputs if name not in unused]


def _used_names(graph: Graph) -> set[str]:
    used = {*graph.outputs}
    for node in graph.nodes.values():
        if node.bodies:
            graph.set_implicit(node, _outer_reads(node))
        used.update(node.inputs, node.implicit)
    return used


def _outer_reads(node: Node) -> list[str]:
    """Outer values that a node's subgraphs read, in a stable order."""
    # Passes may have changed the subgraphs, so that the stored implicit inputs are out of date.
    read: dict[str, None] = {}
    for body in node.bodies.values():
        for inner in body.nodes.values():
            if inner.bodies:
                body.set_implicit(inner, _outer_reads(inner))
            read.update(dict.fromkeys(n for n in (*inner.inputs, *inner.implicit) if n))
        read.update(dict.fromkeys(body.outputs))
        for name in [name for name in read if body.has_value(name)]:
            del read[name]
    return list(read)


def infer_node(graph: Graph, node: Node) -> None:
    """Merge the inferred types of a node's outputs into the known ones."""
    types = {name: graph.type_of(name) for name in node.inputs if name}
    inferred_from = _inference_inputs(graph, node, types)
    # Subgraphs may read more than these inputs, so nodes with subgraphs are always inferred.
    if node.bodies:
        found = control_flow_types(graph, node, resolve)
    elif inferred_from == node.inferred_from:
        return
    else:
        node.inferred_from = inferred_from
        found = _inferred(graph, node, types)
    for name, inferred in found.items():
        known = merged_type(inferred, graph.types.get(name))
        if known is not None:
            graph.types[name] = known
    propagate(graph, node)


def _inference_inputs(
    graph: Graph, node: Node, types: Mapping[str, ValueType | None]
) -> tuple[object, ...]:
    """All that the inference of a node depends on, to be compared; arrays by identity."""
    constants = tuple(id(graph.array(name)) for name in node.inputs if name)
    values = tuple(graph.shape_values.get(name) for name in node.inputs)
    known = tuple(
        t.SerializeToString() if isinstance(t, onnx.TypeProto) else t for t in types.values()
    )
    attributes = tuple((name, id(value)) for name, value in node.attributes.items())
    return (tuple(node.inputs), tuple(node.outputs), known, constants, values, attributes)


def _inferred(
    graph: Graph, node: Node, types: Mapping[str, ValueType | None]
) -> dict[str, ValueType]:
    found = runtime_types(graph, node)
    if found is not None:
        return found
    proto = write_node(node)
    return onnx_types(graph, proto, {n: write_type(t) for n, t in types.items() if t is not None})
