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
    index = _piece_index(graph, node, 2, len(pieces))
    if index is None and {*pieces, added} != {added}:
        return None
    index = index or 0
    return (*pieces[:index], added, *pieces[index:])


def erased_index(graph: Graph, node: Node, sizes: Sequence[int]) -> int | None:
    """The piece that a SequenceErase takes out; ``None``: unknown, and they differ in size."""
    index = _piece_index(graph, node, 1, len(sizes) - 1)
    if index is None and len(set(sizes)) == 1:
        index = len(sizes) - 1
    return index if index is not None and 0 <= index < len(sizes) else None


def _piece_index(graph: Graph, node: Node, position: int, last: int) -> int | None:
    """The index that an input has, counted from the front; ``None``: unknown. By default the last.

    ``position`` is that of the input: 1 of a SequenceErase, 2 of a SequenceInsert.
    """
    if len(node.inputs) <= position or not node.inputs[position]:
        return last
    found = graph.values.get(node.inputs[position])
    if found is None or len(found) != 1:
        return None
    index = int(found[0])
    # Counted from the end, -1 is the last piece that there is: ``last`` of a SequenceErase, but one
    # less of a SequenceInsert, which may also add a piece behind it.
    index += (last + (position == 1)) if index < 0 else 0
    return index if 0 <= index <= last else None


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
