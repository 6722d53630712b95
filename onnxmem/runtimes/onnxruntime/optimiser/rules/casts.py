"""Casts that change nothing, casts by way of a wider type, and casts that only a Shape looks at.

Source: onnxruntime/core/optimizer/cast_elimination.cc and pre_shape_node_elimination.cc.
"""

from collections.abc import Mapping
from typing import Final

from onnxmem.runtimes.onnxruntime.optimiser.attributes import integer
from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimiser.matching import has_single_reader
from onnxmem.runtimes.onnxruntime.optimiser.rewriting import can_remove, remove_handing_through
from onnxmem.runtimes.onnxruntime.optimiser.rules.effect import Effect, removed_if

_WIDER: Final[Mapping[int, frozenset[int]]] = {
    1: frozenset({11}),
    10: frozenset({1, 11}),
    16: frozenset({1, 11}),
    6: frozenset({11, 7}),
    5: frozenset({1, 11, 6, 7}),
    2: frozenset({1, 11, 10, 6, 7, 5, 16}),
    3: frozenset({1, 11, 10, 6, 7, 5, 16}),
    9: frozenset({1, 11, 10, 6, 7, 2, 3, 5, 16}),
}
"""Element types to those that hold all their values, as onnxruntime 1.31.1 takes them."""


def drop_cast(graph: Graph, node: Node) -> Effect:
    """Remove a Cast to the type that its input has, or had before a Cast that lost nothing."""
    skipped = _skip_wider(graph, node)
    removed = _drop_same(graph, node)
    return Effect.CHANGED if skipped and removed is Effect.NONE else removed


def _skip_wider(graph: Graph, node: Node) -> bool:
    """Read what a Cast to a wider type reads, and remove that Cast if nobody else needs it."""
    first = graph.parent(node, 0)
    if first is None or first.op_type != "Cast" or first.domain:
        return False
    elem_type = graph.elem_type_of(first.inputs[0])
    if integer(first, "to") not in _WIDER.get(elem_type, ()):
        return False
    graph.set_input(node, 0, first.inputs[0])
    if has_single_reader(graph, first, 0):
        graph.remove(first)
    return True


def _drop_same(graph: Graph, node: Node) -> Effect:
    elem_type = graph.elem_type_of(node.inputs[0])
    if not elem_type or integer(node, "to") != elem_type or not can_remove(graph, node):
        return Effect.NONE
    return removed_if(remove_handing_through(graph, node))


def drop_before_shape(graph: Graph, node: Node) -> Effect:
    """Remove a Cast that only Shape nodes read: its type does not matter to them."""
    readers = graph.readers(node.outputs[0])
    if not readers or any(reader.op_type != "Shape" for reader in readers):
        return Effect.NONE
    return removed_if(can_remove(graph, node) and remove_handing_through(graph, node))
