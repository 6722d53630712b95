"""onnxruntime's attention operators of domain com.microsoft that project Q, K and V themselves.

Sequences are counted at their full length, as if nothing were padding. A cache that its operator
only partly fills counts as full, unless its length is known.
"""

from math import prod

from onnxmem.ops.attention import (
    Heads,
    Layout,
    attention_flops,
    attention_macs,
    cached_length,
    logsumexp_bytes,
)
from onnxmem.ops.combining import dims, integers, multiply_add, positive, total
from onnxmem.ops.formulas import times
from onnxmem.ops.spec import Call, Formula, OpSpec, Saved

DOMAIN = "com.microsoft"
_RANK = 3


def _projection_macs(call: Call) -> int | None:
    """input: [*batch, I] @ weights: [I, P], P being the sizes of Q, K and V together."""
    weights, read = dims(call.input_at(1), 2), dims(call.input_at(0), 2, _RANK)
    if weights is None or read is None or read[-1] != weights[0]:
        return None
    return prod(read) * weights[1]


def _projected(call: Call) -> int | None:
    """Elements of Q, K and V together: [*batch, P]."""
    weights, read = dims(call.input_at(1), 2), dims(call.input_at(0), 2, _RANK)
    return None if weights is None or read is None else prod(read[:-1]) * weights[1]


def _sizes(call: Call) -> tuple[int, int] | None:
    """Sizes of a head of Q and K, and of V, out of the columns of the weights."""
    weights, heads = dims(call.input_at(1), 2), positive(call, "num_heads")
    if weights is None or heads is None:
        return None
    sizes = integers(call.attributes.get("qkv_hidden_sizes")) or (weights[1] // 3,) * 3
    if len(sizes) != _RANK or sum(sizes) != weights[1] or sizes[0] != sizes[1]:
        return None
    if sizes[0] % heads or sizes[2] % heads:
        return None
    return sizes[0] // heads, sizes[2] // heads


def _projecting(
    past: int | None = None, length: int | None = None, padded: int | None = None
) -> Layout:
    """input: [B, S, I], past: [2, B, H, P, D]; [tokens, I] where ``padded`` tells [B, S]."""

    def layout(call: Call) -> Heads | None:
        source = call.input_at(0 if padded is None else padded)
        batch = dims(source, _RANK if padded is None else 2)
        sizes, cached = _sizes(call), cached_length(call, past, length, axis=3)
        if batch is None or sizes is None or cached is None:
            return None
        heads = positive(call, "num_heads") or 0
        return Heads(batch[0], heads, batch[1], cached + batch[1], *sizes)

    return layout


def _kept_bytes(layout: Layout) -> Formula:
    """Bytes of the projected Q, K and V, and of the logsumexp."""

    def projected_bytes(call: Call) -> int | None:
        made = call.output_at(0)
        bits = times(None if made is None else made.bits, _projected(call))
        return None if bits is None else -(-bits // 8)

    return total(projected_bytes, logsumexp_bytes(layout))


def _self_attention(
    op_type: str, inputs: tuple[str, ...], outputs: tuple[str, ...], layout: Layout
) -> OpSpec:
    return OpSpec(
        op_type=op_type,
        domain=DOMAIN,
        inputs=inputs,
        outputs=outputs,
        parameters=("weights", "bias"),
        # The projection's operands, then as onnx's Attention
        saved=(Saved("input"), Saved("weights"), Saved("output"), Saved("attention_bias")),
        saved_extra_bytes=_kept_bytes(layout),
        macs=total(_projection_macs, attention_macs(layout)),
        flops=_projecting_flops(layout, inputs.index("attention_bias")),
        source="onnxruntime ContribOperators.md",
    )


def _projecting_flops(layout: Layout, mask: int) -> Formula:
    """Projection with its bias, then attention."""

    def bias(call: Call) -> int | None:
        return 0 if call.input_at(2) is None else _projected(call)

    return total(multiply_add(_projection_macs, bias), attention_flops(layout, mask))


_DENSE = _projecting(past=4, length=6)
_INPUTS = ("input", "weights", "bias", "mask_index", "past", "attention_bias")

OPS = (
    _self_attention("Attention", (*_INPUTS, "past_sequence_length"), ("output", "present"), _DENSE),
    _self_attention(
        "DecoderMaskedSelfAttention",
        (*_INPUTS, "past_sequence_length", "beam_width", "cache_indirection"),
        ("output", "present"),
        _DENSE,
    ),
    _self_attention(
        "PackedAttention",
        (
            *("input", "weights", "bias"),
            *("token_offset", "cumulative_sequence_length", "attention_bias"),
        ),
        ("output",),
        _projecting(padded=3),
    ),
    OpSpec(
        op_type="QAttention",
        domain=DOMAIN,
        inputs=(
            *("input", "weight", "bias", "input_scale", "weight_scale", "mask_index"),
            *("input_zero_point", "weight_zero_point", "past"),
        ),
        outputs=("output", "present"),
        buffers=("input_scale", "weight_scale", "input_zero_point", "weight_zero_point"),
        quantised=("weight", "bias"),
        differentiable=False,
        macs=total(_projection_macs, attention_macs(_projecting(past=8))),
        flops=_projecting_flops(_projecting(past=8), mask=5),
        source="onnxruntime ContribOperators.md",
    ),
)
