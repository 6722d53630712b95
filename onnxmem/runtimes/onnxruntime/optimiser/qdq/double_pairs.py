"""Two pairs of QuantizeLinear and DequantizeLinear in a row become one.

Source: onnxruntime/core/optimizer/double_qdq_pairs_remover.cc.
"""

import numpy as np

from onnxmem.model.constants import Array
from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimiser.matching import has_single_reader
from onnxmem.runtimes.onnxruntime.optimiser.order import execution_order
from onnxmem.runtimes.onnxruntime.optimiser.qdq.units import (
    SCALE,
    ZERO_POINT,
    is_dequantise,
    is_quantise,
    same_quantisation,
)
from onnxmem.runtimes.onnxruntime.optimiser.rewriting import add_array

_SAME_SCALE = 1e-20


def remove_double_pairs(graph: Graph) -> bool:
    """Remove the inner two of four nodes; the outer get a range that both pairs hold.

    The last may be several.
    """
    changed = False
    for node in execution_order(graph):
        if graph.nodes.get(node.index) is node and is_dequantise(node):
            changed |= _remove(graph, node)
    return changed


def _remove(graph: Graph, first: Node) -> bool:
    start = graph.parent(first, 0)
    if start is None or not is_quantise(start) or not has_single_reader(graph, start):
        return False
    if not has_single_reader(graph, first):
        return False
    second = graph.children(first)[0]
    ends = graph.children(second)
    if not is_quantise(second) or graph.is_output(second) or not first.input_at(ZERO_POINT):
        return False
    if not ends or not all(is_dequantise(end) for end in ends):
        return False
    pairs = [(start, first), *((second, end) for end in ends)]
    if not all(same_quantisation(graph, *pair) for pair in pairs):
        return False
    if not _unite_ranges(graph, (first, second), (*ends, start)):
        return False
    for end in ends:
        graph.set_input(end, 0, start.outputs[0])
    graph.remove(second)
    graph.remove(first)
    return True


def _unite_ranges(graph: Graph, inner: tuple[Node, Node], outer: tuple[Node, ...]) -> bool:
    one, other = (_parameters(graph, node) for node in inner)
    if one is None or other is None or one[1].dtype != other[1].dtype:
        return False
    if one[1].dtype not in (np.uint8, np.int8):
        return False
    is_same = one[1].item() == other[1].item()
    if is_same and abs(float(one[0].item()) - float(other[0].item())) < _SAME_SCALE:
        return True
    held = np.iinfo(one[1].dtype)  # type: ignore[type-var]
    ranges = [_range(held, scale, zero) for scale, zero in (one, other)]  # type: ignore[arg-type]
    low, high = max(r[0] for r in ranges), min(r[1] for r in ranges)
    scale = np.float32((high - low) / (held.max - held.min))
    zero = one[1].dtype.type(np.round(held.min - low / scale))
    for place, value in ((SCALE, scale), (ZERO_POINT, zero)):
        for node in outer:
            name = graph.fresh_name(f"DoubleQDQRemoved_{node.inputs[place]}")
            graph.set_input(node, place, add_array(graph, name, np.array(value)))
    return True


def _range(held: np.iinfo[np.int8], scale: Array, zero: Array) -> tuple[float, float]:
    step, origin = float(scale.item()), int(zero.item())
    return (held.min - origin) * step, (held.max - origin) * step


def _parameters(graph: Graph, node: Node) -> tuple[Array, Array] | None:
    scale, zero = (graph.array(node.inputs[place]) for place in (SCALE, ZERO_POINT))
    if scale is None or zero is None or scale.dtype != np.float32:
        return None
    return scale, zero
