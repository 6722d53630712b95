"""Moves of elements that exporters write out: pieces of an axis, a roll, a pad."""

from collections.abc import Iterator

from onnxmem.model.graph import Node
from onnxmem.ops.registry import lookup
from onnxmem.runtimes.torch.composites.framework import MIRRORED_PAD, ROLL
from onnxmem.runtimes.torch.composites.rewriting import Match, Sight

_PAIR = 2
_MIRRORING = frozenset({"edge", "reflect"})


def sequences(sight: Sight) -> Iterator[Match]:
    """Find a SplitToSequence of which SequenceAt takes every piece that is read: a Split."""
    for node in sight.graph.nodes:
        if node.onnx_op != "SplitToSequence":
            continue
        takers = [n for n in sight.graph.nodes if node.outputs[0] in n.reads]
        if not takers or any(taker.onnx_op != "SequenceAt" for taker in takers):
            continue
        pieces = tuple(taker.outputs[0] for taker in takers)
        first_reader = (node, *takers[1:], takers[0])
        yield Match(first_reader, lookup("Split"), node.inputs[:1], pieces, node.attributes)


def unbinds(sight: Sight) -> Iterator[Match]:
    """Find Slices of one axis, one wide each, that cover it and are squeezed: an unbind."""
    slices: dict[tuple[str, tuple[int | float, ...]], list[Node]] = {}
    for node in sight.graph.nodes:
        if node.onnx_op == "Slice" and len(node.inputs) > 3:  # noqa: PLR2004 - axes are given
            axes = sight.graph.values.get(node.inputs[3])
            reader = sight.readers.get(node.outputs[0])
            if axes is not None and reader is not None and reader.onnx_op == "Squeeze":
                slices.setdefault((node.inputs[0], axes), []).append(node)
    for (name, axes), nodes in slices.items():
        dims, pieces = sight.dims(name), [sight.dims(node.outputs[0]) for node in nodes]
        if dims is None or len(axes) != 1 or len(nodes) != dims[int(axes[0])] or len(nodes) == 1:
            continue
        axis = int(axes[0])
        if all(piece is not None and piece[axis] == 1 for piece in pieces):
            outputs = tuple(node.outputs[0] for node in nodes)
            operator = lookup("Split")
            # The pieces appear with the first: their readers may stand between them
            placed = (*nodes[1:], nodes[0])
            yield Match(placed, operator, (name,), outputs, {"axis": axis})


def rolls(sight: Sight) -> Iterator[Match]:
    """Find a Concat of two Slices of one tensor, the end before the start."""
    for node in sight.graph.nodes:
        if node.onnx_op != "Concat" or len(node.inputs) != _PAIR:
            continue
        makers = [sight.maker(name, "Slice") for name in node.inputs]
        end, start = makers
        if end is None or start is None or end.inputs[0] != start.inputs[0]:
            continue
        # Of a weight it is a layer's gates put in another order
        is_moved = sight.dims(node.outputs[0]) == sight.dims(end.inputs[0]) is not None
        if is_moved and not sight.is_weight(end.inputs[0]):
            yield Match((end, start, node), ROLL, end.inputs[:1])


def mirrored_pads(sight: Sight) -> Iterator[Match]:
    """Find a Pad that repeats what is there: unlike one with a number it keeps its operand."""
    for node in sight.graph.nodes:
        if node.onnx_op == "Pad" and node.attributes.get("mode") in _MIRRORING:
            yield Match((node,), MIRRORED_PAD, node.inputs[:1])
