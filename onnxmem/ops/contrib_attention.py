"""onnxruntime's attention operators of domain com.microsoft that take Q, K and V as inputs.

Sequences are counted at their full length, as if nothing were padding. A cache that its operator
only partly fills counts as full, unless its length is known. Biases of Q, K and V, and a rotation
inside the operator, are left out.
"""

from onnxmem.ops.attention import (
    Heads,
    Layout,
    Split,
    attend,
    attention_flops,
    attention_macs,
    cached_length,
    logsumexp_bytes,
    past_length,
    rotary_embedding,
    split_heads,
)
from onnxmem.ops.combining import constant, dims, positive
from onnxmem.ops.spec import Call, Operand, OpSpec, Saved

DOMAIN = "com.microsoft"
_SOURCE = "onnxruntime ContribOperators.md"
_RANK = 3
_PACKED_RANK = 5
_WEIGHTS = ("bias", "head_sink", "q_norm_weight", "k_norm_weight")
_BUFFERS = ("cos_cache", "sin_cache", "k_scale", "v_scale")


def _packed(operand: Operand | None, parts: int) -> Split | None:
    """[B, S, H, parts, D]: Q, K and V, or K and V, side by side in each head."""
    shape = dims(operand, _PACKED_RANK)
    if shape is None or shape[3] != parts:
        return None
    return shape[0], shape[2], shape[1], shape[4]


def _multi_head(past: int, length: int) -> Layout:
    """query: [B, S, H * D], key: [B, T, H * D] or a cache [B, H, T, D], value alike; or packed
    as [B, S, H, 3, D], or key and value as [B, T, H, 2, D]; past: [B, H, P, D].
    """

    def layout(call: Call) -> Heads | None:
        heads = positive(call, "num_heads")
        cached = cached_length(call, past, length)
        packed = _packed(call.input_at(0), 3) or _thirds(call, heads)
        if packed is not None:
            return attend(packed, packed, packed, cached)
        query = split_heads(call.input_at(0), heads)
        both = _packed(call.input_at(1), 2)
        if both is not None:
            return attend(query, both, both, cached)
        key, value = (split_heads(call.input_at(place), heads) for place in (1, 2))
        return attend(query, key, value, cached)

    return layout


def _thirds(call: Call, heads: int | None) -> Split | None:
    """query: [B, S, 3 * H * D] where no key is given."""
    shape = dims(call.input_at(0), _RANK)
    if call.input_at(1) is not None or shape is None or not heads or shape[2] % (3 * heads):
        return None
    return shape[0], heads, shape[1], shape[2] // (3 * heads)


def _packed_multi_head(call: Call) -> Heads | None:
    """query: [tokens, H * D] or [tokens, H, 3, D], value: [tokens, H * E], token_offset: [B, S]."""
    padded, heads = dims(call.input_at(4), 2), positive(call, "num_heads")
    query, value = dims(call.input_at(0), 2, 4), dims(call.input_at(2), 2)
    if padded is None or query is None or heads is None:
        return None
    batch, length = padded
    if len(query) > 2:  # noqa: PLR2004 - packed
        return Heads(batch, query[1], length, length, query[3], query[3])
    if value is None or query[1] % heads or value[1] % heads:
        return None
    return Heads(batch, heads, length, length, query[1] // heads, value[1] // heads)


def _grouped(call: Call) -> Heads | None:
    """query: [B, S, H * D], key and value: [B, S, G * D]; or packed, [B, S, (H + 2 * G) * D];
    past: [B, G, P, D], of the whole cache's length where it is shared with ``present_key``.
    """
    heads, groups = positive(call, "num_heads"), positive(call, "kv_num_heads")
    shape = dims(call.input_at(0), _RANK)
    if heads is None or groups is None or shape is None:
        return None
    past = _grouped_past(call, shape[1])
    if call.input_at(1) is None:
        size, rest = divmod(shape[2], heads + 2 * groups)
        key: Split | None = (shape[0], groups, shape[1], size)
        return None if rest else attend((shape[0], heads, shape[1], size), key, key, past)
    key, value = (split_heads(call.input_at(place), groups) for place in (1, 2))
    return attend(split_heads(call.input_at(0), heads), key, value, past)


def _grouped_past(call: Call, new: int) -> int | None:
    """Length before the new tokens: of ``total_sequence_length``, else of the cache that comes
    out, which is no longer than the one that came in where both are one buffer.
    """
    whole = constant(call.input_at(6))
    if whole is None and call.output_at(1) is not None:
        whole = past_length(call.output_at(1))
    if whole is None:
        return past_length(call.input_at(3))
    return whole - new if whole >= new else None


def _fused(op_type: str, inputs: tuple[str, ...], layout: Layout, *outputs: str) -> OpSpec:
    """Attention whose Q, K and V are its first inputs."""
    biases = tuple(name for name in _WEIGHTS if name in inputs)
    caches = tuple(name for name in ("past_key", "past_value") if name in inputs)
    decoder = op_type == "DecoderMaskedMultiHeadAttention"
    pairs = (("past_key", "present_key"), ("past_value", "present_value"))
    return OpSpec(
        op_type=op_type,
        domain=DOMAIN,
        inputs=inputs,
        outputs=("output", *outputs),
        may_inplace=pairs if decoder else (),
        parameters=biases,
        buffers=tuple(name for name in _BUFFERS if name in inputs),
        # As onnx's Attention
        saved=tuple(
            Saved(name)
            for name in ("query", "key", "value", "output", "attention_bias", *biases, *caches)
        ),
        saved_extra_bytes=logsumexp_bytes(layout),
        macs=attention_macs(layout),
        flops=attention_flops(layout, inputs.index("attention_bias")),
        source=_SOURCE,
    )


OPS = (
    _fused(
        "MultiHeadAttention",
        (
            *("query", "key", "value", "bias", "key_padding_mask", "attention_bias"),
            *("past_key", "past_value", "past_sequence_length", "cache_indirection"),
        ),
        _multi_head(past=6, length=8),
        *("present_key", "present_value", "qk"),
    ),
    _fused(
        "DecoderMaskedMultiHeadAttention",
        (
            *("query", "key", "value", "mask_index", "attention_bias"),
            *("past_key", "past_value", "past_sequence_length"),
            *("beam_width", "cache_indirection", "bias"),
        ),
        _multi_head(past=5, length=7),
        *("present_key", "present_value", "qk"),
    ),
    _fused(
        "PackedMultiHeadAttention",
        (
            *("query", "key", "value", "bias"),
            *("token_offset", "cumulative_sequence_length", "attention_bias"),
        ),
        _packed_multi_head,
    ),
    _fused(
        "GroupQueryAttention",
        (
            *("query", "key", "value", "past_key", "past_value"),
            *("seqlens_k", "total_sequence_length", "cos_cache", "sin_cache"),
            *("position_ids", "attention_bias", "head_sink", "k_scale", "v_scale"),
            *("q_norm_weight", "k_norm_weight"),
        ),
        _grouped,
        *("present_key", "present_value", "output_qk"),
    ),
    rotary_embedding(DOMAIN, ("input", "position_ids", "cos_cache", "sin_cache"), "output"),
)
