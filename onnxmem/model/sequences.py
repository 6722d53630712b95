"""The pieces of a sequence: where a node puts one in or takes one out, and those of a split.

Pieces are numbers, of elements or of requests. A position or a length that the graph does not have
is decided by data; it does not matter where all pieces are equal.
"""

from collections.abc import Sequence
from math import prod

from onnxmem.model.graph import Graph, Node
from onnxmem.ops.spec import Dims


def with_piece(
    graph: Graph, node: Node, pieces: Sequence[int], added: int
) -> tuple[int, ...] | None:
    """The pieces after a SequenceInsert; ``None``: their order is unknown."""
    place = _place(graph, node, 2, len(pieces))
    if place is None and {*pieces, added} != {added}:
        return None
    place = place or 0
    return (*pieces[:place], added, *pieces[place:])


def erased_place(graph: Graph, node: Node, sizes: Sequence[int]) -> int | None:
    """Where a SequenceErase takes a piece out; ``None``: unknown, and they differ in size."""
    place = _place(graph, node, 1, len(sizes) - 1)
    if place is None and len(set(sizes)) == 1:
        place = len(sizes) - 1
    return place if place is not None and 0 <= place < len(sizes) else None


def _place(graph: Graph, node: Node, index: int, last: int) -> int | None:
    """A position among pieces, counted from the front; ``None``: unknown. By default the last."""
    if len(node.inputs) <= index or not node.inputs[index]:
        return last
    found = graph.values.get(node.inputs[index])
    if found is None or len(found) != 1:
        return None
    place = int(found[0])
    # Counted from the end, -1 is the last piece that there is.
    place += (last + (index == 1)) if place < 0 else 0
    return place if 0 <= place <= last else None


def split_elements(graph: Graph, node: Node, dims: Dims) -> tuple[int, ...] | None:
    """The elements of each piece of a SplitToSequence; ``None``: data decide the lengths."""
    axis = node.attributes.get("axis", 0)
    if not isinstance(axis, int) or not -len(dims) <= axis < len(dims):
        return None
    whole = dims[axis]
    lengths = _lengths(graph, node, whole)
    if lengths is None or sum(lengths) != whole:
        return None
    row = prod(dims) // whole if whole else 0
    return tuple(length * row for length in lengths)


def _lengths(graph: Graph, node: Node, whole: int) -> Sequence[int] | None:
    if len(node.inputs) == 1 or not node.inputs[1]:
        return (1,) * whole
    name = node.inputs[1]
    found = graph.values.get(name)
    if found is None or min(found, default=1) < 0:
        return None
    if graph.tensors[name].shape != ():
        return tuple(map(int, found))
    # A scalar is the length of all pieces, except for a shorter last one.
    length = int(found[0])
    if not length:
        return None
    return (length,) * (whole // length) + ((whole % length,) if whole % length else ())
