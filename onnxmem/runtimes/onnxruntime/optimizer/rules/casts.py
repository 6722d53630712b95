"""Casts that change nothing, and casts that only a Shape looks at.

Source: onnxruntime/core/optimizer/cast_elimination.cc and pre_shape_node_elimination.cc.
"""

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import can_remove, remove_handing_through
from onnxmem.runtimes.onnxruntime.optimizer.rules.effect import Effect, removed_if


def drop_cast(graph: Graph, node: Node) -> Effect:
    """Remove a Cast to the type that its input has."""
    elem_type = graph.elem_type_of(node.inputs[0])
    if not elem_type or integer(node, "to") != elem_type:
        return Effect.NONE
    return removed_if(can_remove(graph, node) and remove_handing_through(graph, node))


def drop_before_shape(graph: Graph, node: Node) -> Effect:
    """Remove a Cast that only Shape nodes read: its type does not matter to them."""
    readers = graph.readers(node.outputs[0])
    if not readers or any(reader.op_type != "Shape" for reader in readers):
        return Effect.NONE
    return removed_if(can_remove(graph, node) and remove_handing_through(graph, node))
