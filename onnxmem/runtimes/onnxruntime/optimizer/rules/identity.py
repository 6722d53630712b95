"""Identity, and Dropout outside training, hand their input through.

Source: onnxruntime/core/optimizer/identity_elimination.cc and dropout_elimination.cc.
"""

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import can_remove, remove_handing_through
from onnxmem.runtimes.onnxruntime.optimizer.rules.effect import Effect, removed_if


def drop_identity(graph: Graph, node: Node) -> Effect:
    """Remove an Identity; one that writes a graph output gives its name to its parent's output."""
    if can_remove(graph, node):
        return removed_if(remove_handing_through(graph, node))
    return _rename_parent(graph, node)


def _rename_parent(graph: Graph, node: Node) -> Effect:
    """The parent writes the graph output itself, if it writes no other."""
    parent = graph.parent(node, 0)
    if parent is None or not graph.is_output(node) or graph.readers(node.outputs[0]):
        return Effect.NONE
    if node.inputs[0] in graph.outputs or len(graph.readers(node.inputs[0])) != 1:
        return Effect.NONE
    old, new = node.inputs[0], node.outputs[0]
    graph.remove(node)
    graph.set_outputs(parent, [new if name == old else name for name in parent.outputs])
    return Effect.REMOVED


def drop_dropout(graph: Graph, node: Node) -> Effect:
    """Remove a Dropout whose mask nobody reads: a session for inference never drops.

    Measured on onnxruntime 1.31.1: whether ``training_mode`` is off, on or fed makes no difference.
    """
    if node.output_at(1) and graph.readers(node.output_at(1)):
        return Effect.NONE
    return removed_if(can_remove(graph, node) and remove_handing_through(graph, node))
