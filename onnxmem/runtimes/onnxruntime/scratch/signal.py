"""Fourier transforms of lengths that are no power of two: Bluestein's algorithm.

Of a length n, it works on m complex numbers, the first power of two from 2n - 1 on: three vectors
for all lines, one of which is soon freed, and two for each line in turn.
"""

from onnxmem.runtimes.onnxruntime.kernel_use import UnknownError, Use, axis_of, product
from onnxmem.runtimes.onnxruntime.scratch.rule import Rule, Scratch

_AXIS_INPUT_OPSET = 20


def _bluestein(length: int, lines: int, complex_bytes: int) -> Scratch:
    if length & (length - 1) == 0 or not lines:
        return Scratch()
    vector = complex_bytes * (1 << (2 * length - 2).bit_length())
    stops = (None, None, 3)
    return Scratch((vector,) * 3, freed_after=stops, per_pass=(vector,) * 2, passes=lines)


def _transformed(use: Use) -> Scratch:
    """X: [*D, 1 or 2] -> Y: [*D', 1 or 2]: a line for each position off the axis."""
    result = use.out_dims()
    axis = axis_of(_axis(use), len(result))
    length = use.dims(0)[axis] if _is_cut(use) else result[axis]
    if _is_cut(use) and use.has(1):
        length = use.whole(1)
    lines = product(result) // (result[axis] * result[-1])
    return _bluestein(length, lines, 2 * use.element_bytes())


def _is_cut(use: Use) -> bool:
    """Whether the output holds the first half of the transform only."""
    return use.integer("onesided", 0) == 1 and not use.integer("inverse", 0)


def _axis(use: Use) -> int:
    if "axis" in use.call.attributes or not use.is_at_least(_AXIS_INPUT_OPSET):
        return use.integer("axis", 1)
    return use.whole(2) if use.has(2) else -2


def _framed(use: Use) -> Scratch:
    """signal: [B, L, 1 or 2], window: [n] -> Y: [B, frames, *]: a line for each frame."""
    length = use.dims(2)[0] if use.has(2) else use.whole(3)
    if not length:
        raise UnknownError
    return _bluestein(length, product(use.out_dims()[:2]), 2 * use.element_bytes())


RULES = (
    Rule("DFT", "", _transformed, "core/providers/cpu/signal/dft.cc: dft_bluestein_z_chirp"),
    Rule("STFT", "", _framed, "core/providers/cpu/signal/dft.cc: short_time_fourier_transform"),
)
