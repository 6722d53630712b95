"""Weights in floats: matrices in panels, turned filters, fp16 weights in float32."""

from collections.abc import Iterator

from onnxmem.runtimes.onnxruntime.kernel_use import Use, product
from onnxmem.runtimes.onnxruntime.mlas import packed_floats_bytes
from onnxmem.runtimes.onnxruntime.prepacking.rule import Packed, Packs, Rule

_FLOAT = 4
_HALF = 2
_MATRIX = 2
"""Rank of the only weights that a matrix product packs."""


def _matrix(use: Use) -> Iterator[Packed]:
    """B: [K, N], or [N, K] with ``transB``."""
    if not use.is_constant(1) or use.type(1) != "float32" or len(use.dims(1)) != _MATRIX:
        return
    rows, columns = use.dims(1)
    depth, width = (columns, rows) if use.integer("transB", 0) else (rows, columns)
    if rows and columns:
        yield Packed(1, packed_floats_bytes(depth, width))


def _recurrent(use: Use) -> Iterator[Packed]:
    """W: [D, gates * H, I], R: [D, gates * H, H]: each direction's matrix."""
    for place in (1, 2):
        if use.is_constant(place):
            directions, width, depth = use.dims(place)
            yield Packed(place, directions * packed_floats_bytes(depth, width))


def _gated(use: Use) -> Iterator[Packed]:
    """R of a GRU: the update and reset gates apart from the hidden one."""
    if use.is_constant(1):
        directions, width, depth = use.dims(1)
        yield Packed(1, directions * packed_floats_bytes(depth, width))
    if use.is_constant(2):
        directions, width, depth = use.dims(2)
        parts = packed_floats_bytes(depth, 2 * width // 3) + packed_floats_bytes(depth, width // 3)
        yield Packed(2, directions * parts)


def _attention(use: Use) -> Iterator[Packed]:
    """W: [I, 3 * N * H]: the matrix of each head, of Q, K and V."""
    heads = use.integer("num_heads", 0)
    if not use.is_constant(1) or len(use.dims(1)) != _MATRIX or not heads:
        return
    depth, width = use.dims(1)
    hidden = use.integers("qkv_hidden_sizes", (width // 3,) * 3)
    yield Packed(1, sum(heads * packed_floats_bytes(depth, size // heads) for size in hidden))


def _turned_filter(use: Use) -> Iterator[Packed]:
    """W: [C, M/g, *K]: transposed, where that moves anything; taken like any buffer."""
    if not use.is_constant(1):
        return
    depth, width = use.dims(1)[0] // use.integer("group", 1), product(use.dims(1)[1:])
    if depth > 1 and width > 1:
        yield Packed(1, _FLOAT * product(use.dims(1)), is_reserved=False)


def _halves(*places: int) -> Packs:
    """Weights in fp16, in floats."""

    def packs(use: Use) -> Iterator[Packed]:
        for place in places:
            if use.is_constant(place) and use.element_bytes(place) == _HALF:
                yield Packed(place, _FLOAT * product(use.dims(place)), is_shared=False)

    return packs


_MATMUL = "core/providers/cpu/math/matmul.cc, gemm.cc: GemmPackBFp32"
_LAYER_NORM = "core/providers/cpu/nn/layer_norm_impl.cc: PrePack"
_SKIP_LAYER_NORM = "contrib_ops/cpu/skip_layer_norm.cc: PrePack"

RULES = (
    Rule("Gemm", "", _matrix, _MATMUL),
    Rule("MatMul", "", _matrix, _MATMUL),
    *(
        Rule(op_type, "com.microsoft", _matrix, _MATMUL)
        for op_type in ("FusedGemm", "FusedMatMul", "TransposeMatMul")
    ),
    Rule("LSTM", "", _recurrent, "core/providers/cpu/rnn/deep_cpu_lstm.cc: PrePack"),
    Rule("GRU", "", _gated, "core/providers/cpu/rnn/deep_cpu_gru.cc: PrePack"),
    Rule("Attention", "com.microsoft", _attention, "contrib_ops/cpu/bert/attention.cc: PrePack"),
    *(
        Rule(op_type, domain, _turned_filter, "core/providers/cpu/nn/conv_transpose.cc: PrePack")
        for op_type, domain in (
            ("ConvTranspose", ""),
            ("ConvTransposeWithDynamicPads", "com.microsoft"),
        )
    ),
    Rule("LayerNormalization", "", _halves(1, 2), _LAYER_NORM),
    Rule("RMSNormalization", "", _halves(1), _LAYER_NORM),
    Rule("SimplifiedLayerNormalization", "", _halves(1), _LAYER_NORM),
    Rule("SkipLayerNormalization", "com.microsoft", _halves(1, 2, 3, 4), _SKIP_LAYER_NORM),
    Rule("SkipSimplifiedLayerNormalization", "com.microsoft", _halves(1, 2, 3), _SKIP_LAYER_NORM),
)
