"""Elements of small integer tensors that follow from shapes: Shape, Gather, Concat and the like.

Source: onnx's ``PartialDataPropagationFunction`` of each operator, and
onnxruntime/core/graph/data_propagation/, which adds scalars and Div to them. Constants have no part
but as the index of a Gather: measured on onnxruntime 1.31.1. A value of which every element is
known counts as a constant in the inference of the nodes that read it; of others nothing is kept.
"""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Final

from onnxmem.runtimes.onnxruntime.optimizer.attributes import axes_of, integer
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.shape_value import ShapeValue

_MAX_ELEMENTS = 4096
"""No shape is longer; a chain of Concats could double it without end."""
_INT64_SPAN = 2**64
_LEAST_INT64 = -(2**63)


def propagate(graph: Graph, node: Node) -> None:
    """Note the elements of a node's first output, where they follow."""
    rule = _RULES.get(node.op_type) if not node.domain else None
    if rule is None or not node.outputs:
        return
    value = rule(graph, node)
    if value is not None and 0 < len(value.elements) <= _MAX_ELEMENTS:
        graph.shape_values[node.outputs[0]] = value


_Elements = tuple[tuple[int, ...], bool]
"""Elements, and whether they are a scalar's."""


def _known(graph: Graph, name: str) -> _Elements | None:
    value = graph.shape_values.get(name)
    if value is None:
        return None
    return tuple(element for element in value.elements if element is not None), value.is_scalar


def _vector(graph: Graph, name: str) -> tuple[int, ...] | None:
    """Elements of a value of rank 1."""
    known = _known(graph, name)
    return None if known is None or known[1] else known[0]


def _shape(graph: Graph, node: Node) -> ShapeValue | None:
    dims = graph.dims_of(node.input_at(0))
    if dims is None:
        return None
    end = node.attributes.get("end")
    kept = dims[integer(node, "start") : None if end is None else end.i]
    known = tuple(dim for dim in kept if isinstance(dim, int))
    return ShapeValue(known) if len(known) == len(kept) else None


def _gather(graph: Graph, node: Node) -> ShapeValue | None:
    """One element, by a constant index."""
    data, places = _vector(graph, node.input_at(0)), graph.array(node.input_at(1))
    if data is None or places is None or places.ndim > 1 or places.size != 1:
        return None
    place = int(places.item())
    is_there = -len(data) <= place < len(data)
    return ShapeValue((data[place],), places.ndim == 0) if is_there else None


def _concat(graph: Graph, node: Node) -> ShapeValue | None:
    parts = [_vector(graph, name) for name in node.inputs]
    known = [part for part in parts if part is not None]
    return ShapeValue(tuple(chain(*known))) if len(known) == len(parts) else None


def _squeeze(graph: Graph, node: Node) -> ShapeValue | None:
    """One element becomes a scalar; of several, onnxruntime drops those that are 1."""
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
    """Add, Sub and Mul of two vectors, or of two single elements, scalars among them."""

    def rule(graph: Graph, node: Node) -> ShapeValue | None:
        left, right = (_known(graph, node.input_at(place)) for place in (0, 1))
        if left is None or right is None:
            return None
        (one, is_scalar), (other, is_other_scalar) = left, right
        sizes = {len(one), len(other)}
        if len(sizes) > 1 and (1 not in sizes or is_scalar or is_other_scalar):
            return None
        pairs = zip(one * (max(sizes) // len(one)), other * (max(sizes) // len(other)), strict=True)
        made = tuple(_wrapped(apply(a, b)) for a, b in pairs)
        return ShapeValue(made, is_scalar and is_other_scalar)

    return rule


def _wrapped(number: int) -> int:
    """An int64 of what may be more."""
    return (number - _LEAST_INT64) % _INT64_SPAN + _LEAST_INT64


def _quotient(graph: Graph, node: Node) -> ShapeValue | None:
    """C++'s division of single elements, which rounds towards zero."""
    left, right = (_known(graph, node.input_at(place)) for place in (0, 1))
    if left is None or right is None or len(left[0]) != 1 or len(right[0]) != 1 or not right[0][0]:
        return None
    (dividend,), (divisor,) = left[0], right[0]
    quotient = abs(dividend) // abs(divisor)
    made = quotient if (dividend < 0) == (divisor < 0) else -quotient
    return ShapeValue((made,), left[1] and right[1])


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
