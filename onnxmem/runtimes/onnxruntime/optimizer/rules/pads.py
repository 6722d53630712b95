"""A convolution or a pooling takes in the padding before it.

Source: onnxruntime/core/optimizer/pad_fusion.cc.
"""

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, integers, number, put, text
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    has_single_reader,
    integers_of,
    is_op,
)
from onnxmem.runtimes.onnxruntime.optimizer.rules.effect import Effect

_READS_PADS = 11
"""Version from which Pad's amounts are inputs."""
_VALUE, _AXES = 2, 3


def fuse_pad(graph: Graph, node: Node) -> Effect:
    """A constant padding of zeros along the spatial dims becomes the reader's own padding."""
    if not is_op(node, "Pad", {1, 2, 11, 13, 18, 19, 21, 23, 24}) or len(node.inputs) > _AXES:
        return Effect.NONE
    if not has_single_reader(graph, node) or text(node, "mode", "constant") != "constant":
        return Effect.NONE
    pads = _amounts(graph, node)
    reader = graph.children(node)[0]
    if pads is None or not _fits(reader):
        return Effect.NONE
    half = len(pads) // 2
    if any(pads[:2]) or any(pads[half : half + 2]) or min(pads) < 0:
        return Effect.NONE
    own = integers(reader, "pads") or [0] * (len(pads) - 4)
    extra = [*pads[2:half], *pads[half + 2 :]]
    put(reader, "pads", [a + b for a, b in zip(own, extra, strict=True)])
    if reader.op_type == "AveragePool":
        put(reader, "count_include_pad", 1)
    graph.set_input(reader, 0, node.inputs[0])
    graph.remove(node)
    return Effect.REMOVED


def _amounts(graph: Graph, node: Node) -> list[int] | None:
    """The padding of each side, where it is constant and pads with zero."""
    if node.since_version < _READS_PADS:
        return integers(node, "pads") if number(node, "value") == 0 else None
    if node.input_at(_VALUE):
        value = graph.array(node.inputs[_VALUE])
        if value is None or value.any():
            return None
    return integers_of(graph, node.input_at(1))


def _fits(reader: Node) -> bool:
    """Whether the reader computes the same with padding of its own.

    An AveragePool counts what it takes in from then on, so that it must have counted its own
    padding, and not round its size up. Measured on onnxruntime 1.32.0; releases before overlooked
    the rounding, and fused MaxPool, whose own padding is not zero.
    """
    if len(reader.outputs) != 1 or text(reader, "auto_pad", "NOTSET") != "NOTSET":
        return False
    if is_op(reader, "AveragePool", {1, 7, 10, 11, 19, 22}):
        counts_own = integer(reader, "count_include_pad") or not any(integers(reader, "pads") or ())
        return bool(counts_own) and not integer(reader, "ceil_mode")
    return is_op(reader, "Conv", {1, 11, 22})
