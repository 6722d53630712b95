"""Quantised tensors: into integers, out of them, and products of them.

Products count as their float forms do; zero points and scales are folded into them.
"""

from onnxmem.ops.combining import if_input, multiply_add
from onnxmem.ops.convolution import CONVOLUTION_MACS, convolution_macs
from onnxmem.ops.formulas import (
    num_elements,
    one_per_element,
    per_element,
    per_input_element,
    times,
)
from onnxmem.ops.linear import MATMUL_MACS, matmul_macs
from onnxmem.ops.spec import Call, Formula, OpSpec

_QLINEAR_CONV_MACS = convolution_macs(w=3)


def _mask_bytes(call: Call) -> int | None:
    """One byte per element: did it fall inside the integers' range."""
    return times(1, num_elements(call.input_at(0)))


def quantise(domain: str) -> OpSpec:
    """QuantizeLinear, the same in both domains."""
    return OpSpec(
        op_type="QuantizeLinear",
        domain=domain,
        inputs=("x", "y_scale", "y_zero_point"),
        outputs=("y",),
        buffers=("y_scale", "y_zero_point"),
        saved=(),  # dx = dy where x was inside the range: straight through
        saved_extra_bytes=_mask_bytes,
        flops=per_element(4),  # divide, round, add, saturate
        source="torch derivatives.yaml: fake_quantize_per_tensor_affine_cachemask",
    )


def dequantise(domain: str) -> OpSpec:
    """DequantizeLinear, the same in both domains."""
    return OpSpec(
        op_type="DequantizeLinear",
        domain=domain,
        inputs=("x", "x_scale", "x_zero_point"),
        outputs=("y",),
        buffers=("x_scale", "x_zero_point"),
        quantised=("x",),
        saved=(),  # dx = dy, straight through: QuantizeLinear's mask has it all
        flops=per_element(2),  # subtract, multiply
        source="torch derivatives.yaml: fake_quantize_per_tensor_affine_cachemask",
    )


def qlinear_conv(domain: str) -> OpSpec:
    """QLinearConv, the same in both domains but for onnxruntime's ``channels_last``."""
    return OpSpec(
        op_type="QLinearConv",
        domain=domain,
        inputs=(
            *("x", "x_scale", "x_zero_point"),
            *("w", "w_scale", "w_zero_point"),
            *("y_scale", "y_zero_point", "B"),
        ),
        outputs=("y",),
        buffers=(
            *("x_scale", "x_zero_point"),
            *("w_scale", "w_zero_point"),
            *("y_scale", "y_zero_point"),
        ),
        quantised=("w", "B"),
        differentiable=False,
        macs=_QLINEAR_CONV_MACS,
        flops=multiply_add(_QLINEAR_CONV_MACS, if_input(8, one_per_element)),
        source="onnx QLinearConv",
    )


def integer_product(op_type: str, names: tuple[str, str], output: str, macs: Formula) -> OpSpec:
    """Integers times integers, each less its zero point: the sums are int32."""
    zero_points = tuple(f"{name.lower()}_zero_point" for name in names)
    return OpSpec(
        op_type=op_type,
        inputs=(*names, *zero_points),
        outputs=(output,),
        buffers=zero_points,
        quantised=names[1:],
        differentiable=False,
        macs=macs,
        flops=multiply_add(macs),
        source=f"onnx {op_type}",
    )


OPS = (
    quantise(""),
    dequantise(""),
    OpSpec(
        op_type="DynamicQuantizeLinear",
        inputs=("x",),
        outputs=("y", "y_scale", "y_zero_point"),
        differentiable=False,
        flops=per_input_element(6),  # minimum, maximum; divide, round, add, saturate
        source="onnx DynamicQuantizeLinear",
    ),
    qlinear_conv(""),
    integer_product("ConvInteger", ("x", "w"), "y", CONVOLUTION_MACS),
    integer_product("MatMulInteger", ("A", "B"), "Y", MATMUL_MACS),
    OpSpec(
        op_type="QLinearMatMul",
        inputs=(
            *("a", "a_scale", "a_zero_point"),
            *("b", "b_scale", "b_zero_point"),
            *("y_scale", "y_zero_point"),
        ),
        outputs=("y",),
        buffers=(
            *("a_scale", "a_zero_point"),
            *("b_scale", "b_zero_point"),
            *("y_scale", "y_zero_point"),
        ),
        quantised=("a", "b"),
        differentiable=False,
        macs=matmul_macs(b=3),
        flops=multiply_add(matmul_macs(b=3)),
        source="onnx QLinearMatMul",
    ),
)
