"""A Slice that takes everything.

Source: onnxruntime/core/optimizer/slice_elimination.cc.
"""

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import integers_of, is_op
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import can_remove, remove_handing_through
from onnxmem.runtimes.onnxruntime.optimizer.rules.effect import Effect, removed_if

_TO_THE_END = 2**63 - 1
_AXES, _STEPS = 3, 4


def drop_slice(graph: Graph, node: Node) -> Effect:
    """Remove a Slice from 0 to the largest integer in steps of 1."""
    if not is_op(node, "Slice", {1, 10, 11, 13}) or not can_remove(graph, node):
        return Effect.NONE
    bounds = _bounds(graph, node)
    if bounds is None or any(start != 0 or end < _TO_THE_END for start, end in bounds):
        return Effect.NONE
    return removed_if(remove_handing_through(graph, node))


def _bounds(graph: Graph, node: Node) -> list[tuple[int, int]] | None:
    if node.since_version == 1:
        starts, ends = (list(node.attributes[name].ints) for name in ("starts", "ends"))
        return list(zip(starts, ends, strict=False)) if len(starts) == len(ends) else None
    known = [integers_of(graph, node.input_at(place)) for place in (1, 2)]
    if not known[0] or not known[1] or len(known[0]) != len(known[1]):
        return None
    if node.input_at(_AXES):
        axes = integers_of(graph, node.input_at(_AXES))
        if axes is None or len(axes) != len(known[0]):
            return None
        # Steps are only looked at where there are axes.
        if node.input_at(_STEPS):
            steps = integers_of(graph, node.input_at(_STEPS))
            if steps != [1] * len(known[0]):
                return None
    return list(zip(known[0], known[1], strict=True))
