"""Attention with fewer heads of keys and values: GroupQueryAttention, and ONNX's own Attention."""

from onnxmem.runtimes.onnxruntime.kernel_use import Use, product
from onnxmem.runtimes.onnxruntime.scratch.attention import Heads, flash_bytes, flash_tile
from onnxmem.runtimes.onnxruntime.scratch.rule import Rule, Scratch

_FLOAT = 4
_HALF = 2
_WITH_HEADS = 4
"""Rank of [B, N, S, H], whose heads are apart; [B, S, N * H] has one less."""


def _group_query(use: Use) -> Scratch:
    """Q: [B, S, N * H], K, V: [B, S, M * H] or all three in Q.

    The heads apart, once more where they are rotated; then tiles of scores, or all scores over the
    whole of the present buffer. In fp16, Q and the output in floats, and K and V of one head after
    another; Q goes head by head too, before the output comes.
    """
    heads, groups = use.integer("num_heads", 0), use.integer("kv_num_heads", 0)
    batch, queries, hidden = use.dims(0)
    width = use.element_bytes()
    parts = (heads, groups, groups) if use.has(1) else (heads + 2 * groups,)
    size = hidden // parts[0]
    buffer = use.out_dims(1)[2] if use.has_output(1) else _total_keys(use, queries)
    rotated = parts[:2] if use.integer("do_rotary", 0) else ()
    split = tuple(width * batch * queries * part * size for part in (*parts, *rotated))
    keys = _total_keys(use, buffer)
    sizes = Heads(batch, heads, queries, keys, size, size)
    if _is_flash(use, keys):
        tiles = _step_bytes(use, sizes) if queries == 1 else flash_bytes(use, sizes)
        return Scratch((*split, tiles))
    held = (*split, _FLOAT * batch * heads * queries * buffer)
    if width != _HALF:
        return Scratch(held)
    return Scratch(
        (*held, *(_FLOAT * sizes.output,) * 2),
        freed_after=(*(None,) * len(held), len(held) + 1, None),
        per_pass=(_FLOAT * keys * size,),
        passes=2 * batch * heads,
    )


def _total_keys(use: Use, buffer: int) -> int:
    """Keys in all: what ``total_sequence_length`` says; where it is computed, the buffer's."""
    total = use.call.input_at(6)
    return buffer if total is None or total.value is None else use.whole(6)


def _is_flash(use: Use, keys: int) -> bool:
    """Floats, more than one key in a buffer, and nothing that needs all scores of a row at once."""
    needs_rows = (
        not use.has_output(1)
        or use.has(11)
        or use.has_output(3)
        or use.integer("smooth_softmax", 0) == 1
        or use.call.attributes.get("softcap", 0.0) != 0
    )
    return use.element_bytes() == _FLOAT and keys > 1 and not needs_rows


def _step_bytes(use: Use, heads: Heads) -> int:
    """One query: the scores of one head and its output, for each thread.

    With more threads than heads, keys beyond a tile are cut: a tile of scores for each thread, and
    each head's part of the output with its maximum and its sum.
    """
    tile, lines = flash_tile(use, heads), heads.batch * heads.heads
    if use.site.threads > lines and heads.keys > tile:
        partial = lines * -(-heads.keys // tile) * (2 + heads.value_size)
        return _FLOAT * (use.site.threads * tile + partial)
    return use.site.threads * _FLOAT * (heads.keys + heads.value_size)


def _attention(use: Use) -> Scratch:
    """Q: [B, N, S, H] or [B, S, N * H]: all scores; the mask, where it is causal or of booleans.

    In fp16, one head's scores in floats too. ``nonpad_kv_seqlen`` takes the causal mask's place.
    """
    width = use.element_bytes()
    queries = use.dims(0)
    if len(queries) == _WITH_HEADS:
        batch, heads, length, _ = queries
    else:
        batch, length, heads = *queries[:2], use.integer("q_num_heads", 0)
    keys = use.dims(1)[2 if len(use.dims(1)) == _WITH_HEADS else 1]
    keys += use.dims(4)[2] if use.has(4) else 0
    blocks = [width * batch * heads * length * keys]
    is_causal = use.integer("is_causal", 0) == 1 and not use.has(6)
    if is_causal or (use.has(3) and use.type(3) == "bool"):
        blocks.insert(0, width * (product(use.dims(3)) if use.has(3) else length * keys))
    if width != _HALF:
        return Scratch(tuple(blocks))
    head = _FLOAT * length * keys
    return Scratch(tuple(blocks), per_pass=(head,), passes=batch * heads)


RULES = (
    Rule(
        "GroupQueryAttention",
        "com.microsoft",
        _group_query,
        "contrib_ops/cpu/bert/group_query_attention.cc, gqa_attention_base.h: ApplyAttention",
    ),
    Rule("Attention", "", _attention, "core/providers/cpu/llm/attention.cc: ApplyAttention"),
)
