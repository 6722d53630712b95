"""Attention in com.microsoft: projected heads, scores, masks; tiles where a flash kernel fits.

Q: [B, S, N * H], K, V: [B, L, N * H]; T: keys in all, the past included. The tiles of the flash
kernels depend on the processor: a tile of scores fits into its level-2 cache.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from onnxmem.runtimes.onnxruntime.kernel_use import UnknownError, Use
from onnxmem.runtimes.onnxruntime.scratch.rule import Blocks, Rule, Scratch

_FLOAT = 4
_PRODUCT = 64
"""Bytes of MLAS's parameters of one product in a batch of them."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The sizes of one attention, in elements."""

    batch: int
    heads: int
    queries: int
    keys: int
    """The past included."""
    size: int
    value_size: int

    @property
    def scores(self) -> int:
        """B * N * S * T."""
        return self.batch * self.heads * self.queries * self.keys

    @property
    def output(self) -> int:
        """B * S * N * Hv."""
        return self.batch * self.heads * self.queries * self.value_size


def flash_bytes(use: Use, heads: Heads) -> int:
    """Per thread: a tile's row maxima and sums, its scores and its output.

    contrib_ops/cpu/bert/multihead_attention.cc: Compute; ``l2_cache_bytes`` of the site.
    """
    tile = flash_tile(use, heads)
    rows = min(tile, heads.size + heads.value_size, heads.queries)
    columns = min(tile, heads.keys)
    return use.site.threads * _FLOAT * rows * (2 + columns + heads.value_size)


def flash_tile(use: Use, heads: Heads) -> int:
    """Keys of a tile: a quarter of the level-2 cache holds its keys and values."""
    return max(use.site.l2_cache_bytes // (_FLOAT * 4 * (heads.size + heads.value_size)), 1)


def _whole(use: Use, heads: Heads, mask: int | None, *, is_causal: bool) -> Iterator[int]:
    """AttentionCPUBase::ApplyAttention: all scores, the mask in floats, the heads' outputs."""
    yield _FLOAT * heads.scores
    if is_causal and heads.queries > 1:
        yield _FLOAT * heads.batch * heads.queries * heads.keys
    elif mask is not None:
        is_full = len(use.dims(mask)) == 3  # noqa: PLR2004 - [B, S, T], else [B] or [B, T]
        yield _FLOAT * heads.batch * (heads.queries if is_full else 1) * heads.keys
    yield _FLOAT * heads.output
    yield _PRODUCT * heads.batch * heads.heads


def _self_attention(mask: int, past: int) -> Blocks:
    """X: [B, S, I], W: [I, 3 * N * H]: Q, K and V of all heads in one piece, then the attention."""

    def blocks(use: Use) -> Iterator[int]:
        batch, queries, _ = use.dims(0)
        heads = use.integer("num_heads", 0)
        sizes = use.integers("qkv_hidden_sizes", (use.dims(1)[1] // 3,) * 3)
        keys = queries + (use.dims(past)[3] if use.has(past) else 0)
        sizes_of = Heads(batch, heads, queries, keys, sizes[0] // heads, sizes[2] // heads)
        yield _FLOAT * batch * queries * sum(sizes)
        is_causal = use.integer("unidirectional", 0) == 1
        given = mask if use.has(mask) else None
        yield from _whole(use, sizes_of, given, is_causal=is_causal)

    return blocks


def _multi_head(use: Use) -> Scratch:
    """Q, K, V: the heads apart; then tiles of scores.

    All scores where there is a mask, a bias of the scores or a past, or where K and V are outputs
    or come with their heads apart.
    """
    heads = _multi_head_sizes(use)
    has_heads_apart = len(use.dims(1)) == 4  # noqa: PLR2004 - [B, N, L, H]
    is_causal = use.integer("unidirectional", 0) == 1 and not has_heads_apart
    needs_scores = has_heads_apart or is_causal or use.has_output(1) or use.has_output(2)
    split = _split_heads(use, (0,) if has_heads_apart else (0, 1, 2))
    if needs_scores or any(use.has(place) for place in (4, 5, 6, 7)):
        return split.then(_whole(use, heads, 4 if use.has(4) else None, is_causal=is_causal))
    return split.then((flash_bytes(use, heads),))


def _multi_head_sizes(use: Use) -> Heads:
    batch, queries, hidden = use.dims(0)
    heads, keys, values = use.integer("num_heads", 0), use.dims(1), use.dims(2)
    past = use.dims(6)[2] if use.has(6) else 0
    length = keys[2] if len(keys) == 4 else keys[1]  # noqa: PLR2004 - [B, N, L, H] or [B, L, N * H]
    width = values[3] if len(values) == 4 else values[2] // heads  # noqa: PLR2004 - the same
    return Heads(batch, heads, queries, past + length, hidden // heads, width)


def _split_heads(use: Use, places: tuple[int, ...]) -> Scratch:
    """The heads apart. With a bias: its part for each input, and the input with it added, which
    are freed when the heads lie apart; one query has them apart already.
    """
    blocks: list[int] = []
    stops: list[int | None] = []
    for place in places:
        batch, length, hidden = use.dims(place)
        apart = _FLOAT * batch * length * hidden
        biased = [_FLOAT * hidden, *([apart] if length > 1 else [])] if use.has(3) else []
        blocks += [*biased, apart]
        stops += [*(len(blocks),) * len(biased), None]
    return Scratch(tuple(blocks), freed_after=tuple(stops))


def _one_step(use: Use) -> Scratch:
    """Q: [B, 1, N * H]: the heads apart, then all scores of one step."""
    batch, queries, hidden = use.dims(0)
    heads = use.integer("num_heads", 0)
    if use.has(3) or queries != 1:
        raise UnknownError
    is_cross = len(use.dims(1)) == 4  # noqa: PLR2004 - [B, N, L, H]
    keys = use.dims(1)[2] if is_cross else use.whole(7) + 1
    sizes = Heads(batch, heads, 1, keys, hidden // heads, hidden // heads)
    split = _split_heads(use, (0,) if is_cross else (0, 1, 2))
    return split.then(_whole(use, sizes, 4 if use.has(4) else None, is_causal=False))


RULES = (
    Rule(
        "Attention",
        "com.microsoft",
        _self_attention(mask=3, past=4),
        "contrib_ops/cpu/bert/attention.cc: Compute",
    ),
    Rule(
        "QAttention",
        "com.microsoft",
        _self_attention(mask=5, past=8),
        "contrib_ops/cpu/quantization/attention_quant.cc: Compute",
    ),
    Rule(
        "MultiHeadAttention",
        "com.microsoft",
        _multi_head,
        "contrib_ops/cpu/bert/multihead_attention.cc: Compute",
    ),
    Rule(
        "DecoderMaskedMultiHeadAttention",
        "com.microsoft",
        _one_step,
        "contrib_ops/cpu/bert/decoder_masked_multihead_attention.cc: Compute",
    ),
)
