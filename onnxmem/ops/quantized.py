"""Quantized tensors: quantization, dequantization, and operators on integers.

Each counts as its float form does; zero points and scales are not counted.
"""

from onnxmem.ops.formulas import (
    if_input,
    multiply_add,
    num_elements,
    one_per_element,
    one_per_input_element,
    per_element,
    per_input_element,
    times,
)
from onnxmem.ops.linear import MATMUL_MACS, gemm_macs, matmul_macs, packed_matmul_macs
from onnxmem.ops.recurrent import LSTM_FLOPS, recurrent_flops, recurrent_macs
from onnxmem.ops.spatial import CONVOLUTION_MACS, convolution_macs, window_flops
from onnxmem.ops.spec import Call, Formula, OpSpec, Saved, nothing, unknown

_QLINEAR_CONV_MACS = convolution_macs(w=3)


def _mask_bytes(call: Call) -> int | None:
    """One byte per element: whether it is inside the integers' range."""
    return times(1, num_elements(call.input_at(0)))


def _quantize(domain: str) -> OpSpec:
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


def _dequantize(domain: str) -> OpSpec:
    """DequantizeLinear, the same in both domains."""
    return OpSpec(
        op_type="DequantizeLinear",
        domain=domain,
        inputs=("x", "x_scale", "x_zero_point"),
        outputs=("y",),
        buffers=("x_scale", "x_zero_point"),
        quantized=("x",),
        saved=(),  # dx = dy, straight through: QuantizeLinear's mask has it all
        flops=per_element(2),  # subtract, multiply
        source="torch derivatives.yaml: fake_quantize_per_tensor_affine_cachemask",
    )


def _qlinear_conv(domain: str) -> OpSpec:
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
        quantized=("w", "B"),
        differentiable=False,
        macs=_QLINEAR_CONV_MACS,
        flops=multiply_add(_QLINEAR_CONV_MACS, if_input(8, one_per_element)),
        source="onnx QLinearConv",
    )


def _integer_product(op_type: str, names: tuple[str, str], output: str, macs: Formula) -> OpSpec:
    """Integers times integers, each less its zero point: the sums are int32."""
    zero_points = tuple(f"{name.lower()}_zero_point" for name in names)
    return OpSpec(
        op_type=op_type,
        inputs=(*names, *zero_points),
        outputs=(output,),
        buffers=zero_points,
        quantized=names[1:],
        differentiable=False,
        macs=macs,
        flops=multiply_add(macs),
        source=f"onnx {op_type}",
    )


_QUANTIZED = (
    _quantize(""),
    _dequantize(""),
    OpSpec(
        op_type="DynamicQuantizeLinear",
        inputs=("x",),
        outputs=("y", "y_scale", "y_zero_point"),
        differentiable=False,
        flops=per_input_element(6),  # minimum, maximum; divide, round, add, saturate
        source="onnx DynamicQuantizeLinear",
    ),
    _qlinear_conv(""),
    _integer_product("ConvInteger", ("x", "w"), "y", CONVOLUTION_MACS),
    _integer_product("MatMulInteger", ("A", "B"), "Y", MATMUL_MACS),
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
        quantized=("a", "b"),
        differentiable=False,
        macs=matmul_macs(b=3),
        flops=multiply_add(matmul_macs(b=3)),
        source="onnx QLinearMatMul",
    ),
)


DOMAIN = "com.microsoft"
_SOURCE = "onnxruntime ContribOperators.md"


def _scaled(name: str) -> tuple[str, str, str]:
    """Integers with the scale and zero point that give them their meaning."""
    return name, f"{name}_scale", f"{name}_zero_point"


def _integer(
    op_type: str,
    inputs: tuple[str, ...],
    output: str,
    flops: Formula,
    *,
    macs: Formula = nothing,
    quantized: tuple[str, ...] = (),
) -> OpSpec:
    """Integers in, integers or floats out; what is named a scale or zero point is a buffer."""
    return OpSpec(
        op_type=op_type,
        domain=DOMAIN,
        inputs=inputs,
        outputs=(output,),
        buffers=tuple(name for name in inputs if name.endswith(("_scale", "_zero_point"))),
        quantized=quantized,
        differentiable=False,
        macs=macs,
        flops=flops,
        source=_SOURCE,
    )


def _unary(op_type: str, flops: Formula) -> OpSpec:
    return _integer(op_type, (*_scaled("X"), "Y_scale", "Y_zero_point"), "Y", flops)


def _unary_lower(op_type: str, flops: Formula) -> OpSpec:
    """Describe one input, one output, their scales named in lower case."""
    names = ("X", "x_scale", "x_zero_point", "y_scale", "y_zero_point")
    return _integer(op_type, names, "Y", flops)


def _binary(op_type: str) -> OpSpec:
    inputs = (*_scaled("A"), *_scaled("B"), "C_scale", "C_zero_point")
    return _integer(op_type, inputs, "C", one_per_element, quantized=("A", "B"))


# Weights of 4 bits and the like, dequantized block by block while they are multiplied.
def _weight_only(op_type: str, *more: str, bias: int | None = None) -> OpSpec:
    """Float activations times quantized weights: A: [*batch, K] -> Y: [*batch, N]."""
    others = () if bias is None else (if_input(bias, one_per_element),)
    return OpSpec(
        op_type=op_type,
        domain=DOMAIN,
        inputs=("A", "B", *more),
        outputs=("Y",),
        parameters=("bias",) if "bias" in more else (),
        buffers=tuple(name for name in more if name != "bias"),
        quantized=("B",),
        # dA = dY @ B', with B dequantized; B itself is never trained
        saved=tuple(Saved(name, if_grad="A") for name in ("B", *more) if name != "bias"),
        macs=packed_matmul_macs,
        flops=multiply_add(packed_matmul_macs, *others),
        source=f"{_SOURCE}; onnxruntime MatMulBnb4Grad",
    )


def _product(
    op_type: str, inputs: tuple[str, ...], macs: Formula, bias: int, quantized: tuple[str, ...]
) -> OpSpec:
    """Describe A @ B, and a bias."""
    flops = multiply_add(macs, if_input(bias, one_per_element))
    return _integer(op_type, inputs, "Y", flops, macs=macs, quantized=quantized)


_EXPERTS = tuple(
    f"fc{layer}_{part}"
    for layer in (1, 2, 3)
    for part in ("experts_weights", "scales", "experts_bias")
)
_EXPERT_ZERO_POINTS = tuple(f"fc{layer}_zero_points" for layer in (1, 2, 3))

_MICROSOFT = (
    _quantize(DOMAIN),
    _dequantize(DOMAIN),
    _qlinear_conv(DOMAIN),
    _binary("QLinearAdd"),
    _binary("QLinearMul"),
    _unary("QLinearSigmoid", one_per_element),
    _unary("QLinearLeakyRelu", one_per_element),
    _integer(
        "QLinearSoftmax",
        ("X", "X_scale", "x_zero_point", "y_scale", "y_zero_point"),
        "Y",
        per_element(5),
    ),
    _unary_lower("QLinearAveragePool", window_flops()),
    _unary_lower("QLinearGlobalAveragePool", one_per_input_element),
    _integer(
        "QLinearReduceMean",
        (
            *("data", "data_scale", "data_zero_point"),
            *("reduced_scale", "reduced_zero_point"),
        ),
        "reduced",
        one_per_input_element,
    ),
    _integer(
        "QLinearWhere",
        (
            *("condition", "X", "x_scale", "x_zero_point"),
            *("Y", "y_scale", "y_zero_point"),
            *("z_scale", "z_zero_point"),
        ),
        "Z",
        nothing,
    ),
    # The variadic inputs are tensor, scale, zero point in turn; copied where the scales agree
    _integer("QLinearConcat", ("Y_scale", "Y_zero_point", "*inputs"), "Y", nothing),
    _product(
        "QGemm",
        (
            *("A", "a_scale", "a_zero_point"),
            *("B", "b_scale", "b_zero_point"),
            *("C", "y_scale", "y_zero_point"),
        ),
        gemm_macs(b=3),
        6,
        ("A", "B", "C"),
    ),
    _product(
        "DynamicQuantizeMatMul",
        ("A", "B", "b_scale", "b_zero_point", "bias"),
        matmul_macs(),
        4,
        ("B", "bias"),
    ),
    _product(
        "MatMulIntegerToFloat",
        ("A", "B", "a_scale", "b_scale", "a_zero_point", "b_zero_point", "bias"),
        matmul_macs(),
        6,
        ("B", "bias"),
    ),
    _integer(
        "MatMulInteger16",
        ("A", "B"),
        "Y",
        multiply_add(matmul_macs()),
        macs=matmul_macs(),
        quantized=("B",),
    ),
    _weight_only("MatMulNBits", "scales", "zero_points", "g_idx", "bias", bias=5),
    _weight_only("MatMulBnb4", "absmax"),
    _weight_only("MatMulFpQ4", "B_shape"),
    OpSpec(
        op_type="GatherBlockQuantized",
        domain=DOMAIN,
        inputs=("data", "indices", "scales", "zero_points"),
        outputs=("output",),
        buffers=("scales", "zero_points"),
        quantized=("data",),
        differentiable=False,
        flops=per_element(2),  # subtract, multiply
        source=_SOURCE,
    ),
    OpSpec(
        op_type="DynamicQuantizeLSTM",
        domain=DOMAIN,
        inputs=(
            *("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
            *("W_scale", "W_zero_point", "R_scale", "R_zero_point"),
        ),
        outputs=("Y", "Y_h", "Y_c"),
        buffers=("W_scale", "W_zero_point", "R_scale", "R_zero_point"),
        quantized=("W", "R", "B", "P"),
        differentiable=False,
        macs=recurrent_macs(4),
        flops=recurrent_flops(4, LSTM_FLOPS),
        source=_SOURCE,
    ),
    OpSpec(
        op_type="NhwcMaxPool",
        domain=DOMAIN,
        inputs=("x",),
        outputs=("y",),
        differentiable=False,
        flops=window_flops(),
        source=_SOURCE,
    ),
    OpSpec(
        op_type="QMoE",
        domain=DOMAIN,
        inputs=("input", "router_probs", *_EXPERTS, *_EXPERT_ZERO_POINTS),
        outputs=("output",),
        buffers=tuple(name for name in _EXPERTS if name.endswith("scales")) + _EXPERT_ZERO_POINTS,
        quantized=tuple(name for name in _EXPERTS if not name.endswith("scales")),
        differentiable=False,
        macs=unknown,  # the packing hides the experts' sizes
        flops=unknown,
        source=_SOURCE,
    ),
)

OPS = (*_QUANTIZED, *_MICROSOFT)
