"""Matrix products in 8 bits and less: sums before they are scaled, inputs quantised on the way."""

from onnxmem.runtimes.onnxruntime.kernel_use import Use, product
from onnxmem.runtimes.onnxruntime.mlas import packs_weight
from onnxmem.runtimes.onnxruntime.scratch.rule import Rule

_SUM = 4
_FLOAT = 4
_OUTPUT_SCALE = 7
"""Place of QGemm's ``y_scale``: without it the output is in floats."""


def _sums(use: Use) -> tuple[int, ...]:
    """Y: [*D, M, N]: the sum of the products of each output element."""
    return (_SUM * product(use.out_dims()),)


def _gemm(use: Use) -> tuple[int, ...]:
    """A: [M, K], B: [K, N], Y: [M, N]: A, and a B that isn't packed, where they are transposed; the
    sums, where the output is quantised again: else they are the output.
    """
    is_packed = use.is_constant(3) and packs_weight(is_input_signed=use.type(0) == "int8")
    transposed = (
        (0, use.integer("transA", 0) != 0),
        (3, use.integer("transB", 0) != 0 and not is_packed),
    )
    copies = (product(use.dims(place)) for place, is_transposed in transposed if is_transposed)
    return (*copies, *(_sums(use) if use.has(_OUTPUT_SCALE) else ()))


def _quantised_input(use: Use) -> tuple[int, ...]:
    """A: [*D, M, K]: each element in a byte."""
    return (product(use.dims(0)),)


def _dequantised_weight(use: Use) -> tuple[int, ...]:
    """A: [*D, M, K], B: ceil(K * N / 2) bytes: the whole weight in floats."""
    return (_FLOAT * use.integer("K", 0) * use.integer("N", 0),)


RULES = (
    Rule("QLinearMatMul", "", _sums, "core/providers/cpu/math/quantize_linear_matmul.cc: Compute"),
    Rule(
        "QGemm",
        "com.microsoft",
        _gemm,
        "contrib_ops/cpu/quantization/quant_gemm.cc: Compute",
    ),
    Rule(
        "DynamicQuantizeMatMul",
        "com.microsoft",
        _quantised_input,
        "contrib_ops/cpu/quantization/dynamic_quantize_matmul.cc: Compute",
    ),
    Rule(
        "MatMulBnb4",
        "com.microsoft",
        _dequantised_weight,
        "contrib_ops/cpu/quantization/matmul_bnb4.cc: Compute",
    ),
)
