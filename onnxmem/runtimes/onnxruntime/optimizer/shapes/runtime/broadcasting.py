"""Shapes that numpy's broadcasting gives.

Source: onnx/defs/shape_inference.h, ``bidirectionalBroadcastShapeInference``.
"""

from onnxmem.runtimes.onnxruntime.optimizer.value_types import Dim, Dims


def broadcast(one: Dims | None, other: Dims | None) -> Dims | None:
    """Dims of the result of an elementwise operator."""
    if one is None or other is None:
        return None
    rank = max(len(one), len(other))
    padded = ((1,) * (rank - len(dims)) + tuple(dims) for dims in (one, other))
    return tuple(_joined(*pair) for pair in zip(*padded, strict=True))


def _joined(one: Dim, other: Dim) -> Dim:
    if one == 1:
        return other
    if other in {1, one}:
        return one
    for dim in (one, other):
        if isinstance(dim, int):
            return dim
    return None
