"""Two pairs of QuantizeLinear and DequantizeLinear in a row become one.

Source: onnxruntime/core/optimizer/double_qdq_pairs_remover.cc.
"""

from collections.abc import Sequence

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import BYTES, FLOAT, has_single_reader
from onnxmem.runtimes.onnxruntime.optimizer.order import execution_order
from onnxmem.runtimes.onnxruntime.optimizer.qdq.units import (
    RANGES,
    SCALE,
    ZERO_POINT,
    is_dequantise,
    is_quantise,
    same_quantisation,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import add_array

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
    if start is None or not is_quantise(start):
        return False
    if not has_single_reader(graph, start) or not has_single_reader(graph, first):
        return False
    second = graph.children(first)[0]
    ends = graph.children(second)
    if not is_quantise(second) or graph.is_output(second) or not ends:
        return False
    if not all(is_dequantise(end) for end in ends):
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


def _unite_ranges(graph: Graph, inner: Sequence[Node], outer: Sequence[Node]) -> bool:
    """Give the outer nodes one quantisation for what both inner ones hold.

    False where the two are of different or of other types than bytes and float32.
    """
    kinds = {graph.elem_type_of(node.inputs[ZERO_POINT]) for node in inner}
    scales = {graph.elem_type_of(node.inputs[SCALE]) for node in inner}
    if len(kinds) != 1 or not kinds <= BYTES or scales != {FLOAT}:
        return False
    lowest, highest = RANGES[kinds.pop()]
    (step, origin), (other_step, other_origin) = (_parameters(graph, node) for node in inner)
    if origin == other_origin and abs(step - other_step) < _SAME_SCALE:
        return True
    low = max((lowest - origin) * step, (lowest - other_origin) * other_step)
    high = min((highest - origin) * step, (highest - other_origin) * other_step)
    scale = (high - low) / (highest - lowest)
    zero = min(max(round(lowest - low / scale), lowest), highest) if scale else lowest
    for place, value in ((SCALE, scale), (ZERO_POINT, zero)):
        for node in outer:
            _state(graph, node, place, value)
    return True


def _parameters(graph: Graph, node: Node) -> tuple[float, int]:
    """Scale and zero point of a node that ``same_quantisation`` let pass."""
    scale, zero = (graph.array(node.inputs[place]) for place in (SCALE, ZERO_POINT))
    return (0.0, 0) if scale is None or zero is None else (float(scale.item()), int(zero.item()))


def _state(graph: Graph, node: Node, place: int, value: float) -> None:
    old = graph.array(node.inputs[place])
    if old is not None:
        name = graph.fresh_name(f"DoubleQDQRemoved_{node.inputs[place]}")
        graph.set_input(node, place, add_array(graph, name, np.full_like(old, value)))
