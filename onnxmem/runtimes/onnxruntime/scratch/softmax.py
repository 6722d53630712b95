"""Softmax and what transposes its input like it: the kernels work along the last axis only."""

from onnxmem.runtimes.onnxruntime.kernel_use import Use, axis_of
from onnxmem.runtimes.onnxruntime.scratch.rule import Rule

_PER_AXIS_OPSET = 13
"""From this version on the axis alone is normalised; before it, the input was flattened there."""


def _transposed_twice(use: Use) -> tuple[int, ...]:
    """X: [*D]: the input and the output with ``axis`` moved to the end, unless it is there."""
    rank = len(use.dims(0))
    if not rank or not use.is_at_least(_PER_AXIS_OPSET):
        return ()
    is_last = axis_of(use.integer("axis", -1), rank) == rank - 1
    return () if is_last else (use.size_bytes(0),) * 2


def _mean_variance(use: Use) -> tuple[int, ...]:
    """X: [*D]: transposed in and out unless the ``axes`` are the last ones, in order."""
    rank = len(use.dims(0))
    axes = {axis_of(axis, rank) for axis in use.integers("axes", (0, 2, 3))}
    is_suffix = axes == set(range(rank - len(axes), rank))
    return () if is_suffix else (use.size_bytes(0),) * 2


def _quantised_softmax(use: Use) -> tuple[int, ...]:
    """X: [*D] of 8 bits: as Softmax, from version 13 in the ``opset`` attribute on."""
    rank = len(use.dims(0))
    is_last = axis_of(use.integer("axis", -1), rank) == rank - 1
    is_per_axis = use.integer("opset", _PER_AXIS_OPSET) >= _PER_AXIS_OPSET
    return (use.size_bytes(0),) * 2 if is_per_axis and not is_last else ()


RULES = (
    *(
        Rule(
            op_type, "", _transposed_twice, "core/providers/cpu/math/softmax.cc: ComputeImplOpset13"
        )
        for op_type in ("Softmax", "LogSoftmax")
    ),
    Rule("Hardmax", "", _transposed_twice, "core/providers/cpu/math/hardmax.cc: Compute"),
    Rule(
        "MeanVarianceNormalization",
        "",
        _mean_variance,
        "core/providers/cpu/tensor/mean_variance_normalization.cc: Compute",
    ),
    Rule(
        "QLinearSoftmax",
        "com.microsoft",
        _quantised_softmax,
        "contrib_ops/cpu/quantization/qlinear_softmax.cc: Compute",
    ),
)
