"""onnxruntime's own operators of domain com.microsoft: fused matmuls, activations, normalizations.

A fused operator has the FLOPs of its parts, and saves for backward what they would.
"""

from dataclasses import replace
from math import prod

from onnxmem.ops.formulas import (
    dims,
    if_input,
    if_set,
    multiply_add,
    num_elements,
    one_per_element,
    per_element,
    positive,
    times,
    total,
)
from onnxmem.ops.linear import GEMM_FLOPS, GEMM_MACS, MATMUL_FLOPS, MATMUL_MACS, MATMUL_SAVED
from onnxmem.ops.spatial import (
    CONVOLUTION_FLOPS,
    CONVOLUTION_MACS,
    CONVOLUTION_SAVED,
    fused_convolution,
    transposed_macs,
)
from onnxmem.ops.spec import Call, Formula, Operand, OpSpec, Saved, unknown

DOMAIN = "com.microsoft"
_SOURCE = "onnxruntime ContribOperators.md"
_STATISTIC_BYTES = 4
_EXPERTS_RANK = 3


def _last_dim(operand: Operand | None) -> int | None:
    return operand.shape[-1] if operand is not None and operand.shape else None


def _sum_and_statistics_bytes(sum_output: int, statistics: int) -> Formula:
    """Bytes of the normalized sum, unless the model has it as an output, and of the statistics of
    each row: [B, S, H] -> [B, S].
    """

    def formula(call: Call) -> int | None:
        output = call.output_at(0)
        count, row = num_elements(output), _last_dim(output)
        if output is None or output.size_bytes is None or count is None or not row:
            return None
        # Where the sum is an output of the node, it is saved as a tensor and counted there.
        sum_bytes = output.size_bytes if call.output_at(sum_output) is None else 0
        return sum_bytes + statistics * _STATISTIC_BYTES * (count // row)

    return formula


def _gemm_fast_gelu_macs(call: Call) -> int | None:
    """X: [*batch, K] @ W: [K, N] -> Y: [*batch, N]: elements(Y) * K."""
    x, w = _last_dim(call.input_at(0)), dims(call.input_at(1), 2)
    return None if w is None or x != w[0] else times(x, num_elements(call.output_at(0)))


def _experts_macs(call: Call) -> int | None:
    """input: [*tokens, H], fc1: [E, f * I, H], fc2: [E, H, I], fc3: [E, I, H]: each token passes
    through k experts.
    """
    experts = [dims(call.input_at(p), _EXPERTS_RANK) for p in (2, 4, 6) if call.input_at(p)]
    known = [expert for expert in experts if expert is not None]
    elements, hidden = num_elements(call.input_at(0)), _last_dim(call.input_at(0))
    chosen = positive(call, "k", 1)
    if len(known) < len(experts) or elements is None or not hidden or chosen is None:
        return None
    # Each token passes `k` experts, one matrix of each layer: [experts, in, out].
    return elements // hidden * chosen * sum(prod(expert[1:]) for expert in known)


def _matmul(op_type: str) -> OpSpec:
    """Alpha * A @ B, either transposed."""
    return OpSpec(
        op_type=op_type,
        domain=DOMAIN,
        inputs=("A", "B"),
        outputs=("Y",),
        parameters=("A", "B"),
        saved=MATMUL_SAVED,
        macs=MATMUL_MACS,
        flops=total(MATMUL_FLOPS, if_set("activation", one_per_element)),
        source=_SOURCE,
    )


def _biased(op_type: str, names: tuple[str, str], output: str) -> OpSpec:
    """gelu(data + bias)."""
    return OpSpec(
        op_type=op_type,
        domain=DOMAIN,
        inputs=names,
        outputs=(output,),
        parameters=names[1:],
        saved=tuple(
            Saved(name) for name in names
        ),  # gelu's derivative at their sum, which is recomputed
        flops=total(one_per_element, if_input(1, one_per_element)),
        source="onnxruntime BiasGeluGrad_dX",
    )


def _activation(op_type: str) -> OpSpec:
    return OpSpec(
        op_type=op_type,
        domain=DOMAIN,
        inputs=("X",),
        outputs=("Y",),
        saved=(Saved("X"),),  # dX = dY * f'(X)
        flops=one_per_element,
        source=f"{_SOURCE}; torch derivatives.yaml: gelu, silu",
    )


def _skip_normalization(op_type: str, shift: tuple[str, ...], per_row: int) -> OpSpec:
    """Normalize input + skip + bias, as LayerNormalization or RMSNormalization would."""
    bias = 3 + len(shift)
    return OpSpec(
        op_type=op_type,
        domain=DOMAIN,
        inputs=("input", "skip", "gamma", *shift, "bias"),
        outputs=("output", "mean", "inv_std_var", "input_skip_bias_sum"),
        parameters=("gamma", *shift, "bias"),
        # With N as of a row of the sum, G = dY * gamma: dX = invstd * (G - avg(G) - N * avg(G * N))
        saved=(Saved("input_skip_bias_sum"), Saved("gamma")),
        saved_extra_bytes=_sum_and_statistics_bytes(3, per_row),
        flops=total(
            per_element(7 if shift else 5),  # skip 1, then 6 without a shift, or 4
            if_input(bias, one_per_element),
            *(if_input(3, one_per_element) for _ in shift),
        ),
        source=f"{_SOURCE}; torch derivatives.yaml: native_layer_norm, _fused_rms_norm",
    )


_FUSED_CONV = fused_convolution("FusedConv", DOMAIN, "Z", _SOURCE)
_NHWC_FUSED_CONV = replace(_FUSED_CONV, op_type="NhwcFusedConv", may_inplace=())
_NHWC_CONV = replace(
    _NHWC_FUSED_CONV,
    op_type="NhwcConv",
    inputs=("X", "W", "B"),
    saved=CONVOLUTION_SAVED,
    flops=CONVOLUTION_FLOPS,
)
"""Not fused with anything."""

OPS = (
    _FUSED_CONV,
    _NHWC_FUSED_CONV,
    _NHWC_CONV,
    OpSpec(
        op_type="ConvTransposeWithDynamicPads",
        domain=DOMAIN,
        inputs=("X", "W", "Pads", "B"),
        outputs=("Y",),
        parameters=("W", "B"),
        saved=CONVOLUTION_SAVED,
        macs=transposed_macs,
        flops=multiply_add(transposed_macs, if_input(3, one_per_element)),
        source=_SOURCE,
    ),
    OpSpec(
        op_type="CausalConvWithState",
        domain=DOMAIN,
        inputs=("input", "weight", "bias", "past_state"),
        outputs=("output", "present_state"),
        parameters=("weight", "bias"),
        saved=(Saved("input"), Saved("weight"), Saved("bias"), Saved("past_state")),  # as onnx's
        macs=CONVOLUTION_MACS,
        flops=total(CONVOLUTION_FLOPS, if_set("activation", one_per_element)),
        source=_SOURCE,
    ),
    _matmul("FusedMatMul"),
    _matmul("FusedMatMulActivation"),
    _matmul("TransposeMatMul"),
    OpSpec(
        op_type="FusedGemm",
        domain=DOMAIN,
        inputs=("A", "B", "C"),
        outputs=("Y",),
        parameters=("A", "B", "C"),
        saved=(*MATMUL_SAVED, Saved("Y")),  # the activation's: Relu reads Y
        macs=GEMM_MACS,
        flops=total(GEMM_FLOPS, if_set("activation", one_per_element)),
        source=_SOURCE,
    ),
    OpSpec(
        op_type="GemmFastGelu",
        domain=DOMAIN,
        inputs=("X", "W", "bias"),
        outputs=("Y",),
        parameters=("W", "bias"),
        saved=(Saved("X"), Saved("W"), Saved("bias")),  # gelu's input is recomputed
        macs=_gemm_fast_gelu_macs,
        flops=multiply_add(_gemm_fast_gelu_macs, one_per_element, if_input(2, one_per_element)),
        source=_SOURCE,
    ),
    _activation("Gelu"),
    _activation("QuickGelu"),
    _biased("FastGelu", ("X", "bias"), "Y"),
    _biased("BiasGelu", ("A", "B"), "C"),
    _biased("BiasSplitGelu", ("X", "bias"), "Y"),
    OpSpec(
        op_type="BiasAdd",
        domain=DOMAIN,
        inputs=("X", "bias", "skip"),
        outputs=("Y",),
        parameters=("bias",),
        saved=(),  # dX = dY
        flops=per_element(2),
        source=_SOURCE,
    ),
    OpSpec(
        op_type="BiasSoftmax",
        domain=DOMAIN,
        inputs=("data", "bias"),
        outputs=("output",),
        saved=(Saved("output"),),  # dX = Y * (dY - sum(dY * Y))
        flops=per_element(6),  # bias; maximum, subtract, exp, sum, divide
        source=f"{_SOURCE}; torch derivatives.yaml: _softmax",
    ),
    _skip_normalization("SkipLayerNormalization", ("beta",), 2),
    _skip_normalization("SkipSimplifiedLayerNormalization", (), 1),
    OpSpec(
        op_type="EmbedLayerNormalization",
        domain=DOMAIN,
        inputs=(
            *("input_ids", "segment_ids"),
            *("word_embedding", "position_embedding", "segment_embedding"),
            *("gamma", "beta", "mask", "position_ids"),
        ),
        outputs=("output", "mask_index", "embedding_sum"),
        parameters=(
            *("word_embedding", "position_embedding", "segment_embedding"),
            *("gamma", "beta"),
        ),
        # As SkipLayerNormalization; the embeddings' rows are found again by the ids
        saved=(
            *(Saved("embedding_sum"), Saved("gamma")),
            *(Saved("input_ids"), Saved("segment_ids"), Saved("position_ids")),
        ),
        saved_extra_bytes=_sum_and_statistics_bytes(2, 2),
        flops=total(per_element(8), if_input(4, one_per_element)),  # 1 or 2 sums, then 7
        source=_SOURCE,
    ),
    OpSpec(
        op_type="MoE",
        domain=DOMAIN,
        inputs=(
            *("input", "router_probs"),
            *("fc1_experts_weights", "fc1_experts_bias"),
            *("fc2_experts_weights", "fc2_experts_bias"),
            *("fc3_experts_weights", "fc3_experts_bias"),
        ),
        outputs=("output",),
        parameters=(
            *("fc1_experts_weights", "fc1_experts_bias"),
            *("fc2_experts_weights", "fc2_experts_bias"),
            *("fc3_experts_weights", "fc3_experts_bias"),
        ),
        # The operands of each matmul; the experts of a token are found again from the router
        saved=(
            *(Saved("input"), Saved("router_probs")),
            *(Saved(f"fc{layer}_experts_weights") for layer in (1, 2, 3)),
        ),
        saved_extra_bytes=unknown,  # activations between the layers of each expert
        macs=_experts_macs,
        flops=multiply_add(_experts_macs),  # biases, activation and routing left out
        source=_SOURCE,
    ),
    OpSpec(
        op_type="ExpandDims",
        domain=DOMAIN,
        inputs=("X", "axis"),
        outputs=("Y",),
        alias=(("X", "Y"),),
        autograd_view=(("X", "Y"),),
        saved=(),  # dX = dY in X's shape
        source="onnxruntime 1.31.1 CPU kernel",
    ),
    OpSpec(
        op_type="Trilu",
        domain=DOMAIN,
        inputs=("X", "k"),
        outputs=("Y",),
        saved=(),  # dX = dY inside the triangle
        source=_SOURCE,
    ),
)
