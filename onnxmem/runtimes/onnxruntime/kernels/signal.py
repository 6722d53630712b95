"""Signals and random numbers: Fourier transforms, windows, distributions.

A Fourier transform whose length n is not a power of two uses Bluestein's algorithm with vectors of
m complex numbers, where m is the smallest power of two that is at least 2n - 1: three vectors for
all lines, one of which is freed early, and two for each line.
"""

from onnxmem.runtimes.onnxruntime.kernels.kernel import (
    ALWAYS,
    Kernel,
    KernelCall,
    Scratch,
    UnknownError,
    axis_of,
    nothing,
    product,
)

_AXIS_INPUT_OPSET = 20
"""Version of DFT from which the axis is an input."""
_DOUBLE = 8


def _transformed(call: KernelCall) -> Scratch:
    """X: [*D, 1 or 2] -> Y: [*D', 1 or 2]: a line for each position along the other axes."""
    result = call.out_dims()
    axis = axis_of(_axis(call), len(result))
    length = call.dims(0)[axis] if _is_cut(call) else result[axis]
    if _is_cut(call) and call.has(1):
        length = call.scalar(1)
    lines = product(result) // (result[axis] * result[-1])
    return _bluestein(length, lines, 2 * call.element_bytes())


def _is_cut(call: KernelCall) -> bool:
    """Whether the output has only the first half of the transform."""
    return call.integer("onesided", 0) == 1 and not call.integer("inverse", 0)


def _axis(call: KernelCall) -> int:
    if "axis" in call.op_call.attributes or not call.is_at_least(_AXIS_INPUT_OPSET):
        return call.integer("axis", 1)
    return call.scalar(2) if call.has(2) else -2


def _framed(call: KernelCall) -> Scratch:
    """signal: [B, L, 1 or 2], window: [n] -> Y: [B, frames, *]: a line for each frame."""
    length = call.dims(2)[0] if call.has(2) else call.scalar(3)
    if not length:
        raise UnknownError
    return _bluestein(length, product(call.out_dims()[:2]), 2 * call.element_bytes())


def _bluestein(length: int, lines: int, complex_bytes: int) -> Scratch:
    if length & (length - 1) == 0 or not lines:
        return Scratch()
    # b, its transform and the chirp depend on the length only, so that the first line makes them
    # for all; the others are a line's own. b is no longer needed once it is transformed.
    vector = complex_bytes * (1 << (2 * length - 2).bit_length())
    stops = (None, None, 3)
    return Scratch((vector,) * 3, freed_after=stops, per_pass=(vector,) * 2, passes=lines)


def _multinomial(call: KernelCall) -> tuple[int, ...]:
    """X: [B, C]: the cumulative probabilities of one sample."""
    return (_DOUBLE * call.dims(0)[1],)


KERNELS = (
    Kernel("DFT", "core/providers/cpu/signal/dft.cc: dft_bluestein_z_chirp", _transformed),
    Kernel("STFT", "core/providers/cpu/signal/dft.cc: short_time_fourier_transform", _framed),
    Kernel(
        "BlackmanWindow HammingWindow HannWindow MelWeightMatrix",
        "core/providers/cpu/signal/window_functions.cc: Compute",
        nothing,
    ),
    Kernel("Multinomial", "core/providers/cpu/generator/random.cc: Compute", _multinomial),
    Kernel(
        "RandomNormal RandomUniform", "core/providers/cpu/generator/random.cc: Compute", nothing
    ),
    Kernel(
        "RandomNormalLike RandomUniformLike",
        "core/providers/cpu/generator/random.cc: Compute",
        nothing,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
)
