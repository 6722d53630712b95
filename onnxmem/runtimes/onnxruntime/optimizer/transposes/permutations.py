"""Orders of dims.

Source: onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc.
"""

from collections.abc import Sequence

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integers
from onnxmem.runtimes.onnxruntime.optimizer.graph import Node

Order = tuple[int, ...]


def order_of(node: Node | None) -> Order | None:
    """The order that a Transpose brings dims into; ``None`` if it states none, and of others."""
    if node is None or node.op_type != "Transpose" or node.domain:
        return None
    order = integers(node, "perm")
    return tuple(order) if order and sorted(order) == list(range(len(order))) else None


def inverse(order: Order) -> Order:
    """The order that undoes one."""
    return tuple(order.index(place) for place in range(len(order)))


def composed(first: Order, second: Order) -> Order:
    """One order for two Transposes in a row."""
    return tuple(first[place] for place in second)


def squeezed(order: Order, axes: Sequence[int]) -> Order:
    """An order without some axes of the value before the Transpose."""
    left = [axis for axis in range(len(order)) if axis not in axes]
    return tuple(left.index(axis) for axis in order if axis not in axes)


def unsqueezed(order: Order, axes: Sequence[int]) -> Order:
    """An order with further axes that stay where they are."""
    places = [place for place in range(len(order) + len(axes)) if place not in axes]
    moved = iter(places[axis] for axis in order)
    total = range(len(order) + len(axes))
    return tuple(place if place in axes else next(moved) for place in total)


def positive(axes: Sequence[int], rank: int) -> list[int] | None:
    """Axes counted from the start; ``None`` where one is out of range."""
    found = [axis + rank if axis < 0 else axis for axis in axes]
    return found if all(0 <= axis < rank for axis in found) else None
