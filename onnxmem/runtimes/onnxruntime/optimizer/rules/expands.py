"""An Expand to the shape that its input has.

Source: onnxruntime/core/optimizer/expand_elimination.cc.
"""

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import integers_of
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import can_remove, remove_handing_through
from onnxmem.runtimes.onnxruntime.optimizer.rules.effect import Effect, removed_if


def drop_expand(graph: Graph, node: Node) -> Effect:
    """Remove an Expand whose constant target asks for no larger dim than there is."""
    target = integers_of(graph, node.input_at(1))
    dims = graph.dims_of(node.inputs[0])
    if target is None or dims is None or len(target) > len(dims) or not can_remove(graph, node):
        return Effect.NONE
    last = dims[len(dims) - len(target) :]
    if any(asked > 1 and asked != dim for asked, dim in zip(target, last, strict=True)):
        return Effect.NONE
    return removed_if(remove_handing_through(graph, node))
