"""Operators that ONNX dropped and onnxruntime still has, and such as its optimizer writes."""

from typing import Final

from runtime_kinds.kind import Kind, header, kinds_of, text_maker

_BLOCKED: Final = header(13, ms=1, nchwc=1)

KINDS: Final[tuple[Kind, ...]] = (
    *kinds_of(header(9, ir_version=3), {
        "affine": "agraph (float[5,7] x) => (y) { y = Affine <alpha = 2.0, beta = 1.0> (x) }",
        "scale": "agraph (float[5,7] x) => (y) { y = Scale <scale = 2.0> (x) }",
        "soft plus": """agraph (float[5,7] x) => (y) {
            y = ParametricSoftplus <alpha = 2.0, beta = 1.0> (x) }""",
        "scaled tanh": """agraph (float[5,7] x) => (y) {
            y = ScaledTanh <alpha = 2.0, beta = 1.0> (x) }""",
        "thresholded": "agraph (float[5,7] x) => (y) { y = ThresholdedRelu <alpha = 0.5> (x) }",
        "image scaler": """agraph (float[1,3,5,7] x) => (y) {
            y = ImageScaler <scale = 2.0, bias = [0.1, 0.2, 0.3]> (x) }""",
        "crop": """agraph (float[1,3,11,13] x) => (y) { y = Crop <border = [1, 2, 3, 4]> (x) }""",
        "crop to a scale": """agraph (float[1,3,11,13] x) => (y) {
            y = Crop <border = [1, 2, 0, 0], scale = [5, 7]> (x) }""",
        "slice that moves": """agraph (float[5,7] x) => (y) <int64[1] a = {1}, int64[1] b = {4}> {
            y = DynamicSlice(x, a, b) }""",
        "slice that moves, with axes": """agraph (float[5,7] x, int64[1] a, int64[1] b) => (y)
            <int64[1] k = {1}> { y = DynamicSlice(x, a, b, k) }""",
        "mean and variance": """agraph (float[2,3,5,7] x) => (y) {
            y = MeanVarianceNormalization <axes = [0, 2, 3]> (x) }""",
    }, {"a": [1], "b": [4]}, {"slice that moves, with axes": "y"}),
    *kinds_of(header(7, ir_version=3), {
        "normalization before its time": """agraph (float[2,5,8] x) => (y)
            <float[8] g, float[8] b> {
            y = LayerNormalization <axis = -1> (x, g, b) }""",
        "normalization of lengths": """agraph (float[2,5,8] x) => (y, s) <float[8] g> {
            y, s = SimplifiedLayerNormalization <axis = -1, stash_type = 1> (x, g) }""",
        "broadcast of old": "agraph (float[2,5] x, float[5] u) => (y) { y = Add(x, u) }",
        "pads by attribute": """agraph (float[2,5] x) => (y) {
            y = Pad <mode = "constant", pads = [1, 2, 3, 4], value = 1.0> (x) }""",
        "upsample by attribute": """agraph (float[1,3,5,7] x) => (y) {
            y = Upsample <mode = "nearest", scales = [1.0, 1.0, 2.0, 3.0]> (x) }""",
        "an LSTM both ways": """agraph (float[7,2,5] x) => (y, h, c)
            <float[2,44,5] w, float[2,44,11] r> {
            y, h, c = LSTM <hidden_size = 11, direction = "bidirectional"> (x, w, r) }""",
        "a GRU, its last state": """agraph (float[7,2,5] x) => (h)
            <float[1,33,5] w, float[1,33,11] r> {
            all, h = GRU <hidden_size = 11> (x, w, r) }""",
        "random": """agraph (float[2,5] x) => (y) { r = RandomUniform <shape = [2, 5]> ()
            n = RandomNormalLike(x)  y = Sum(x, r, n) }""",
        "tiled": """agraph (float[2,5] x) => (y) <int64[2] n = {2, 3}> { y = Tile(x, n) }""",
        "softmax of old": "agraph (float[2,3,5] x) => (y) { y = Softmax <axis = 1> (x) }",
    }),
    # onnxruntime has a schema and no kernel.
    Kind("filled as an input is", text_maker(header(9), """agraph (float[2,3] x) => (y) {
        y = GivenTensorFill <values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]> (x) }"""), runs=False),
    *kinds_of(_BLOCKED, {
        "blocked convolution": """agraph (float[1,3,7,7] x) => (y)
            <float[16,3,3,3] w, float[16] b> {
            c = com.microsoft.nchwc.Conv <activation = "Relu", pads = [1, 1, 1, 1]> (x, w, b)
            y = com.microsoft.nchwc.ReorderOutput <channels = 16> (c) }""",
        "blocked pool": """agraph (float[1,16,7,7] x) => (y) {
            r = com.microsoft.nchwc.ReorderInput(x)
            p = com.microsoft.nchwc.MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (r)
            g = com.microsoft.nchwc.GlobalAveragePool(p)
            y = com.microsoft.nchwc.ReorderOutput <channels = 16> (g) }""",
    }),
)  # fmt: skip
