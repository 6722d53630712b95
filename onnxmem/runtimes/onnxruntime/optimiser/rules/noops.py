"""Sums with 0 and products with 1.

Source: onnxruntime/core/optimizer/noop_elimination.cc.
"""

from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimiser.matching import is_constant, rank_of
from onnxmem.runtimes.onnxruntime.optimiser.rewriting import can_remove, remove_handing_through
from onnxmem.runtimes.onnxruntime.optimiser.rules.effect import Effect, removed_if

_NEUTRAL = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}


def drop_noop(graph: Graph, node: Node) -> Effect:
    """Remove x+0, 0+x, x-0, x*1, 1*x and x/1 where the constant adds no dims."""
    if not _has_neutral_operand(graph, node) or not can_remove(graph, node):
        return Effect.NONE
    return removed_if(remove_handing_through(graph, node))


def _has_neutral_operand(graph: Graph, node: Node) -> bool:
    constant = [is_constant(graph, name) for name in node.inputs[:2]]
    if constant[0] == constant[1] or (node.op_type in {"Sub", "Div"} and constant[0]):
        return False
    neutral, other = node.inputs if constant[0] else node.inputs[::-1]
    tensor, rank = graph.constant(neutral), rank_of(graph, other)
    if tensor is None or rank is None or len(tensor.dims) > rank:
        return False
    value = graph.array(neutral)
    if value is None or value.size > 1 or value.dtype.kind not in "fi":
        return False
    return value.size == 0 or float(value.ravel()[0]) == _NEUTRAL[node.op_type]
