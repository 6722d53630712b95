"""Single operators of onnxruntime's own domain, com.microsoft, that a CPU runs."""

from typing import Final

from runtime_kinds.kind import Kind, Numbers, header, text_maker

HEAD: Final = header(13, ms=1)
_IMAGE: Final = "float[1,3,11,13] x"
_BOXES: Final = [0.1, 0.1, 0.8, 0.9, 0.2, 0.0, 1.0, 0.7]

CASES: Final[tuple[tuple[str, str, str], ...]] = (
    # inputs | weights, operator, outputs
    ("float[2,7,5] a, float[2,7,3] b", "TransposeMatMul <transA = 1> (a, b)", "y"),
    ("float[2,5,7] a, float[3,7] b", "TransposeMatMul <transB = 1, alpha = 0.5> (a, b)", "y"),
    ("float[5,7] x | int32 k = {-1}", "ExpandDims(x, k)", "y"),
    ("float[5,7] x | int32 k = {1}", "ExpandDims(x, k)", "y"),
    ("float[5,7] x, int32 k", "ExpandDims(x, k)", "y"),
    ("float[5,7] x", "SampleOp(x)", "y"),
    ("float[11] x", "Unique(x)", "y, places, counts"),
    ("int32[5,7] x", "MurmurHash3(x)", "y"),
    ("int64[3] x", "MurmurHash3 <positive = 0, seed = 7> (x)", "y"),
    ("float[1,5,7] x", "UnfoldTensor <dim = -1, size = 3, step = 2> (x)", "y"),
    ("float[2,5,11] x", "UnfoldTensor <dim = 1, size = 3> (x)", "y"),
    ("float[1,5,7] x", "DynamicTimeWarping(x)", "y"),
    ("float[5,7] x | float m = {0.5}", "ScaledSiLU(x, m)", "y"),
    ("float[5,7] x, float[5,7] u, float[5,1] g", "GatedAdd(x, u, g)", "y"),
    ("float[5,8] x, float[8] g, float[5,8] z", "GatedRMSNorm(x, g, z)", "y"),
    ("float[2,5,7] x, float[7] b", "FastGelu(x, b)", "y"),
    ("float[2,5,7] x, int64 k", "Trilu <upper = 0> (x, k)", "y"),
    ("float[2,5,7] x | int64[2,1] k = {1, 0}", "GatherND(x, k)", "y"),
    ("float[2,5,7] x, int32[4,2] k", "GatherND(x, k)", "y"),
    ("float[2,5] x, int64[4] p", "Pad(x, p)", "y"),
    ("float[2,5] x | int64[4] p = {1, 2, 3, 4}, float v = {1}", "Pad(x, p, v)", "y"),
    ("float[2,5] x | int64[1,4] p = {1, 2, 3, 4}", 'Pad <mode = "edge"> (x, p)', "y"),
    (f"{_IMAGE}, float[2,4] r | int32[2] k = {{0, 0}}, int32[2] c = {{5, 7}}",
     "CropAndResize(x, r, k, c)", "y"),
    (f"{_IMAGE}, float[2,4] r, int32[2] k, int32[2] size",
     'CropAndResize <mode = "nearest"> (x, r, k, size)', "y"),
    ("float[1,3,5,7] x | float[3,2,3,3] w, int64[4] p = {1, 1, 1, 1}",
     "ConvTransposeWithDynamicPads <strides = [2, 2], output_padding = [1, 1]> (x, w, p)", "y"),
    ("float[1,3,5,7] x, int64[4] p | float[3,2,3,3] w",
     "ConvTransposeWithDynamicPads <strides = [2, 2]> (x, w, p)", "y"),
    ("int32[5,7] s | float[16,1,3,11] w, float[16] b, float[13,11] c",
     ("WordConvEmbedding <embedding_size = 16, conv_window_size = 3, char_embedding_size = 11>"
     " (s, w, b, c)"), "y"),
    ("int64[2,11] k, float[2,13] s", "NGramRepeatBlock <ngram_size = 3> (k, s)", "y"),
    ("string[6] x",
     'Tokenizer <mark = 1, mincharnum = 1, pad_value = "#", separators = [" "]> (x)', "y"),
    ("string[2,3] x",
     'Tokenizer <mark = 0, mincharnum = 1, pad_value = "#", separators = [""]> (x)', "y"),
    ("int64[11] s, int64[5] c, int64 p, int64[12] q", "BifurcationDetector(s, c, p, q)", "t, m"),
    ("int64 a, int64 b", "Range(a, b)", "y"),
    ("| float a = {1}, float b = {8}, float d = {2}", "Range(a, b, d)", "y"),
    ("float[2,3,11,13] x, float[5,3,3,3] w, float[5] b, float[2,5,9,11] z",
     'FusedConv <activation = "Relu"> (x, w, b, z)', "y"),
    ("float[2,3,11,13] x | float[5,3,3,3] w", ('FusedConv <activation = "HardSigmoid",'
     ' activation_params = [0.2, 0.5], auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w)'), "y"),
    ("float[2,3,11,13] x | float[5,3,3,3] w, float[5] b", ('FusedConv <activation = "Clip",'
     " activation_params = [0.0, 6.0], pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (x, w, b)"),
     "y"),
    ("float[7,5] a, float[3,7] b", ("FusedGemm <transA = 1, transB = 1, activation ="
     ' "LeakyRelu", activation_alpha = 0.1> (a, b)'), "y"),
    ("float[2,3,5,7] a, float[2,3,5,7] b",
     "FusedMatMul <transBatchA = 1, transBatchB = 1, transB = 1> (a, b)", "y"),
    ("float[7] a, float[2,7,3] b", "FusedMatMul <transA = 1> (a, b)", "y"),
    ("float[2,5,8] x, float[2,5,8] k | float[8] g, float[8] o, float[8] b",
     "SkipLayerNormalization(x, k, g, o, b)", "y, , , sum"),
    ("float[2,5,8] x, float[5,8] k | float[8] g, float[8] o",
     "SkipLayerNormalization(x, k, g, o)", "y"),
    ("float[2,5,8] x, float[1,5,8] k | float[8] g",
     "SkipSimplifiedLayerNormalization(x, k, g)", "y, , , sum"),
    ("float[10,8] x, float[10,8] k | float[8] g, float[8] o",
     "SkipLayerNormalization(x, k, g, o)", "y"),
    (("int32[2,5] t, int32[2,5] s, int32[2,5] m | float[13,8] w, float[17,8] p, float[3,8] e, "
     "float[8] g, float[8] o"), "EmbedLayerNormalization(t, s, w, p, e, g, o, m)", "y, i"),
    ("int32[2,5] t | float[13,8] w, float[17,8] p, float[8] g, float[8] o",
     "EmbedLayerNormalization <mask_index_type = 0> (t, , w, p, , g, o)", "y, i, sum"),
    ("int32[2,5] t, int32[2,5] q | float[13,8] w, float[17,8] p, float[8] g, float[8] o",
     "EmbedLayerNormalization(t, , w, p, , g, o, , q)", "y, i"),
    ("float[6,8] x, float[6,3] r | float[3,16,8] w, float[3,8,16] v",
     'MoE <activation_type = "relu", k = 2> (x, r, w, , v)', "y"),
    ("float[2,3,8] x, float[6,4] r | float[4,16,8] w, float[4,16] b, float[4,8,16] v, float[4,8] c",
     'MoE <activation_type = "gelu", k = 1> (x, r, w, b, v, c)', "y"),
    ("float[2,11,8] x, float[8,1,3] w, float[8] b, float[2,2,8] s",
     'CausalConvWithState <activation = "silu", channels_last = 1> (x, w, b, s)', "y, state"),
    ("float[2,8,11] x, float[8,1,3] w, float[8] b, float[2,8,2] s",
     'CausalConvWithState <activation = "silu"> (x, w, b, s)', "y, state"),
    ("float[2,5,16] x | float[2,8] g", "BranchwiseRMSNorm <num_branches = 2> (x, g)", "y"),
    ("float[3,8] a | float[8] t, float[8] d", "LinearAttentionGate(a, t, d)", "y"),
)  # fmt: skip

FEEDS: Final[dict[str, dict[str, Numbers]]] = {
    "CropAndResize": {"r": _BOXES, "k": [0, 0], "size": [5, 7]},
    "Tokenizer": {"x": ["a bc", "def", "g h i", "j", "k", "l"]},
    "ExpandDims": {"k": [1]},
    "Range": {"a": [1], "b": [8]},
    "Pad": {"p": [1, 2, 3, 4]},
    "ConvTransposeWithDynamicPads": {"p": [1, 0, 1, 0]},
    "Trilu": {"k": [1]},
    "BifurcationDetector": {
        "s": [*range(1, 12)],
        "c": [1, 2, 3, 4, 5],
        "p": [0],
        "q": [*range(1, 13)],
    },
    "NGramRepeatBlock": {"k": [*range(11)] * 2},
}
_BY_ELEMENTS: Final = {
    "ExpandDims(x, k)": "int32 k",
    "Range(a, b)": "int64 b",
    "Pad(x, p)": "int64[4] p",
    'CropAndResize <mode = "nearest"> (x, r, k, size)': "size",
    "ConvTransposeWithDynamicPads <strides = [2, 2]> (x, w, p)": "p",
}
"""Operators whose output follows from an input that is fed, not stored: the end of the inputs."""
_BY_DATA: Final = {"BifurcationDetector": "t", "DynamicTimeWarping": "y", "Tokenizer": "y",
                   "Unique": "y counts"}  # fmt: skip
"""Outputs that the data tell."""


def _kind(case: tuple[str, str, str]) -> Kind:
    operands, node, made = case
    inputs, _, weights = operands.partition("|")
    outputs = ", ".join(name for name in made.split(", ") if name)
    stored = f"<{weights}>" if weights else ""
    text = f"agraph ({inputs}) => ({outputs}) {stored} {{ {made} = com.microsoft.{node} }}"
    op_type = node.partition("(")[0].partition(" <")[0].strip()
    feeds = FEEDS.get(op_type, {})
    end = _BY_ELEMENTS.get(node)
    is_fed = end is not None and inputs.strip().endswith(end)
    unknown = "y" if is_fed else _BY_DATA.get(op_type, "")
    return Kind(f"{node} of {operands}", text_maker(HEAD, text), feeds, unknown.split())


_LAYERS: Final = """agraph (float[7,2,5] x) => (y, h, c) <float[1,44,5] w, float[1,44,11] r> {
    y, h, c = com.microsoft.AttnLSTM <hidden_size = 11> (x, w, r) }"""
KINDS: Final = (
    *(_kind(case) for case in CASES),
    # Without its memory onnxruntime 1.31.1 sometimes ends the process.
    Kind("layers that attend", text_maker(HEAD, _LAYERS), runs=False),
)
