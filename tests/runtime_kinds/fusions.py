"""What onnxruntime's fusions look for: subgraphs as exporters write them, under their opsets."""

from typing import Final

from runtime_kinds.kind import Kind, header, kinds_of

_GELU: Final = "float two = {1.4142}, float one = {1}, float half = {0.5}"
_NORM: Final = "float[8] g, float[8] b, float two = {2}, float e = {0.00001}"
_LAYER: Final = """m = ReduceMean <axes = [-1]> (x)  d = Sub(x, m)  p = Pow(d, two)
    v = ReduceMean <axes = [-1]> (p)  u = Add(v, e)  r = Sqrt(u)  n = Div(d, r)
    w = Mul(n, g)  y = Add(w, b)"""
_SHAPES: Final = "int64 zero = {0}, int64 one = {1}, int64[1] two = {2}, int64[1] four = {4}"

KINDS: Final[tuple[Kind, ...]] = (
    *kinds_of(header(9, ir_version=4), {
        "gelu": f"""agraph (float[2,5,8] x) => (y) <{_GELU}> {{ a = Div(x, two)  b = Erf(a)
            c = Add(b, one)  d = Mul(x, c)  y = Mul(d, half) }}""",
        "layer normalization": f"agraph (float[2,5,8] x) => (y) <{_NORM}> {{ {_LAYER} }}",
        "bias gelu": f"""agraph (float[2,5,8] x) => (y) <float[8] w, {_GELU}> {{ x1 = Add(x, w)
            a = Div(x1, two)  b = Erf(a)  c = Add(b, one)  d = Mul(x1, c)  y = Mul(d, half) }}""",
        "convolution and normalization": """agraph (float[1,3,11,11] x) => (y)
            <float[5,3,3,3] w, float[5] s, float[5] o, float[5] m, float[5] v> {
            c = Conv <pads = [1, 1, 1, 1]> (x, w)  n = BatchNormalization(c, s, o, m, v)
            y = Relu(n) }""",
        "normalization that trains": """agraph (float[2,5,7] x) => (y, m2, v2, sm, sv)
            <float[5] s, float[5] o, float[5] m, float[5] v> {
            y, m2, v2, sm, sv = BatchNormalization(x, s, o, m, v) }""",
        "dropout and its mask": "agraph (float[2,5] x) => (y, m) { y, m = Dropout(x) }",
        "unsqueeze and slice by attributes": """agraph (float[2,5,7] x) => (y) {
            s = Slice <starts = [1, -3], ends = [5, 9999], axes = [1, 2]> (x)
            y = Unsqueeze <axes = [0, 3]> (s) }""",
        "reshape of a shape": f"""agraph (float[B,S,8] x) => (y) <{_SHAPES}> {{
            s = Shape(x)  b = Gather(s, zero)  l = Gather(s, one)
            b1 = Unsqueeze <axes = [0]> (b)  l1 = Unsqueeze <axes = [0]> (l)
            t = Concat <axis = 0> (b1, l1, two, four)  r = Reshape(x, t)
            y = Transpose <perm = [0, 2, 1, 3]> (r) }}""",
        "upsample": """agraph (float[1,3,5,7] x) => (y) <float[4] s = {1, 1, 2, 2}> {
            y = Upsample <mode = "nearest"> (x, s) }""",
        "one hot": """agraph (int64[5] x) => (y) <int64 d = {7}, float[2] v = {0, 1}> {
            y = OneHot(x, d, v) }""",
        "shape that becomes a weight": """agraph (float[2,5] x) => (y) { s = Shape(x)
            z = ConstantOfShape(s)  y = Add(x, z) }""",
        "matmul and add": """agraph (float[3,5] x) => (y) <float[5,7] w, float[7] b> {
            m = MatMul(x, w)  y = Add(m, b) }""",
        "gemm of a transpose": """agraph (float[5,3] x) => (y) <float[5,7] w> {
            t = Transpose(x)  y = Gemm <beta = 0.5> (t, w, b)  b = Constant
            <value = float[1] {1}> () }""",
        "padding before a pool": """agraph (float[1,3,7,7] x) => (y) {
            p = Pad <pads = [0, 0, 1, 1, 0, 0, 1, 1]> (x)
            y = AveragePool <kernel_shape = [3, 3]> (p) }""",
    }),
    *kinds_of(header(11, ir_version=5), {
        "clip of inputs left out": """agraph (float[5] x) => (y) <float c = {0.5}> {
            a = Clip(x)  b = Clip(x, c)  d = Clip(x, , c)  y = Sum(a, b, d) }""",
        "one symbol for two lengths": """agraph (float[S,S] x1, float[S,S] x2) => (y)
            <float[1] c = {0.5}> { o = Add(x1, c)  s = Shape(o)  z = ConstantOfShape(s)
            r = ReduceSum(z)  a = Add(r, x2)  b = Add(x2, r)  y = Concat <axis = -1> (a, b) }""",
        "slices that meet": """agraph (float[2,5,7] x) => (y) <int64[1] a = {1}, int64[1] b = {9},
            int64[1] k = {2}> { s = Slice(x, a, b, k)  t = Slice(x, a, b, a)  m = ReduceMax(t)
            y = Mul(s, m) }""",
        "expand that does nothing": """agraph (float[2,5] x) => (y) <int64[2] s = {1, 5}> {
            e = Expand(x, s)  y = Neg(e) }""",
        "softmax of bias": """agraph (float[2,3,5,5] x, float[2,1,1,5] b) => (y) {
            s = Add(x, b)  y = Softmax <axis = 3> (s) }""",
        "top k": """agraph (float[2,11] x) => (v, i) <int64[1] k = {3}> { v, i = TopK(x, k) }""",
        "split by attribute": """agraph (float[7,4] x) => (a, c) {
            a, b, c = Split <axis = 0, split = [1, 2, 4]> (x) }""",
        "resize by scales": """agraph (float[1,3,5,7] x) => (y)
            <float[0] r, float[4] s = {1, 1, 2, 1.5}> {
            y = Resize <mode = "linear"> (x, r, s) }""",
        "scatter into a view": """agraph (float[5,3] x, int64[2,3] i, float[2,3] u) => (y) {
            y = ScatterElements(x, i, u) }""",
        "gather of batches": """agraph (float[2,5,7] x, int64[2,3,1] i) => (y) {
            s = Shape(i)  y = Gather <axis = 1> (x, k)  k = Constant
            <value = int64[2] {0, 1}> () }""",
        "non-maximum suppression": """agraph (float[1,7,4] b, float[1,2,7] s) => (y)
            <int64[1] n = {3}, float[1] t = {0.5}> { y = NonMaxSuppression(b, s, n, t) }""",
        "where are the zeros": "agraph (float[5,3] x) => (y) { z = NonZero(x)  y = Transpose(z) }",
    }, {}, {"non-maximum suppression": "y", "where are the zeros": "y z"}),
    *kinds_of(header(12, ir_version=6), {
        "gather nd of batches": """agraph (float[2,5,7] x) => (y) <int64[2,1] i = {1, 0}> {
            y = GatherND <batch_dims = 1> (x, i) }""",
        "gather nd of batches, then a norm": """agraph (float[2,5,8] x, int64[2,3,1] i) => (y)
            <float[8,4] w> { g = GatherND <batch_dims = 1> (x, i)  y = MatMul(g, w) }""",
        "einsum": """agraph (float[2,5,3,4] q, float[2,7,3,4] k) => (y) {
            y = Einsum <equation = "bqhd,bkhd->bhqk"> (q, k) }""",
        "convolution in half precision": """agraph (float16[1,3,7,7] x) => (y)
            <float16[5,3,3,3] w, float16[5] b> { c = Conv(x, w, b)  y = Cast <to = 1> (c) }""",
        "dropout of no ratio": """agraph (float[2,5] x) => (y) <float r = {0}> {
            d, m = Dropout(x, r)  y = Neg(d) }""",
        "cast and back": """agraph (float[2,5] x) => (y) { c = Cast <to = 10> (x)
            d = Cast <to = 11> (c)  e = Cast <to = 6> (d)  y = Cast <to = 9> (e) }""",
        "pooling of ceilings": """agraph (float[1,3,11,11] x) => (y, i) {
            y, i = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (x) }""",
        "transposed convolution to a shape": """agraph (float[1,3,5,5] x) => (y)
            <float[3,2,3,3] w> {
            y = ConvTranspose <strides = [2, 2], output_shape = [10, 10]> (x, w) }""",
    }, {"i": [0, 1, 2, 3, 4, 0]}),
    *kinds_of(header(13, ir_version=7), {
        "squeezes by input": """agraph (float[1,5,1,7] x) => (y) <int64[2] a = {0, -2}> {
            s = Squeeze(x, a)  y = Unsqueeze(s, a) }""",
        "bfloat16": """agraph (float[5,7] x) => (y) { b = Cast <to = 16> (x)
            y = Cast <to = 1> (b) }""",
        "resize by sizes": """agraph (float[1,3,5,7] x) => (y) <int64[4] n = {1, 3, 9, 9}> {
            y = Resize <mode = "nearest"> (x, , , n) }""",
        "split by input": """agraph (float[7,4] x) => (a, c) <int64[3] s = {1, 2, 4}> {
            a, b, c = Split(x, s) }""",
        "sum over axes of a weight": """agraph (float[2,5,7] x) => (y) <int64[1] a = {-1}> {
            y = ReduceSum <keepdims = 0> (x, a) }""",
        "losses": """agraph (float[5,7] x, int64[5] t) => (y, p) {
            y, p = SoftmaxCrossEntropyLoss <reduction = "none"> (x, t) }""",
    }, {"t": [0, 1, 2, 3, 4]}),
)  # fmt: skip
