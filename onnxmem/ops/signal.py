"""Windows and transforms of signals, and the determinant.

A Fourier transform of length N counts the customary ``5 N log2 N`` of a complex radix-2 FFT, also
where N is not a power of two or the signal is real.
"""

from math import ceil, log2

from onnxmem.ops.formulas import (
    constant,
    int_attribute,
    num_elements,
    per_element,
    product,
    shape_at,
    times,
)
from onnxmem.ops.spec import Call, OpSpec, Saved, unknown


def _fft_flops(length: int) -> int:
    return ceil(5 * length * log2(length)) if length > 1 else 0


def _dft_flops_along(call: Call, axis: int | None) -> int | None:
    """Transform every row along ``axis`` of [batch, ..., 1 or 2], the last for re and im."""
    shape = shape_at(call)
    if not shape or axis is None:
        return None
    axis %= len(shape)
    length = shape[axis] if call.input_at(1) is None else constant(call.input_at(1))
    rows = product(shape[:axis] + shape[axis + 1 : -1])
    return None if length is None else times(_fft_flops(length), rows)


def _dft_flops(call: Call) -> int | None:
    """From opset 20 on the axis is an input."""
    return _dft_flops_along(call, -2 if call.input_at(2) is None else constant(call.input_at(2)))


def _dft_flops_before_20(call: Call) -> int | None:
    return _dft_flops_along(call, int_attribute(call, "axis", 1))


def _stft_flops(call: Call) -> int | None:
    """Window and transform every frame: [batch, frames, bins, 2]."""
    window, output = call.input_at(2), call.output_at(0)
    length = num_elements(window) if window is not None else constant(call.input_at(3))
    shape = None if output is None else output.shape
    if length is None or not shape:
        return None
    windowing = 0 if window is None else length
    return times(_fft_flops(length) + windowing, product(shape[:2]))


def _det_flops(call: Call) -> int | None:
    """Factor and multiply the diagonal, for each matrix of [..., n, n].

    Step k = n - 1 ... 1 divides k elements and updates k x k by a multiply-add; the diagonal takes
    n - 1 products.
    """
    shape = shape_at(call)
    n = shape[-1] if shape else None
    if not shape or n is None:
        return None
    per_matrix = n * (n - 1) // 2 + n * (n - 1) * (2 * n - 1) // 3 + max(n - 1, 0)
    return times(per_matrix, product(shape[:-2]))


def _det_bytes(call: Call) -> int | None:
    """Bytes of the factors, as large as X, and of n int32 pivots for each matrix."""
    data, shape = call.input_at(0), shape_at(call)
    pivots = product(shape[:-1]) if shape else None
    if data is None or data.size_bytes is None or pivots is None:
        return None
    return data.size_bytes + 4 * pivots


def _window(op_type: str, flops: int) -> OpSpec:
    return OpSpec(
        op_type=op_type,
        inputs=("size",),
        outputs=("output",),
        # Declared by the kernel, never effective: a scalar is not as large as its window
        may_inplace=(("size", "output"),),
        differentiable=False,
        flops=per_element(flops),
        source="onnxruntime 1.31.1 CPU kernel; ONNX function body",
    )


OPS = (
    _window("HannWindow", 4),  # a0 - a1 cos(n * step): angle, cosine, multiplication, subtraction
    _window("HammingWindow", 4),  # as Hann
    _window("BlackmanWindow", 8),  # with a second cosine of twice the angle
    OpSpec(
        op_type="MelWeightMatrix",
        inputs=(
            "num_mel_bins",
            "dft_length",
            "sample_rate",
            "lower_edge_hertz",
            "upper_edge_hertz",
        ),
        outputs=("output",),
        differentiable=False,
        flops=unknown,
        source="ONNX operator document: made from five scalars",
    ),
    OpSpec(
        op_type="DFT",
        since_version=17,
        inputs=("input", "dft_length"),
        outputs=("output",),
        may_inplace=(("input", "output"),),
        flops=_dft_flops_before_20,
        source="onnxruntime 1.31.1 CPU kernel",  # linear: dX = inverse transform of dY
    ),
    OpSpec(
        op_type="DFT",
        since_version=20,
        inputs=("input", "dft_length", "axis"),
        outputs=("output",),
        flops=_dft_flops,
        source="onnxruntime 1.31.1 CPU kernel",  # linear: dX = inverse transform of dY
    ),
    OpSpec(
        op_type="STFT",
        inputs=("signal", "frame_step", "window", "frame_length"),
        outputs=("output",),
        # dsignal = overlapping sums of inverse transforms of dY, times the window
        saved=(Saved("window"), Saved("signal", if_grad="window")),
        flops=_stft_flops,
        source="ONNX operator document",
    ),
    OpSpec(
        op_type="Det",
        inputs=("X",),
        outputs=("Y",),
        saved=(Saved("X"), Saved("Y")),  # dX = dY * Y * X^-T, solved by the saved factors
        saved_extra_bytes=_det_bytes,
        flops=_det_flops,
        source="torch derivatives.yaml: _linalg_det",
    ),
)
