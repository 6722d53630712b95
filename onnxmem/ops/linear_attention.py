"""Linear attention: a matrix per head takes the keys and values in, and answers the queries.

The recurrence itself is counted, step by step; kernels that work on chunks of steps compute more.
The work on vectors (scale, gates, differences) is left out beside that on matrices.
"""

from dataclasses import dataclass

from onnxmem.ops.combining import dims, if_input, multiply_add, positive
from onnxmem.ops.formulas import str_attribute
from onnxmem.ops.spec import Call, Dims, OpSpec, Saved, unknown

_PACKED_RANK = 3


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
    query, key, value = (dims(call.input_at(place), _PACKED_RANK) for place in range(3))
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
    passes = 2 if "delta" in str_attribute(call, "update_rule", "gated_delta") else 1
    return state.steps * state.size * (passes * state.kv_heads + state.reads)


def _decay_flops(call: Call) -> int | None:
    """S = exp(g) * S, a product for each element of each state."""
    state = _state(call)
    return None if state is None else state.steps * state.size * state.kv_heads


def _linear_attention(domain: str) -> OpSpec:
    """LinearAttention: both domains name its operands alike."""
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


OPS = (_linear_attention(""), _linear_attention("com.microsoft"))
