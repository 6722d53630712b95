"""Attention, in onnxruntime's own operators: fused, grouped, with a cache, quantized, rotated."""

from typing import Final

from runtime_kinds.kind import Kind, Numbers, header, text_maker

HEAD: Final = header(14, ms=1)
_QKV: Final = "float[2,5,8] q, float[2,7,8] k, float[2,7,8] v"
_CACHES: Final = "float[2,2,11,4] pk, float[2,2,11,4] pv"
_WIDE: Final = "float[2,2,11,8] pk, float[2,2,11,8] pv"
_PACKED: Final = "float[8,24] w, float[24] b"
_LENGTHS: Final = "int32[2] s = {4, 4}, int32 t = {5}"

CASES: Final[tuple[tuple[str, str, str], ...]] = (
    # inputs | weights, operator, outputs
    (f"float[2,5,8] x | {_PACKED}", "Attention <num_heads = 2> (x, w, b)", "y"),
    (f"float[2,5,8] x, int32[2] m | {_PACKED}", "Attention <num_heads = 2> (x, w, b, m)", "y"),
    (f"float[2,5,8] x, int32[2,5] m | {_PACKED}",
     "Attention <num_heads = 2, unidirectional = 1> (x, w, b, m)", "y, p"),
    (f"float[2,5,8] x, float[2,2,2,7,4] c | {_PACKED}",
     "Attention <num_heads = 2, unidirectional = 1> (x, w, b, , c)", "y, p"),
    ("float[2,5,8] x, float[1,2,5,5] a | float[8,28] w, float[28] b",
     "Attention <num_heads = 2, qkv_hidden_sizes = [8, 8, 12]> (x, w, b, , , a)", "y"),
    (_QKV, "MultiHeadAttention <num_heads = 2> (q, k, v)", "y"),
    (f"{_QKV} | float[24] b", "MultiHeadAttention <num_heads = 2> (q, k, v, b)", "y"),
    ("float[2,5,8] q, float[2,2,7,4] k, float[2,2,7,4] v",
     "MultiHeadAttention <num_heads = 2> (q, k, v)", "y"),
    (f"{_QKV}, {_CACHES}", "MultiHeadAttention <num_heads = 2> (q, k, v, , , , pk, pv)",
     "y, k2, v2"),
    (f"{_QKV}, int32[2,7] m", "MultiHeadAttention <num_heads = 2> (q, k, v, , m)", "y"),
    ("float[2,5,8] q, float[2,7,8] k, float[2,7,12] v",
     "MultiHeadAttention <num_heads = 2> (q, k, v)", "y, k2, v2"),
    (f"float[2,5,16] q, float[2,5,16] k, float[2,5,16] v | {_LENGTHS}",
     "GroupQueryAttention <num_heads = 2, kv_num_heads = 2> (q, k, v, , , s, t)", "y, k2, v2"),
    (f"float[2,5,32] q, float[2,5,16] k, float[2,5,16] v | {_LENGTHS}",
     "GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, k, v, , , s, t)", "y, k2, v2"),
    (f"float[2,5,64] q | {_LENGTHS}",
     "GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, , , , , s, t)", "y, k2, v2"),
    ((f"float[2,1,32] q, float[2,1,16] k, float[2,1,16] v, {_WIDE} | int32[2] s = {{11, 11}}, "
     "int32 t = {12}"), ("GroupQueryAttention <num_heads = 4, kv_num_heads = 2>"
     " (q, k, v, pk, pv, s, t)"), "y, k2, v2"),
    (f"float[2,1,32] q, float[2,1,16] k, float[2,1,16] v, {_WIDE}, int32[2] s, int32 t",
     "GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (q, k, v, pk, pv, s, t)", "y, k2, v2"),
    ("float[2,5,8] x, int64[2,5] p | float[17,4] c, float[17,4] s",
     "RotaryEmbedding <num_heads = 1, interleaved = 1> (x, p, c, s)", "y"),
    ("float[2,3,5,8] x, int64[1] p | float[17,4] c, float[17,4] s", "RotaryEmbedding(x, p, c, s)",
     "y"),
    (("float[2,5,8] x | uint8[8,24] w, float[24] b, float i = {0.1}, float s = {0.1}, "
     "uint8 z = {1}"), "QAttention <num_heads = 2> (x8, w, b, i, s, , z, z)", "y"),
    (("float[2,5,8] x, int32[2] m | int8[8,24] w, float[24] b, float i = {0.1}, "
     "float[24] s, uint8 z = {1}, int8[24] zw"),
     "QAttention <num_heads = 2> (x8, w, b, i, s, m, z, zw)", "y"),
    (("float[2,5,8] x, float[2,2,2,7,4] c | uint8[8,24] w, float[24] b, float i = {0.1}, "
     "float s = {0.1}, uint8 z = {1}"),
     "QAttention <num_heads = 2, unidirectional = 1> (x8, w, b, i, s, , z, z, c)", "y, p"),
    (("float[2,1,8] q, float[2,1,8] k, float[2,1,8] v, float[2,2,11,4] pk, float[2,2,11,4] pv,"
     " int32 n"), ("DecoderMaskedMultiHeadAttention <num_heads = 2, past_present_share_buffer = 1>"
     " (q, k, v, , , pk, pv, n)"), "y, k2, v2"),
    ("float[2,1,8] q, float[2,2,7,4] k, float[2,2,7,4] v",
     "DecoderMaskedMultiHeadAttention <num_heads = 2> (q, k, v)", "y"),
    ("float[2,5,16] q, float[2,5,8] k, float[2,5,8] v",
     'LinearAttention <q_num_heads = 4, kv_num_heads = 2, update_rule = "linear"> (q, k, v)',
     "y, state"),
)  # fmt: skip

FEEDS: Final[dict[str, dict[str, Numbers]]] = {
    "Attention": {"m": [5, 4]},
    "QAttention": {"m": [5, 4]},
    "GroupQueryAttention": {"s": [11, 11], "t": [12]},
    "DecoderMaskedMultiHeadAttention": {"n": [7]},
}


def _kind(case: tuple[str, str, str]) -> Kind:
    operands, node, made = case
    inputs, _, weights = operands.partition("|")
    stored = f"<{weights}>" if weights else ""
    op_type = node.partition(" <")[0].partition("(")[0]
    before = "x8, xs, xz = DynamicQuantizeLinear(x) " if op_type == "QAttention" else ""
    text = f"agraph ({inputs}) => ({made}) {stored} {{ {before}{made} = com.microsoft.{node} }}"
    feeds = {} if "int32[2,5] m" in inputs else FEEDS.get(op_type, {})
    return Kind(f"{node} of {operands}", text_maker(HEAD, text), feeds)


_NO_BIAS: Final = """agraph (float[2,5,8] x) => (y) <float[8,24] w> {
    y = com.microsoft.Attention <num_heads = 2, scale = 0.5> (x, w) }"""
_PACKED_ALL: Final = """agraph (float[2,5,2,3,4] q) => (y) {
    y = com.microsoft.MultiHeadAttention <num_heads = 2> (q) }"""
_PACKED_PART: Final = """agraph (float[2,5,8] q, float[2,7,2,2,4] k) => (y) {
    y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k) }"""
KINDS: Final = (
    *(_kind(case) for case in CASES),
    # onnxruntime 1.31.1 ends the process.
    Kind("attention of no bias", text_maker(HEAD, _NO_BIAS), runs=False),
    # No kernels for a CPU.
    Kind("attention packed", text_maker(HEAD, _PACKED_ALL), runs=False),
    Kind("attention packed in part", text_maker(HEAD, _PACKED_PART), runs=False),
)
