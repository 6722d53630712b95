"""Attention: ``softmax(Q @ K') @ V`` for every head, and what comes around it.

Every query meets every key: positions that a causal mask, a window or padding hides are counted in
full, as the matmuls compute them. A key head that several query heads share is counted for
each of them. FLOPs of one score: scale 1, softmax 5, mask 1, soft cap 3.

Linear attention has a matrix per head that takes the keys and values in. The recurrence itself is
counted, step by step; kernels that work on chunks of steps compute more. The work on vectors
(scale, gates, differences) is left out beside that on matrices.

onnxruntime's operators of domain com.microsoft take Q, K and V as inputs, or project them
themselves. Sequences are counted at their full length, as if nothing were padding. A cache that its
operator only partly fills counts as full, unless its length is known. Biases of Q, K and V, and a
rotation inside the operator, are left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from onnxmem.ops.formulas import (
    constant,
    dims,
    if_input,
    if_set,
    int_attribute,
    integers,
    multiply_add,
    num_elements,
    positive,
    str_attribute,
    times,
    total,
)
from onnxmem.ops.spec import Call, Dims, Formula, Operand, OpSpec, Saved, unknown

_LOGSUMEXP_BYTES = 4
_PACKED_RANK = 3


@dataclass(frozen=True, slots=True)
class Heads:
    """Q: [B, H, S, D], K: [B, H, T, D], V: [B, H, T, E] -> Y: [B, H, S, E]."""

    batch: int
    heads: int
    queries: int
    keys: int
    """Those of the past included."""
    head_size: int
    value_size: int

    @property
    def scores(self) -> int:
        """Elements of Q @ K': B * H * S * T."""
        return self.batch * self.heads * self.queries * self.keys

    @property
    def outputs(self) -> int:
        """Elements of Y: B * H * S * E."""
        return self.batch * self.heads * self.queries * self.value_size

    @property
    def macs(self) -> int:
        """Q @ K' sums over D, the matmul with V yields E: B * H * S * T * (D + E)."""
        return self.scores * (self.head_size + self.value_size)


Split = tuple[int, int, int, int]
"""Q, or K, or V: batch, heads, length, head size."""

Layout = Callable[[Call], Heads | None]
"""Reads the heads from the shapes of an operator's operands."""


def _attention_macs(layout: Layout) -> Formula:
    """Count the two matmuls."""

    def formula(call: Call) -> int | None:
        heads = layout(call)
        return None if heads is None else heads.macs

    return formula


def _per_score(count: int, layout: Layout) -> Formula:
    """``count`` for each element of Q @ K'."""

    def formula(call: Call) -> int | None:
        heads = layout(call)
        return None if heads is None else count * heads.scores

    return formula


def _attention_flops(layout: Layout, mask: int) -> Formula:
    """Matmuls, scale, softmax, soft cap, and the mask or bias at input ``mask``, if present."""
    # For each score of [B, H, S, T]: scale 1 and softmax 5, then mask 1 and soft cap 3.
    return multiply_add(
        _attention_macs(layout),
        _per_score(6, layout),
        if_input(mask, _per_score(1, layout)),
        if_set("softcap", _per_score(3, layout)),
    )


def _logsumexp_bytes(layout: Layout) -> Formula:
    """Bytes of one float32 per query, from which a fused backward recomputes the softmax."""

    def formula(call: Call) -> int | None:
        heads = layout(call)
        if heads is None:
            return None
        return _LOGSUMEXP_BYTES * heads.batch * heads.heads * heads.queries

    return formula


def _split_heads(operand: Operand | None, heads: int | None) -> Split | None:
    """[B, H, S, D] unchanged, [B, S, H * D] split."""
    shape = dims(operand, _PACKED_RANK, _PACKED_RANK + 1)
    if shape is None:
        return None
    if len(shape) > _PACKED_RANK:
        batch, known, length, size = shape
        return batch, known, length, size
    if heads is None or shape[2] % heads:
        return None
    return shape[0], heads, shape[1], shape[2] // heads


def past_length(operand: Operand | None, axis: int = 2) -> int | None:
    """Length of a cache [B, H, P, D]; 0 without one."""
    if operand is None:
        return 0
    shape = dims(operand, axis + 2)
    return None if shape is None else shape[axis]


def _cached_length(call: Call, past: int | None, length: int | None, axis: int = 2) -> int | None:
    """Length of the cache at input ``past``: the value of input ``length`` if it is a constant, as
    where past and present share one buffer; else the whole cache.
    """
    filled = None if length is None else constant(call.input_at(length))
    if filled is not None and filled >= 0:
        return filled
    return past_length(None if past is None else call.input_at(past), axis)


def attend(
    query: Split | None, key: Split | None, value: Split | None, past: int | None
) -> Heads | None:
    """Combine queries, new keys and values, and the cache's length, if they are compatible."""
    if query is None or key is None or value is None or past is None:
        return None
    batch, heads, queries, head_size = query
    # [B, H, S, D] @ [B, G, T, D]': each of the G heads of the keys serves H / G of the queries.
    shares_heads = key[1] > 0 and heads % key[1] == 0
    if not shares_heads or key[0] != batch or key[3] != head_size or key[:3] != value[:3]:
        return None
    return Heads(batch, heads, queries, past + key[2], head_size, value[3])


def _heads(call: Call) -> Heads | None:
    """Q: [B, H, S, D] or [B, S, H * D]; K, V: the same, of ``kv_num_heads``; past: [B, H, P, D]."""
    kv_heads = positive(call, "kv_num_heads")
    return attend(
        _split_heads(call.input_at(0), positive(call, "q_num_heads")),
        _split_heads(call.input_at(1), kv_heads),
        _split_heads(call.input_at(2), kv_heads),
        past_length(call.input_at(4)),
    )


def _rotation_flops(call: Call) -> int | None:
    """X: [B, H, S, D] or [B, S, H * D]: two multiplications and an addition per rotated element.

    ``rotary_embedding_dim`` of D are rotated, all where it is 0.
    """
    rotated, elements = (
        int_attribute(call, "rotary_embedding_dim", 0),
        num_elements(call.input_at(0)),
    )
    if rotated <= 0:
        return times(3, elements)
    heads = _split_heads(call.input_at(0), positive(call, "num_heads"))
    if heads is None or elements is None or not 0 < rotated <= heads[3]:
        return None
    # [B, H, S] vectors, of each of which so many elements are rotated.
    return 3 * (elements // heads[3]) * rotated


def rotary_embedding(domain: str, inputs: tuple[str, ...], output: str) -> OpSpec:
    """RotaryEmbedding: the two domains have other names for its operands, in another order."""
    return OpSpec(
        op_type="RotaryEmbedding",
        domain=domain,
        inputs=inputs,
        outputs=(output,),
        buffers=("cos_cache", "sin_cache"),
        # dX = dY rotated back
        saved=(Saved("cos_cache"), Saved("sin_cache"), Saved("position_ids")),
        flops=_rotation_flops,
        source="derivative of a rotation",
    )


_ATTENTION = (
    OpSpec(
        op_type="Attention",
        inputs=("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"),
        outputs=("Y", "present_key", "present_value", "qk_matmul_output"),
        # With P = softmax(Q @ K'): dV = P' @ dY, dS = P * (dY @ V' - sum(dY * Y)),
        # dQ = dS @ K, dK = dS' @ Q; P is recomputed from Q, K and the logsumexp
        saved=tuple(Saved(n) for n in ("Q", "K", "V", "Y", "attn_mask", "past_key", "past_value")),
        saved_extra_bytes=_logsumexp_bytes(_heads),
        macs=_attention_macs(_heads),
        flops=_attention_flops(_heads, mask=3),
        source="torch derivatives.yaml: _scaled_dot_product_efficient_attention",
    ),
    OpSpec(
        op_type="FlexAttention",
        domain="ai.onnx.preview",
        inputs=("Q", "K", "V"),
        outputs=("Y",),
        saved=(Saved("Q"), Saved("K"), Saved("V"), Saved("Y")),  # as Attention
        saved_extra_bytes=_logsumexp_bytes(_heads),
        macs=_attention_macs(_heads),
        flops=unknown,  # the two subgraphs may compute anything
        source="torch flex_attention",
    ),
    rotary_embedding("", ("X", "cos_cache", "sin_cache", "position_ids"), "Y"),
)


@dataclass(frozen=True, slots=True)
class _State:
    """The recurrence's matrix, [B, H, D, E] for each of H heads, and the steps through it."""

    steps: int
    """B * T"""
    size: int
    """D * E"""
    kv_heads: int
    reads: int
    """Heads that read the state, query heads as a rule."""


def _state(call: Call) -> _State | None:
    """query: [B, T, Hq * D], key: [B, T, H * D], value: [B, T, H * E]."""
    query, key, value = (dims(call.input_at(index), _PACKED_RANK) for index in range(3))
    heads, kv_heads = positive(call, "q_num_heads"), positive(call, "kv_num_heads")
    if not query or not key or not value or not heads or not kv_heads:
        return None
    return _state_of(query, key, value, (heads, kv_heads))


def _state_of(query: Dims, key: Dims, value: Dims, heads: tuple[int, int]) -> _State | None:
    head_size, rest = divmod(query[2], heads[0])
    value_size, value_rest = divmod(value[2], heads[1])
    if rest or value_rest or key[2] != head_size * heads[1] or key[:2] != query[:2]:
        return None
    return _State(query[0] * query[1], head_size * value_size, heads[1], max(heads))


def _linear_attention_macs(call: Call) -> int | None:
    """Per step: an outer product k v' into each state, the delta rules' S' k, and q' S."""
    state = _state(call)
    if state is None:
        return None
    # The delta rule also reads what the state has for a key: S' k, [E, D] @ [D].
    passes = 2 if "delta" in str_attribute(call, "update_rule", "gated_delta") else 1
    return state.steps * state.size * (passes * state.kv_heads + state.reads)


def _decay_flops(call: Call) -> int | None:
    """S = exp(g) * S, a multiplication for each element of each state."""
    state = _state(call)
    return None if state is None else state.steps * state.size * state.kv_heads


def _linear_attention(domain: str) -> OpSpec:
    """LinearAttention: both domains have the same names for its operands."""
    names = ("query", "key", "value", "past_state", "decay", "beta")
    return OpSpec(
        op_type="LinearAttention",
        domain=domain,
        inputs=names,
        outputs=("output", "present_state"),
        saved=tuple(Saved(name) for name in names),  # the recurrence runs backwards over all
        saved_extra_bytes=unknown,  # states, every so many steps
        macs=_linear_attention_macs,
        flops=multiply_add(_linear_attention_macs, if_input(4, _decay_flops)),
        source="onnx 1.23 LinearAttention",
    )


_LINEAR_ATTENTION = (_linear_attention(""), _linear_attention("com.microsoft"))


DOMAIN = "com.microsoft"
_SOURCE = "onnxruntime ContribOperators.md"
_RANK = 3
_PACKED_HEADS_RANK = 5
_WEIGHTS = ("bias", "head_sink", "q_norm_weight", "k_norm_weight")
_BUFFERS = ("cos_cache", "sin_cache", "k_scale", "v_scale")


def _packed(operand: Operand | None, parts: int) -> Split | None:
    """[B, S, H, parts, D]: Q, K and V, or K and V, side by side in each head."""
    shape = dims(operand, _PACKED_HEADS_RANK)
    if shape is None or shape[3] != parts:
        return None
    return shape[0], shape[2], shape[1], shape[4]


def _multi_head(past: int, length: int) -> Layout:
    """query: [B, S, H * D], key: [B, T, H * D] or a cache [B, H, T, D], value the same; or packed
    as [B, S, H, 3, D], or key and value as [B, T, H, 2, D]; past: [B, H, P, D].
    """

    def layout(call: Call) -> Heads | None:
        heads = positive(call, "num_heads")
        cached = _cached_length(call, past, length)
        packed = _packed(call.input_at(0), 3) or _thirds(call, heads)
        if packed is not None:
            return attend(packed, packed, packed, cached)
        query = _split_heads(call.input_at(0), heads)
        both = _packed(call.input_at(1), 2)
        if both is not None:
            return attend(query, both, both, cached)
        key, value = (_split_heads(call.input_at(index), heads) for index in (1, 2))
        return attend(query, key, value, cached)

    return layout


def _thirds(call: Call, heads: int | None) -> Split | None:
    """query: [B, S, 3 * H * D] without a key."""
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
        # [B, S, (H + 2 G) D]: the heads of Q, then those of K, then those of V.
        size, rest = divmod(shape[2], heads + 2 * groups)
        key: Split | None = (shape[0], groups, shape[1], size)
        return None if rest else attend((shape[0], heads, shape[1], size), key, key, past)
    key, value = (_split_heads(call.input_at(index), groups) for index in (1, 2))
    return attend(_split_heads(call.input_at(0), heads), key, value, past)


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
        saved_extra_bytes=_logsumexp_bytes(layout),
        macs=_attention_macs(layout),
        flops=_attention_flops(layout, inputs.index("attention_bias")),
        source=_SOURCE,
    )


_MICROSOFT = (
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
    """input: [B, S, I], past: [2, B, H, P, D]; [tokens, I] where input ``padded`` is [B, S]."""

    def layout(call: Call) -> Heads | None:
        source = call.input_at(0 if padded is None else padded)
        batch = dims(source, _RANK if padded is None else 2)
        sizes, cached = _sizes(call), _cached_length(call, past, length, axis=3)
        if batch is None or sizes is None or cached is None:
            return None
        heads = positive(call, "num_heads") or 0
        return Heads(batch[0], heads, batch[1], cached + batch[1], *sizes)

    return layout


def _projected_and_logsumexp_bytes(layout: Layout) -> Formula:
    """Bytes of the projected Q, K and V, and of the logsumexp."""

    def _projected_bytes(call: Call) -> int | None:
        output = call.output_at(0)
        bits = times(None if output is None else output.bits, _projected(call))
        return None if bits is None else -(-bits // 8)

    return total(_projected_bytes, _logsumexp_bytes(layout))


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
        saved_extra_bytes=_projected_and_logsumexp_bytes(layout),
        macs=total(_projection_macs, _attention_macs(layout)),
        flops=_projecting_flops(layout, inputs.index("attention_bias")),
        source="onnxruntime ContribOperators.md",
    )


def _projecting_flops(layout: Layout, mask: int) -> Formula:
    """Projection with its bias, then attention."""

    def bias(call: Call) -> int | None:
        return 0 if call.input_at(2) is None else _projected(call)

    return total(multiply_add(_projection_macs, bias), _attention_flops(layout, mask))


_DENSE = _projecting(past=4, length=6)
_INPUTS = ("input", "weights", "bias", "mask_index", "past", "attention_bias")

_SELF_ATTENTION = (
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
        quantized=("weight", "bias"),
        differentiable=False,
        macs=total(_projection_macs, _attention_macs(_projecting(past=8))),
        flops=_projecting_flops(_projecting(past=8), mask=5),
        source="onnxruntime ContribOperators.md",
    ),
)

OPS = (*_ATTENTION, *_LINEAR_ATTENTION, *_MICROSOFT, *_SELF_ATTENTION)
