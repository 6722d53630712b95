"""Attention: ``softmax(Q @ K') @ V`` for every head, and what comes around it.

Every query meets every key: positions that a causal mask, a window or padding hides are counted in
full, as the matrix products compute them. A key head that several query heads share is counted for
each of them. FLOPs of one score: scale 1, softmax 5, mask 1, soft cap 3.
"""

from collections.abc import Callable
from dataclasses import dataclass

from onnxmem.ops.combining import constant, dims, if_input, if_set, multiply_add, positive
from onnxmem.ops.formulas import int_attribute, num_elements, times
from onnxmem.ops.spec import Call, Formula, Operand, OpSpec, Saved, unknown

_LOGSUMEXP_BYTES = 4
_PACKED_RANK = 3


@dataclass(frozen=True, slots=True)
class Heads:
    """Q: [B, H, S, D], K: [B, H, T, D], V: [B, H, T, E] -> Y: [B, H, S, E]."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_size: int
    value_size: int

    @property
    def scores(self) -> int:
        """Elements of Q @ K': B * H * S * T."""
        return self.batch * self.heads * self.queries * self.keys

    @property
    def macs(self) -> int:
        """Q @ K' sums over D, the product with V makes E: B * H * S * T * (D + E)."""
        return self.scores * (self.head_size + self.value_size)


Split = tuple[int, int, int, int]
"""Q, or K, or V: batch, heads, length, head size."""

Layout = Callable[[Call], Heads | None]
"""How an operator's operands hold the heads."""


def attention_macs(layout: Layout) -> Formula:
    """Count the two matrix products."""

    def formula(call: Call) -> int | None:
        heads = layout(call)
        return None if heads is None else heads.macs

    return formula


def per_score(count: int, layout: Layout) -> Formula:
    """``count`` for each element of Q @ K'."""

    def formula(call: Call) -> int | None:
        heads = layout(call)
        return None if heads is None else count * heads.scores

    return formula


def attention_flops(layout: Layout, mask: int) -> Formula:
    """Products, scale, softmax, soft cap, and the mask or bias at input ``mask`` where given."""
    return multiply_add(
        attention_macs(layout),
        per_score(6, layout),
        if_input(mask, per_score(1, layout)),
        if_set("softcap", per_score(3, layout)),
    )


def logsumexp_bytes(layout: Layout) -> Formula:
    """Bytes of one float32 per query, from which a fused backward makes the softmax again."""

    def formula(call: Call) -> int | None:
        heads = layout(call)
        if heads is None:
            return None
        return _LOGSUMEXP_BYTES * heads.batch * heads.heads * heads.queries

    return formula


def split_heads(operand: Operand | None, heads: int | None) -> Split | None:
    """[B, H, S, D] as it is, [B, S, H * D] taken apart."""
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
    """Length of a cache, as [B, H, P, D]; 0 where none is given."""
    if operand is None:
        return 0
    shape = dims(operand, axis + 2)
    return None if shape is None else shape[axis]


def cached_length(call: Call, past: int | None, length: int | None, axis: int = 2) -> int | None:
    """Length of the cache at input ``past``: what input ``length`` says if it is a constant, as
    where a cache and its successor share one buffer; else the whole cache.
    """
    filled = None if length is None else constant(call.input_at(length))
    if filled is not None and filled >= 0:
        return filled
    return past_length(None if past is None else call.input_at(past), axis)


def attend(
    query: Split | None, key: Split | None, value: Split | None, past: int | None
) -> Heads | None:
    """Bring queries, new keys and values, and the cache's length together, if they fit."""
    if query is None or key is None or value is None or past is None:
        return None
    batch, heads, queries, head_size = query
    shares_heads = key[1] > 0 and heads % key[1] == 0
    if not shares_heads or key[0] != batch or key[3] != head_size or key[:3] != value[:3]:
        return None
    return Heads(batch, heads, queries, past + key[2], head_size, value[3])


def _heads(call: Call) -> Heads | None:
    """Q: [B, H, S, D] or [B, S, H * D]; K and V alike, of ``kv_num_heads``; past: [B, H, P, D]."""
    kv_heads = positive(call, "kv_num_heads")
    return attend(
        split_heads(call.input_at(0), positive(call, "q_num_heads")),
        split_heads(call.input_at(1), kv_heads),
        split_heads(call.input_at(2), kv_heads),
        past_length(call.input_at(4)),
    )


def rotation_flops(call: Call) -> int | None:
    """X: [B, H, S, D] or [B, S, H * D]: two products and a sum per rotated element.

    ``rotary_embedding_dim`` of D are rotated, all where it is 0.
    """
    rotated, elements = (
        int_attribute(call, "rotary_embedding_dim", 0),
        num_elements(call.input_at(0)),
    )
    if rotated <= 0:
        return times(3, elements)
    heads = split_heads(call.input_at(0), positive(call, "num_heads"))
    if heads is None or elements is None or not 0 < rotated <= heads[3]:
        return None
    return 3 * (elements // heads[3]) * rotated


def rotary_embedding(domain: str, inputs: tuple[str, ...], output: str) -> OpSpec:
    """RotaryEmbedding: both domains order and name its operands in their own way."""
    return OpSpec(
        op_type="RotaryEmbedding",
        domain=domain,
        inputs=inputs,
        outputs=(output,),
        buffers=("cos_cache", "sin_cache"),
        # dX = dY turned back
        saved=(Saved("cos_cache"), Saved("sin_cache"), Saved("position_ids")),
        flops=rotation_flops,
        source="derivative of a rotation",
    )


OPS = (
    OpSpec(
        op_type="Attention",
        inputs=("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"),
        outputs=("Y", "present_key", "present_value", "qk_matmul_output"),
        # With P = softmax(Q @ K'): dV = P' @ dY, dS = P * (dY @ V' - sum(dY * Y)),
        # dQ = dS @ K, dK = dS' @ Q; P is made again from Q, K and the logsumexp
        saved=tuple(Saved(n) for n in ("Q", "K", "V", "Y", "attn_mask", "past_key", "past_value")),
        saved_extra_bytes=logsumexp_bytes(_heads),
        macs=attention_macs(_heads),
        flops=attention_flops(_heads, mask=3),
        source="torch derivatives.yaml: _scaled_dot_product_efficient_attention",
    ),
    OpSpec(
        op_type="FlexAttention",
        domain="ai.onnx.preview",
        inputs=("Q", "K", "V"),
        outputs=("Y",),
        saved=(Saved("Q"), Saved("K"), Saved("V"), Saved("Y")),  # as Attention
        saved_extra_bytes=logsumexp_bytes(_heads),
        macs=attention_macs(_heads),
        flops=unknown,  # the two subgraphs may compute anything
        source="torch flex_attention",
    ),
    rotary_embedding("", ("X", "cos_cache", "sin_cache", "position_ids"), "Y"),
)
