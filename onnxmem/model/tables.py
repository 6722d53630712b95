"""Weights that a network adds or multiplies and does not train: masks, and tables of positions.

Exporters hold a registered buffer like a parameter. What is added to the scores right before a
softmax, over two axes of more than one element, is a mask; what goes into a sine or a cosine by
way of products and moves is a table of frequencies.
"""

from collections.abc import Mapping

from onnxmem.model.graph import Graph, Node, Tensor

_MOVES = frozenset(
    {
        *("Cast", "CastLike", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape"),
        *("Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)
_TO_ANGLES = _MOVES | {"Div", "Einsum", "MatMul", "Mul"}
_TO_SCORES = _MOVES | {"Add", "Where"}
_MAX_NODES = 64
"""Readers that are looked at; what goes further is no table."""

Readers = Mapping[str, tuple[Node, ...]]


def readers_of(graph: Graph) -> Readers:
    """The nodes that read each tensor, those of subgraphs too."""
    found: dict[str, list[Node]] = {}
    for node in graph.all_nodes():
        for name in node.inputs:
            found.setdefault(name, []).append(node)
    return {name: tuple(nodes) for name, nodes in found.items()}


def is_wide(weight: Tensor) -> bool:
    """Whether more than one axis of a weight has more than one element."""
    return sum(dim != 1 for dim in weight.shape or ()) > 1


def is_table(weight: Tensor, readers: Readers) -> bool:
    """Whether a weight is a mask or a table of frequencies."""
    if is_wide(weight) and _reaches(weight.name, readers, _TO_SCORES, frozenset({"Softmax"})):
        return True
    return _reaches(weight.name, readers, _TO_ANGLES, frozenset({"Cos", "Sin"}))


def _reaches(name: str, readers: Readers, way: frozenset[str], ends: frozenset[str]) -> bool:
    """Whether a tensor goes into one of some operators by way of others alone."""
    waiting, seen = [name], 0
    while waiting and seen < _MAX_NODES:
        for node in readers.get(waiting.pop(), ()):
            seen += 1
            if node.onnx_op in ends:
                return True
            if node.onnx_op in way:
                waiting += node.writes
    return False
