"""A Relu or Clip goes where the QuantizeLinear behind it cuts off as much.

Source: onnxruntime/core/optimizer/qdq_transformer/relu_quantizelinear.cc and
clip_quantizelinear.cc; the numbers that quantisation cuts off: qdq_util.h, ``QuantizeDomain``.
"""

import numpy as np

from onnxmem.model.constants import Array
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    child_of,
    clip_bounds,
    has_single_reader,
    integer_range,
    is_op,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import can_remove, remove_handing_through
from onnxmem.runtimes.onnxruntime.optimizer.rules.effect import Effect, removed_if

_HALF = 0.5
"""What rounding takes in beyond the last number."""


def drop_relu(graph: Graph, node: Node) -> Effect:
    """Remove a Relu whose quantised result starts at 0."""
    quantise = _quantise_after(graph, node)
    if quantise is None or not is_op(node, "Relu", {6, 13, 14}):
        return Effect.NONE
    zero, held = _zero_point(graph, quantise), integer_range(graph, quantise.input_at(2))
    if zero is None or held is None or zero.size != 1:
        return Effect.NONE
    starts_at_zero = int(zero.item()) == held.start
    is_gone = starts_at_zero and can_remove(graph, node) and remove_handing_through(graph, node)
    return removed_if(is_gone)


def drop_clip(graph: Graph, node: Node) -> Effect:
    """Remove a Clip whose bounds lie outside of what the quantised type holds."""
    quantise = _quantise_after(graph, node)
    if quantise is None or not is_op(node, "Clip", {1, 6, 11, 12, 13}):
        return Effect.NONE
    bounds, limits = clip_bounds(graph, node), _limits(graph, quantise)
    if bounds is None or limits is None:
        return Effect.NONE
    is_covered = bounds[0] <= limits[0] and limits[1] <= bounds[1]
    is_gone = is_covered and can_remove(graph, node) and remove_handing_through(graph, node)
    return removed_if(is_gone)


def _quantise_after(graph: Graph, node: Node) -> Node | None:
    if not has_single_reader(graph, node) or not has_kernel(graph, node):
        return None
    return child_of(graph, node, "QuantizeLinear")


def _zero_point(graph: Graph, quantise: Node) -> Array | None:
    return graph.array(quantise.inputs[2]) if quantise.input_at(2) else None


def _limits(graph: Graph, quantise: Node) -> tuple[float, float] | None:
    """The last number that becomes the lowest integer, and the first that becomes the highest."""
    scale, zero = graph.array(quantise.inputs[1]), _zero_point(graph, quantise)
    held = integer_range(graph, quantise.input_at(2))
    if scale is None or zero is None or held is None or scale.ndim or zero.ndim:
        return None
    if scale.dtype != np.float32:
        return None
    low, high = held.start - int(zero), held.stop - 1 - int(zero)
    return _towards(low, _HALF) * float(scale), _towards(high, -_HALF) * float(scale)


def _towards(whole: int, half: float) -> float:
    """Half a step from an integer; a little less where the tie would round away from it."""
    edge = np.float32(whole + half)
    rounds_away = whole % 2 != 0
    return float(np.nextafter(edge, np.float32(whole)) if rounds_away else edge)
