"""The axes that a node's attributes and constant inputs name."""

from collections.abc import Mapping

from onnxmem.model.graph import Graph, Node
from onnxmem.ops.spec import Attribute


def axes_order(attributes: Mapping[str, Attribute], rank: int) -> tuple[int, ...]:
    """The order in which a Transpose takes its input's axes; the reverse where none fits."""
    perm = attributes.get("perm")
    axes = range(rank)
    if isinstance(perm, tuple) and sorted(perm, key=str) == sorted(axes, key=str):
        return tuple(int(axis) for axis in perm)
    return tuple(reversed(axes))


def reduced_axes(graph: Graph, node: Node) -> tuple[int, ...] | None:
    """The axes that a reduction takes away; ``None`` where the file does not give them."""
    given = node.attributes.get("axes")
    if given is None and len(node.inputs) > 1:
        given = graph.values.get(node.inputs[1])
    return tuple(int(axis) for axis in given) if isinstance(given, tuple) else None
