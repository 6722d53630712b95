"""Elements of small integer tensors that follow from shapes: Shape, Gather, Concat and the like.

Source: onnx's ``PartialDataPropagationFunction`` of each operator, and
onnxruntime/core/graph/data_propagation/, which adds scalars to them. A value of which every element
is known counts as a constant in the inference of the nodes that read it.
"""

from collections.abc import Callable, Sequence

from onnxmem.runtimes.onnxruntime.optimiser.attributes import axes_of, integer
from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph, Node, ShapeValue

_Elements = tuple[int | None, ...]
_INTEGERS = (6, 7)
"""int32 and int64."""


def propagate(graph: Graph, node: Node) -> None:
    """Note the elements of a node's first output, where they follow."""
    rule = _RULES.get(node.op_type) if not node.domain else None
    if rule is None or not node.outputs:
        return
    value = rule(graph, node)
    if value is not None:
        graph.shape_values[node.outputs[0]] = value


def _value_of(graph: Graph, name: str) -> ShapeValue | None:
    """Elements of an input: propagated, or those of a constant of integers."""
    if not name:
        return None
    scope: Graph | None = graph
    if name in graph.shape_values:
        return graph.shape_values[name]
    array = graph.array(name)
    if array is None or array.ndim > 1 or graph.elem_type_of(name) not in _INTEGERS:
        return None
    del scope
    return ShapeValue(tuple(int(element) for element in array.ravel()), array.ndim == 0)


def _shape(graph: Graph, node: Node) -> ShapeValue | None:
    dims = graph.dims_of(node.inputs[0])
    if dims is None or any(not isinstance(dim, int) for dim in dims):
        return None
    start, end = integer(node, "start"), node.attributes.get("end")
    kept = dims[start : end.i if end is not None else None]
    return ShapeValue(tuple(dim for dim in kept if isinstance(dim, int)))


def _size(graph: Graph, node: Node) -> ShapeValue | None:
    dims = graph.dims_of(node.inputs[0])
    if dims is None:
        return None
    product = 1
    for dim in dims:
        if not isinstance(dim, int):
            return None
        product *= dim
    return ShapeValue((product,), is_scalar=True)


def _gather(graph: Graph, node: Node) -> ShapeValue | None:
    data = graph.shape_values.get(node.inputs[0])
    places = graph.array(node.inputs[1])
    if data is None or data.is_scalar or places is None or places.ndim > 1 or integer(node, "axis"):
        return None
    chosen = [int(place) for place in places.ravel()]
    if any(not -len(data.elements) <= place < len(data.elements) for place in chosen):
        return None
    return ShapeValue(tuple(data.elements[place] for place in chosen), places.ndim == 0)


def _concat(graph: Graph, node: Node) -> ShapeValue | None:
    parts = [graph.shape_values.get(name) for name in node.inputs]
    if integer(node, "axis") or any(part is None or part.is_scalar for part in parts):
        return None
    return ShapeValue(tuple(e for part in parts if part is not None for e in part.elements))


def _squeeze(graph: Graph, node: Node) -> ShapeValue | None:
    data = graph.shape_values.get(node.inputs[0])
    if data is None or data.is_scalar or len(data.elements) != 1:
        return None
    axes = axes_of(graph, node)
    return ShapeValue(data.elements, is_scalar=True) if axes in (None, [], [0], [-1]) else None


def _unsqueeze(graph: Graph, node: Node) -> ShapeValue | None:
    data = graph.shape_values.get(node.inputs[0])
    axes = axes_of(graph, node)
    if data is None or not data.is_scalar or axes not in ([0], [-1]):
        return None
    return ShapeValue(data.elements)


def _cast(graph: Graph, node: Node) -> ShapeValue | None:
    data = graph.shape_values.get(node.inputs[0])
    is_kept = data is not None and not data.is_scalar and integer(node, "to") in _INTEGERS
    return data if is_kept else None


def _binary(apply: Callable[[int, int], int | None]) -> "_Rule":
    def rule(graph: Graph, node: Node) -> ShapeValue | None:
        left, right = (_value_of(graph, name) for name in node.inputs[:2])
        is_constant = not any(name in graph.shape_values for name in node.inputs)
        if left is None or right is None or is_constant:
            return None
        pairs = _paired(left.elements, right.elements)
        if pairs is None:
            return None
        made = tuple(None if a is None or b is None else apply(a, b) for a, b in pairs)
        return ShapeValue(made, left.is_scalar and right.is_scalar)

    return rule


def _paired(left: _Elements, right: _Elements) -> Sequence[tuple[int | None, int | None]] | None:
    """Elements side by side; one of length 1 is repeated."""
    if len(left) != len(right) and 1 not in (len(left), len(right)):
        return None
    size = max(len(left), len(right))
    return list(zip(left * (size // len(left)), right * (size // len(right)), strict=True))


def _quotient(dividend: int, divisor: int) -> int | None:
    """C++ division, which rounds towards zero."""
    if not divisor:
        return None
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


_Rule = Callable[[Graph, Node], ShapeValue | None]
_RULES: dict[str, _Rule] = {
    "Shape": _shape,
    "Size": _size,
    "Gather": _gather,
    "Concat": _concat,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Cast": _cast,
    "Add": _binary(lambda a, b: a + b),
    "Sub": _binary(lambda a, b: a - b),
    "Mul": _binary(lambda a, b: a * b),
    "Div": _binary(_quotient),
}
