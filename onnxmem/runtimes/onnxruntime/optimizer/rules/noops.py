"""Sums with 0 and products with 1.

Source: onnxruntime/core/optimizer/noop_elimination.cc.
"""

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import is_constant, rank_of
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import can_remove, remove_handing_through
from onnxmem.runtimes.onnxruntime.optimizer.rules.effect import Effect, removed_if

_NEUTRAL = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}
_PAIR = 2


def drop_noop(graph: Graph, node: Node) -> Effect:
    """Remove x+0, 0+x, x-0, x*1, 1*x and x/1 where the constant adds no dims."""
    if not _has_neutral_operand(graph, node) or not can_remove(graph, node):
        return Effect.NONE
    return removed_if(remove_handing_through(graph, node))


def _has_neutral_operand(graph: Graph, node: Node) -> bool:
    if len(node.inputs) != _PAIR:
        return False
    first, second = node.inputs
    is_first = is_constant(graph, first)
    if is_first == is_constant(graph, second) or (node.op_type in {"Sub", "Div"} and is_first):
        return False
    neutral, other = (first, second) if is_first else (second, first)
    value, rank = graph.array(neutral), rank_of(graph, other)
    if value is None or rank is None or value.ndim > rank:
        return False
    if value.size != 1 or value.dtype.kind not in "fi":
        return False
    return float(value.ravel()[0]) == _NEUTRAL[node.op_type]
