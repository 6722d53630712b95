"""Attention: projected heads, scores and masks, or the tiles of a flash attention kernel.

Q: [B, S, N * H], K, V: [B, L, N * H]; T: all keys, including the past. The tiles of the flash
attention kernels depend on the CPU: a tile fits into its level-2 cache.
"""

from collections.abc import Iterator

from onnxmem.ops.attention import Heads
from onnxmem.runtimes.onnxruntime.kernels.kernel import (
    ALWAYS,
    FLOAT_BYTES,
    HALF_BYTES,
    Kernel,
    KernelCall,
    Packed,
    Scratch,
    ScratchRule,
    UnknownError,
    nothing,
    product,
    since,
)
from onnxmem.runtimes.onnxruntime.kernels.mlas import packed_8_bit_bytes, packed_floats_bytes

_PRODUCT = 64
"""Bytes of MLAS's parameters for one product of a batch of products."""
_WITH_HEADS = 4
"""Rank of [B, N, S, H], with separate heads; [B, S, N * H] has rank 3."""
_CACHE_LINE = 64
"""Bytes; buffers of threads are rounded up to it, so that no two threads write to one line."""
_MATRIX = 2
"""Rank of the weights that are packed."""


def _self_attention(mask: int, past: int) -> ScratchRule:
    """X: [B, S, I], W: [I, 3 * N * H]: Q, K and V of all heads in one block, then the attention."""

    def blocks(call: KernelCall) -> Iterator[int]:
        batch, queries, _ = call.dims(0)
        heads = call.integer("num_heads", 0)
        sizes = call.integers("qkv_hidden_sizes", (call.dims(1)[1] // 3,) * 3)
        # The past is [2, B, N, P, H]: K and V of earlier steps in one tensor, hence axis 3.
        keys = queries + (call.dims(past)[3] if call.has(past) else 0)
        sizes_of = Heads(batch, heads, queries, keys, sizes[0] // heads, sizes[2] // heads)
        # One block for the three: the kernel runs one product per sample, head and matrix, which
        # writes its part of the block with the heads already separate.
        yield FLOAT_BYTES * batch * queries * sum(sizes)
        is_causal = call.integer("unidirectional", 0) == 1
        mask_index = mask if call.has(mask) else None
        yield from _all_scores(call, sizes_of, mask_index, is_causal=is_causal)

    return blocks


def _multi_head(call: KernelCall) -> Scratch:
    """Q, K, V with separate heads, then tiles of scores.

    It allocates all scores instead of tiles if there is a mask, a bias of the scores or a past, or
    if K and V are outputs or come with separate heads.
    """
    heads = _multi_head_sizes(call)
    are_separate = len(call.dims(1)) == _WITH_HEADS
    is_causal = call.integer("unidirectional", 0) == 1 and not are_separate
    needs_scores = are_separate or is_causal or call.has_output(1) or call.has_output(2)
    split = _split_heads(call, (0,) if are_separate else (0, 1, 2))
    # ``MultiHeadAttention<T>::Compute`` calls the flash attention kernel only in floats and without
    # a key padding mask, a bias of the scores, a past or a present, because that kernel has
    # arguments for none of them.
    if needs_scores or any(call.has(index) for index in (4, 5, 6, 7)):
        return split.then(_all_scores(call, heads, 4 if call.has(4) else None, is_causal=is_causal))
    return split.then((_flash_bytes(call, heads),))


def _multi_head_sizes(call: KernelCall) -> Heads:
    batch, queries, hidden = call.dims(0)
    heads, keys, values = call.integer("num_heads", 0), call.dims(1), call.dims(2)
    past = call.dims(6)[2] if call.has(6) else 0
    length = keys[2] if len(keys) == _WITH_HEADS else keys[1]
    width = values[3] if len(values) == _WITH_HEADS else values[2] // heads
    return Heads(batch, heads, queries, past + length, hidden // heads, width)


def _split_heads(call: KernelCall, indices: tuple[int, ...]) -> Scratch:
    """The inputs with separate heads.

    With a bias, each input also needs its part of the bias and, if it has more than one row, the
    biased input; both are freed once the heads are separate.
    """
    blocks: list[int] = []
    stops: list[int | None] = []
    for index in indices:
        batch, length, hidden = call.dims(index)
        separate = FLOAT_BYTES * batch * length * hidden
        # attention_utils.cc, MaybeTransposeToBNSHAndAddBias: a single row needs no transposition,
        # so ``AddBiasReshape`` adds the bias into the result; ``AddBiasTranspose`` adds it into a
        # buffer and transposes that. Both copy their part of the joint bias of Q, K and V.
        biased = [FLOAT_BYTES * hidden, *([separate] if length > 1 else [])] if call.has(3) else []
        blocks += [*biased, separate]
        stops += [*(len(blocks),) * len(biased), None]
    return Scratch(tuple(blocks), freed_after=tuple(stops))


def _one_step(call: KernelCall) -> Scratch:
    """Q: [B, 1, N * H]: separate heads, then all scores of one decoding step."""
    batch, queries, hidden = call.dims(0)
    heads = call.integer("num_heads", 0)
    if call.has(3) or queries != 1:
        raise UnknownError
    # K and V of a cross-attention do not change between steps: they come with separate heads, are
    # read where they are, and no past is added to them.
    is_cross = len(call.dims(1)) == _WITH_HEADS
    keys = call.dims(1)[2] if is_cross else call.scalar(7) + 1
    sizes = Heads(batch, heads, 1, keys, hidden // heads, hidden // heads)
    split = _split_heads(call, (0,) if is_cross else (0, 1, 2))
    return split.then(_all_scores(call, sizes, 4 if call.has(4) else None, is_causal=False))


def _all_scores(
    call: KernelCall, heads: Heads, mask: int | None, *, is_causal: bool
) -> Iterator[int]:
    """AttentionCPUBase::ApplyAttention: all scores, the mask in floats, the outputs of the heads.

    :param mask: index of the mask; ``None`` if there is none.
    """
    yield FLOAT_BYTES * heads.scores
    # A causal mask of one row would hide nothing: a single query comes after all keys.
    if is_causal and heads.queries > 1:
        yield FLOAT_BYTES * heads.batch * heads.queries * heads.keys
    elif mask is not None:
        is_full = len(call.dims(mask)) == 3  # noqa: PLR2004 - [B, S, T], else [B] or [B, T]
        yield FLOAT_BYTES * heads.batch * (heads.queries if is_full else 1) * heads.keys
    yield FLOAT_BYTES * heads.outputs
    yield _PRODUCT * heads.batch * heads.heads


def _group_query(call: KernelCall) -> Scratch:
    """Q: [B, S, N * H], K, V: [B, S, M * H] or all three in Q.

    Separate heads, a second time if they are rotated, then tiles of scores, or all scores over the
    length of the present buffer. In fp16 also Q and the output in floats, of which Q is freed
    before the output is allocated, and K and V in floats, one head after another.
    """
    heads, groups = call.integer("num_heads", 0), call.integer("kv_num_heads", 0)
    batch, queries, hidden = call.dims(0)
    width = call.element_bytes()
    parts = (heads, groups, groups) if call.has(1) else (heads + 2 * groups,)
    size = hidden // parts[0]
    # present_key is [B, M, L, H]. If the caller shares one buffer between past and present, L is
    # its capacity; ``GQAAttentionBase::ApplyAttention`` gives each row of scores L floats however
    # few of them are in use.
    buffer = call.out_dims(1)[2] if call.has_output(1) else _total_keys(call, queries)
    # The rotation is not in place. V is not rotated, but in one tensor with Q and K it is copied
    # too.
    rotated = parts[:2] if call.integer("do_rotary", 0) else ()
    split = tuple(width * batch * queries * part * size for part in (*parts, *rotated))
    keys = _total_keys(call, buffer)
    sizes = Heads(batch, heads, queries, keys, size, size)
    if _is_flash(call, keys):
        tiles = _step_bytes(call, sizes) if queries == 1 else _flash_bytes(call, sizes)
        return Scratch((*split, tiles))
    blocks = (*split, FLOAT_BYTES * batch * heads * queries * buffer)
    if width != HALF_BYTES:
        return Scratch(blocks)
    # ``ComputeAttentionProbs`` converts K, ``ComputeVxAttentionScore`` V, each for one head and
    # frees it after that head's product: two passes per head. Scores are floats in any case.
    return Scratch(
        (*blocks, *(FLOAT_BYTES * sizes.outputs,) * 2),
        freed_after=(*(None,) * len(blocks), len(blocks) + 1, None),
        per_pass=(FLOAT_BYTES * keys * size,),
        passes=2 * batch * heads,
    )


def _total_keys(call: KernelCall, buffer: int) -> int:
    """The number of all keys: ``total_sequence_length`` if it is constant, else the buffer's."""
    total = call.op_call.input_at(6)
    return buffer if total is None or total.value is None else call.scalar(6)


def _is_flash(call: KernelCall, keys: int) -> bool:
    """Whether the flash attention kernel runs.

    It needs floats, a present buffer and more than one key, and no option that needs all scores of
    a row at once.
    """
    # ``use_flash`` in contrib_ops/cpu/bert/group_query_attention.cc: a head sink (input 11), the
    # output of Q K^T, smooth softmax and softcap need every score of a row at once.
    needs_rows = (
        not call.has_output(1)
        or call.has(11)
        or call.has_output(3)
        or call.integer("smooth_softmax", 0) == 1
        or call.op_call.attributes.get("softcap", 0.0) != 0
    )
    return call.element_bytes() == FLOAT_BYTES and keys > 1 and not needs_rows


def _step_bytes(call: KernelCall, heads: Heads) -> int:
    """One query: per thread, the scores of one head and its output.

    With more threads than heads, keys beyond a tile are split: per thread a tile of scores, and per
    head and tile a partial output with its maximum and its sum.
    """
    tile, lines = _flash_tile(call, heads), heads.batch * heads.heads
    # One query has a line of work per head. Threads beyond that would be idle, unless keys are
    # split.
    if call.info.threads > lines and heads.keys > tile:
        partial = lines * -(-heads.keys // tile) * (2 + heads.value_size)
        return FLOAT_BYTES * (call.info.threads * tile + partial)
    return call.info.threads * FLOAT_BYTES * (heads.keys + heads.value_size)


def _attention(call: KernelCall) -> Scratch:
    """Q: [B, N, S, H] or [B, S, N * H]: all scores, and the mask if it is causal or boolean.

    In fp16 also the scores of one head in floats. ``nonpad_kv_seqlen`` replaces the causal mask.
    """
    width = call.element_bytes()
    queries = call.dims(0)
    if len(queries) == _WITH_HEADS:
        batch, heads, length, _ = queries
    else:
        batch, length, heads = *queries[:2], call.integer("q_num_heads", 0)
    keys = call.dims(1)[2 if len(call.dims(1)) == _WITH_HEADS else 1]
    keys += call.dims(4)[2] if call.has(4) else 0
    blocks = [width * batch * heads * length * keys]
    # A mask in the type of the scores is added as it is; ``make_copy`` rewrites a boolean one in
    # that type, and the causal one is merged into the copy.
    is_causal = call.integer("is_causal", 0) == 1 and not call.has(6)
    if is_causal or (call.has(3) and call.type(3) == "bool"):
        blocks.insert(0, width * (product(call.dims(3)) if call.has(3) else length * keys))
    if width != HALF_BYTES:
        return Scratch(tuple(blocks))
    head = FLOAT_BYTES * length * keys
    return Scratch(tuple(blocks), per_pass=(head,), passes=batch * heads)


def _flash_bytes(call: KernelCall, heads: Heads) -> int:
    """Per thread: the row maxima and sums of a tile, its scores and its output.

    contrib_ops/cpu/bert/multihead_attention.cc: Compute.
    """
    tile = _flash_tile(call, heads)
    # With more rows than H + Hv, the scores of a tile would take more of the cache than its K and
    # V.
    rows = min(tile, heads.head_size + heads.value_size, heads.queries)
    columns = min(tile, heads.keys)
    return call.info.threads * FLOAT_BYTES * rows * (2 + columns + heads.value_size)


def _flash_tile(call: KernelCall, heads: Heads) -> int:
    """The number of keys in a tile: its keys and values fill a quarter of the level-2 cache."""
    return max(
        call.info.l2_cache_bytes // (FLOAT_BYTES * 4 * (heads.head_size + heads.value_size)), 1
    )


def _linear(call: KernelCall) -> tuple[int, ...]:
    """Q: [B, S, N * H], V: [B, S, M * Hv]: per thread, one key and one retrieved value.

    Measured with 1, 2, 4 and 8 threads: every thread has its buffer, even without work.
    """
    width = call.dims(0)[2] // call.integer("q_num_heads", 0)
    value_width = call.dims(2)[2] // call.integer("kv_num_heads", 0)
    line_bytes = -(-FLOAT_BYTES * (width + value_width) // _CACHE_LINE) * _CACHE_LINE
    return (call.info.threads * line_bytes,)


def _packed_floats(call: KernelCall) -> Iterator[Packed]:
    """W: [I, 3 * N * H]: a matrix per head, for Q, K and V each."""
    heads = call.integer("num_heads", 0)
    if not call.is_constant(1) or len(call.dims(1)) != _MATRIX or not heads:
        return
    depth, width = call.dims(1)
    hidden = call.integers("qkv_hidden_sizes", (width // 3,) * 3)
    # The columns of one head are a matrix of their own, because each product computes one head:
    # every matrix is padded to MLAS's panels by itself.
    yield Packed(1, sum(heads * packed_floats_bytes(depth, size // heads) for size in hidden))


def _packed_integers(call: KernelCall) -> Iterator[Packed]:
    """W: [I, 3 * N * H]: a matrix per head, for Q, K and V each."""
    heads = call.integer("num_heads", 0)
    if call.is_constant(1) and len(call.dims(1)) == _MATRIX and heads:
        depth, width = call.dims(1)
        is_signed = call.type(1) == "int8"
        head_bytes = packed_8_bit_bytes(depth, width // (3 * heads), is_signed=is_signed)
        yield Packed(1, 3 * heads * head_bytes)


KERNELS = (
    Kernel(
        "com.microsoft.Attention",
        "contrib_ops/cpu/bert/attention.cc: Compute, PrePack",
        _self_attention(mask=3, past=4),
        _packed_floats,
        cuda_may_inplace=((4, 1),),
    ),
    Kernel(
        "com.microsoft.QAttention",
        "contrib_ops/cpu/quantization/attention_quant.cc: Compute, PrePack",
        _self_attention(mask=5, past=8),
        _packed_integers,
    ),
    Kernel(
        "com.microsoft.MultiHeadAttention",
        "contrib_ops/cpu/bert/multihead_attention.cc: Compute",
        _multi_head,
    ),
    Kernel(
        "com.microsoft.DecoderMaskedMultiHeadAttention",
        "contrib_ops/cpu/bert/decoder_masked_multihead_attention.cc: Compute",
        _one_step,
        cuda_may_inplace=((5, 1), (6, 2)),
    ),
    Kernel(
        "com.microsoft.DecoderMaskedSelfAttention",
        "contrib_ops/cuda/bert/decoder_masked_self_attention.cc: CUDA only",
        cuda_may_inplace=((4, 1),),
    ),
    Kernel(
        "com.microsoft.GroupQueryAttention",
        "contrib_ops/cpu/bert/group_query_attention.cc, gqa_attention_base.h: ApplyAttention",
        _group_query,
        cuda_may_inplace=((3, 1), (4, 2)),
        float16=ALWAYS,
    ),
    Kernel(
        "com.microsoft.SparseAttention",
        "contrib_ops/cpu/sparse/sparse_attention.cc; scratch unknown",
        cuda_may_inplace=((3, 1), (4, 2)),
        float16=ALWAYS,
    ),
    Kernel(
        "Attention",
        "core/providers/cpu/llm/attention.cc: ApplyAttention",
        _attention,
        float16=since(1),
    ),
    Kernel(
        "com.microsoft.LinearAttention",
        "contrib_ops/cpu/bert/linear_attention.cc: Compute, ProcessHead",
        _linear,
    ),
    Kernel(
        "com.microsoft.GatedDeltaNet",
        "contrib_ops/cpu, gated_delta_net.cc: Compute; measured only",
        nothing,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel(
        "com.microsoft.LinearAttentionGate",
        "contrib_ops/cpu/bert/linear_attention_gates.cc: Compute",
        nothing,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel(
        "RotaryEmbedding",
        "core/providers/cpu/llm/rotary_embedding.cc: Compute",
        nothing,
        float16=since(1),
    ),
    Kernel(
        "com.microsoft.RotaryEmbedding",
        "contrib_ops/cpu/bert/rotary_embedding.cc: Compute",
        nothing,
        float16=ALWAYS,
    ),
    Kernel(
        "com.microsoft.MRotaryEmbedding",
        "get_all_opkernel_def() of onnxruntime 1.31.1: types only",
        float16=ALWAYS,
    ),
)
