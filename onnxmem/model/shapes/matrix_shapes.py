"""Shapes of matrix products."""

from onnxmem.model.shapes.node_facts import broadcast
from onnxmem.ops.spec import Dims


def product(one: Dims | None, other: Dims | None) -> Dims | None:
    """What ``MatMul`` makes of two, batch dims broadcast; ``None`` where they do not fit."""
    if not one or not other:
        return None
    batch = broadcast(one[:-2], other[:-2])
    columns = other[-1:] if len(other) > 1 else ()
    return None if batch is None else (*batch, *one[-2:-1], *columns)
