"""Pooling in 8 bits."""

from onnxmem.runtimes.onnxruntime.kernel_use import Use, product
from onnxmem.runtimes.onnxruntime.scratch.rule import Rule

_FLOAT = 4
_POINTER = 8


def _average(use: Use) -> tuple[int, ...]:
    """X: [N, C, *D]: the whole input in floats."""
    return (_FLOAT * product(use.dims(0)),)


def _channels_last(use: Use) -> tuple[int, ...]:
    """Y: [N, *D, C]: a pointer to each position of each window of one image."""
    return (_POINTER * product(use.integers("kernel_shape")) * product(use.out_dims()[1:-1]),)


RULES = (
    Rule(
        "QLinearAveragePool",
        "com.microsoft",
        _average,
        "contrib_ops/cpu/quantization/qlinear_pool.cc: Compute",
    ),
    Rule(
        "NhwcMaxPool",
        "com.microsoft",
        _channels_last,
        "contrib_ops/cpu/quantization/nhwc_max_pool.cc: Compute",
    ),
)
