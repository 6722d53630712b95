"""Fusions of patterns of nodes, compared with onnxruntime."""

import pytest
from installed_runtime import since
from runtimes.onnxruntime.optimized_graphs import cases, compare_with_onnxruntime, optimized_ops

pytestmark = pytest.mark.measure

GRAPH = """agraph (float[N,7] fed, float p, float[7] r, float[5,7] k, int64[N,7] i, double[N,7] d)
  => ({outputs})
  <float root = {{1.4142135}}, float inverse = {{0.70710677}}, float one = {{1.0}},
   float two = {{2.0}},
   float half = {{0.5}}, float three = {{3.0}}, float cubic = {{0.044715}},
   float scale = {{0.7978845608}},
   float alpha = {{1.702}}, float[1] alpha1 = {{1.702}}, float[7] w, float[1,1,1] deep = {{1.0}},
   double root64 = {{1.4142135623730951}}, double one64 = {{1.0}}, double half64 = {{0.5}},
   float[7,5] v, float[5] b, float[13] other>
  {{ x = Abs(fed) {body} }}"""


def ops_after(body: str, opset: int = 20) -> str:
    """The operators after optimization, without the one that produces ``x``."""
    return optimized_ops(GRAPH, body, "extended", opset=opset, without="Abs")


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Div(x, root) e = Erf(a) s = Add(e, one) m = Mul(x, s) y = Mul(m, half) -> Gelu
a = Div(x, root) e = Erf(a) s = Add(one, e) m = Mul(s, x) y = Mul(half, m) -> Gelu
a = Mul(x, inverse) e = Erf(a) s = Add(e, one) m = Mul(x, s) y = Mul(m, half) -> Mul Erf Add Mul Mul
a = Div(x, root) e = Erf(a) s = Add(e, one) h = Mul(x, half) y = Mul(h, s) -> Gelu
a = Div(x, root) e = Erf(a) s = Add(e, one) h = Mul(half, x) y = Mul(s, h) -> Gelu
a = Div(x, root) e = Erf(a) s = Add(e, two) m = Mul(x, s) y = Mul(m, half) -> Div Erf Add Mul Mul
a = Div(x, two) e = Erf(a) s = Add(e, one) m = Mul(x, s) y = Mul(m, half) -> Div Erf Add Mul Mul
a = Div(root, x) e = Erf(a) s = Add(e, one) m = Mul(x, s) y = Mul(m, half) -> Div Erf Add Mul Mul
a = Div(x, root) e = Tanh(a) s = Add(e, one) m = Mul(x, s) y = Mul(m, half) -> Div Tanh Add Mul Mul
a = Div(x, root) e = Erf(a) s = Sub(e, one) m = Mul(x, s) y = Mul(m, half) -> Div Erf Sub Mul Mul
a = Div(x, root) e = Erf(a) s = Add(e, one) m = Mul(x, s) y = Mul(m, two) -> Div Erf Add Mul Mul
a = Div(x, root) e = Erf(a) s = Add(e, one) m = Mul(x, s) y = Add(m, half) -> Div Erf Add Mul Add
a = Div(x, root) e = Erf(a) s = Add(e, one) y = Mul(x, s) -> Div Erf Add Mul
a = Div(x, root) e = Erf(a) s = Add(e, one) m = Mul(r, s) y = Mul(m, half) -> Div Erf Add Mul Mul
a = Div(x, root) e = Erf(a) s = Add(e, one) h = Mul(x, two) y = Mul(h, s) -> Mul Div Erf Add Mul
a = Div(x, root) e = Erf(a) s = Add(e, one) h = Mul(r, half) y = Mul(h, s) -> Mul Div Erf Add Mul
a = Div(x, root) e = Erf(a) s = Add(e, one) h = Add(x, half) y = Mul(h, s) -> Add Div Erf Add Mul
a = Div(x, root) e = Erf(a) s = Add(e, one) h = Mul(x, half) y = Mul(h, s) z = Neg(h)\
 -> Mul Neg Div Erf Add Mul
a = Div(x, root) e = Erf(a) s = Add(e, one) m = Mul(x, s) y = Mul(m, half) z = Neg(s)\
 -> Div Erf Add Neg Mul Mul
z = Div(x, root) e = Erf(z) s = Add(e, one) m = Mul(x, s) y = Mul(m, half) -> Div Erf Add Mul Mul
a = Div(x, root) e = Erf(a) s = Add(e, one) z = Mul(x, s) y = Mul(z, half) -> Div Erf Add Mul Mul
a = Div(x, p) e = Erf(a) s = Add(e, one) m = Mul(x, s) y = Mul(m, half) -> Div Erf Add Mul Mul
"""),
)
def test_gelu_with_erf(body: str, expected: str) -> None:
    assert ops_after(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Mul(x, cubic) q = Mul(a, x) s = Add(q, one) c = Mul(x, scale) m = Mul(s, c) t = Tanh(m)\
 u = Add(t, one) h = Mul(x, half) o = Mul(h, u) y = Neg(o) -> FastGelu Neg
a = Mul(cubic, x) q = Mul(x, a) s = Add(one, q) c = Mul(scale, x) m = Mul(c, s) t = Tanh(m)\
 u = Add(one, t) h = Mul(half, x) o = Mul(u, h) y = Neg(o) -> FastGelu Neg
a = Pow(x, three) q = Mul(a, cubic) s = Add(x, q) m = Mul(s, scale) t = Tanh(m)\
 u = Add(t, one) h = Mul(x, half) o = Mul(h, u) y = Neg(o) -> FastGelu Neg
a = Pow(x, three) q = Mul(cubic, a) s = Add(q, x) m = Mul(scale, s) t = Tanh(m)\
 u = Add(t, one) h = Mul(x, half) o = Mul(h, u) y = Neg(o) -> FastGelu Neg
a = Pow(x, three) q = Mul(a, cubic) s = Add(x, q) m = Mul(s, scale) t = Tanh(m)\
 u = Add(t, one) h = Mul(x, half) y = Mul(h, u) -> Mul Pow Mul Add Mul Tanh Add Mul
a = Pow(x, two) q = Mul(a, cubic) s = Add(x, q) m = Mul(s, scale) t = Tanh(m)\
 u = Add(t, one) h = Mul(x, half) o = Mul(h, u) y = Neg(o) -> Mul Pow Mul Add Mul Tanh Add Mul Neg
a = Pow(x, three) q = Mul(a, two) s = Add(x, q) m = Mul(s, scale) t = Tanh(m)\
 u = Add(t, one) h = Mul(x, half) o = Mul(h, u) y = Neg(o) -> Mul Pow Mul Add Mul Tanh Add Mul Neg
a = Pow(x, three) q = Mul(a, cubic) s = Add(r, q) m = Mul(s, scale) t = Tanh(m)\
 u = Add(t, one) h = Mul(x, half) o = Mul(h, u) y = Neg(o) -> Mul Pow Mul Add Mul Tanh Add Mul Neg
a = Pow(x, three) q = Mul(a, cubic) s = Add(x, q) m = Mul(s, two) t = Tanh(m)\
 u = Add(t, one) h = Mul(x, half) o = Mul(h, u) y = Neg(o) -> Mul Pow Mul Add Mul Tanh Add Mul Neg
a = Pow(x, three) q = Mul(a, cubic) s = Add(x, q) m = Mul(s, scale) t = Sigmoid(m)\
 u = Add(t, one) h = Mul(x, half) o = Mul(h, u) y = Neg(o)\
 -> Mul Pow Mul Add Mul Sigmoid Add Mul Neg
a = Pow(x, three) q = Mul(a, cubic) s = Add(x, q) m = Mul(s, scale) t = Tanh(m)\
 u = Add(t, two) h = Mul(x, half) o = Mul(h, u) y = Neg(o) -> Mul Pow Mul Add Mul Tanh Add Mul Neg
a = Pow(x, three) q = Mul(a, cubic) s = Add(x, q) m = Mul(s, scale) t = Tanh(m)\
 u = Add(t, one) h = Mul(x, two) o = Mul(h, u) y = Neg(o) -> Mul Pow Mul Add Mul Tanh Add Mul Neg
a = Pow(x, three) q = Mul(a, cubic) s = Add(x, q) m = Mul(s, scale) t = Tanh(m)\
 u = Add(t, one) h = Mul(r, half) o = Mul(h, u) y = Neg(o) -> Mul Pow Mul Add Mul Tanh Add Mul Neg
a = Pow(x, three) q = Mul(a, cubic) s = Add(x, q) m = Mul(s, scale) t = Tanh(m)\
 u = Add(t, one) h = Mul(x, half) o = Mul(h, u) y = Neg(o) z = Neg(u)\
 -> Pow Mul Add Mul Tanh Add Neg Mul Mul Neg
a = Pow(x, three) q = Mul(a, cubic) s = Add(x, q) m = Mul(s, scale) t = Tanh(m)\
 u = Add(t, one) y = Mul(x, u) -> Pow Mul Add Mul Tanh Add Mul
a = Pow(x, three) q = Mul(a, cubic) s = Add(x, q) m = Mul(s, scale) t = Tanh(m)\
 y = Add(t, one) -> Pow Mul Add Mul Tanh Add
a = Pow(x, three) q = Mul(a, cubic) s = Add(x, q) m = Mul(s, scale) z = Tanh(m)\
 u = Add(z, one) h = Mul(x, half) o = Mul(h, u) y = Neg(o) -> Mul Pow Mul Add Mul Tanh Add Mul Neg
a = Mul(x, cubic) q = Mul(a, r) s = Add(q, one) c = Mul(x, scale) m = Mul(s, c) t = Tanh(m)\
 u = Add(t, one) h = Mul(x, half) o = Mul(h, u) y = Neg(o)\
 -> Mul Mul Mul Mul Add Mul Tanh Add Mul Neg
a = Mul(x, cubic) q = Mul(a, x) s = Add(q, two) c = Mul(x, scale) m = Mul(s, c) t = Tanh(m)\
 u = Add(t, one) h = Mul(x, half) o = Mul(h, u) y = Neg(o)\
 -> Mul Mul Mul Mul Add Mul Tanh Add Mul Neg
a = Mul(x, cubic) q = Mul(a, x) s = Add(q, one) c = Mul(r, scale) m = Mul(s, c) t = Tanh(m)\
 u = Add(t, one) h = Mul(x, half) o = Mul(h, u) y = Neg(o)\
 -> Mul Mul Mul Mul Add Mul Tanh Add Mul Neg
a = Mul(x, cubic) q = Mul(a, x) s = Add(q, one) c = Mul(x, scale) m = Mul(s, c) t = Tanh(m)\
 u = Add(t, one) h = Mul(x, half) o = Mul(h, u) y = Neg(o) z = Neg(c)\
 -> Mul Neg Mul Mul Mul Add Mul Tanh Add Mul Neg
a = Mul(x, cubic) q = Mul(a, x) s = Add(q, one) c = Abs(k) m = Mul(s, scale) t = Tanh(m)\
 u = Add(t, one) h = Mul(x, half) o = Mul(h, u) y = Neg(o)\
 -> Mul Mul Mul Add Mul Tanh Add Mul Neg Abs
a = Mul(x, cubic) q = Mul(a, x) s = Add(q, one) y = Sub(s, x) -> Mul Mul Add Sub
"""),
)
def test_gelu_with_tanh(body: str, expected: str) -> None:
    assert ops_after(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Sigmoid(x) y = Mul(x, a) -> QuickGelu
a = Sigmoid(x) y = Mul(a, x) -> QuickGelu
m = Mul(x, alpha) a = Sigmoid(m) y = Mul(x, a) -> QuickGelu
m = Mul(alpha1, x) a = Sigmoid(m) y = Mul(a, x) -> QuickGelu
m = Mul(x, r) a = Sigmoid(m) y = Mul(x, a) -> Mul Sigmoid Mul
m = Add(x, alpha) a = Sigmoid(m) y = Mul(x, a) -> Add Sigmoid Mul
a = Sigmoid(x) y = Mul(a, r) -> Sigmoid Mul
a = Sigmoid(x) y = Add(a, x) -> Sigmoid Add
z = Sigmoid(x) y = Mul(z, x) -> Sigmoid Mul
z = Mul(x, alpha) a = Sigmoid(z) y = Mul(x, a) -> Mul Sigmoid Mul
m = Mul(x, alpha) a = Tanh(m) y = Mul(x, a) -> Mul Tanh Mul
a = Sigmoid(x) b2 = Mul(a, x) y = Mul(a, b2) -> Sigmoid Mul Mul
a = Sigmoid(d) y = Mul(d, a) -> Sigmoid Mul
m = Mul(x, deep) a = Sigmoid(m) y = Mul(x, a) -> Mul Sigmoid Mul
h = Cast<to = 10>(x) a = Sigmoid(h) g = Mul(h, a) y = Cast<to = 1>(g) -> Sigmoid Mul Cast
y = HardSwish(x) -> HardSigmoid Mul
y = RandomUniform<shape = [3]>() -> RandomUniform
"""),
)
def test_a_product_with_its_scaled_sigmoid_becomes_quick_gelu(body: str, expected: str) -> None:
    assert ops_after(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Add(x, w) y = com.microsoft.Gelu(a) -> BiasGelu
a = Add(w, x) y = com.microsoft.Gelu(a) -> BiasGelu
a = Add(x, r) y = com.microsoft.Gelu(a) -> BiasGelu
a = Add(x, w) y = com.microsoft.FastGelu(a) -> FastGelu
a = Add(x, w) y = com.microsoft.FastGelu(a, r) -> Add FastGelu
a = Add(x, w) y = Gelu(a) -> BiasGelu
a = Add(x, w) y = Gelu<approximate = "tanh">(a) -> FastGelu
a = Add(x, k) y = com.microsoft.Gelu(a) -> Add Gelu
a = Add(x, p) y = com.microsoft.Gelu(a) -> Add Gelu
a = Add(x, alpha1) y = com.microsoft.Gelu(a) -> Add Gelu
a = Add(x, w) y = com.microsoft.QuickGelu(a) -> Add QuickGelu
a = Add(x, w) y = Exp(a) -> Add Exp
a = Add(x, w) y = com.microsoft.Gelu(a) z = Neg(a) -> Add Neg Gelu
z = Add(x, w) y = com.microsoft.Gelu(z) -> Add Gelu
a = Add(r, w) y = com.microsoft.Gelu(a) -> BiasGelu
e = Abs(x) a = Add(x, e) y = com.microsoft.Gelu(a) -> Abs Add Gelu
m = Mul(x, two) a = Add(m, w) e = Div(a, root) f = Erf(e) s = Add(f, one) g = Mul(a, s)\
 y = Mul(g, half) -> Mul BiasGelu
"""),
)
def test_bias_before_gelu(body: str, expected: str) -> None:
    assert ops_after(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Gemm(x, v) y = Relu(a) -> FusedGemm
a = Gemm(x, v, b) y = LeakyRelu<alpha = 0.3>(a) -> FusedGemm
a = Gemm(x, v, b) y = LeakyRelu(a) -> FusedGemm
a = Gemm<transB = 1>(x, k) y = Sigmoid(a) -> FusedGemm
a = Gemm(x, v) y = Tanh(a) -> FusedGemm
a = Gemm(x, v) y = Elu(a) -> FusedGemm
a = Gemm(x, v) y = HardSigmoid<alpha = 0.3, beta = 0.4>(a) -> FusedGemm
a = Gemm(x, v) y = Selu(a) -> FusedGemm
a = Gemm(x, v) y = Softplus(a) -> FusedGemm
a = Gemm(x, v) y = Softsign(a) -> FusedGemm
a = Gemm(x, v) y = ThresholdedRelu(a) -> FusedGemm
a = Gemm(x, v) y = Exp(a) -> Gemm Exp
a = Gemm(x, v) y = Celu(a) -> Gemm Celu
a = Gemm(x, v) y = PRelu(a, p) -> Gemm PRelu
a = Gemm(x, v) e = Relu(a) y = Add(a, e) -> Gemm Relu Add
z = Gemm(x, v) y = Relu(z) -> Gemm Relu
a = MatMul(x, v) e = Add(a, b) y = Relu(e) -> FusedGemm
"""),
)
def test_activation_after_gemm(body: str, expected: str) -> None:
    assert ops_after(body) == expected


CONV_GRAPH = """agraph (float[5,2,7,11] x, float[3,2,1,1] k, float[5,3,7,11] z, float[1,3,7,11] one,
  float[5,2,7] line, float[5,3,7] sum1, float[3,2,1] k1, float[N,2,7,11] open, float[N,3,7,11] sum2,
  float[0,2,7,11] empty, float[0,3,7,11] none, float p, float[3,3,1,1] k2, float[P,2,Q,R] some,
  float[P,3,Q,R] sum3)
  => ({outputs})
  <float[3] b, float low = {{0.0}}, float high = {{6.0}}>
  {{ {body} }}"""


def optimized_convolutions(body: str, level: str = "all", opset: int = 21) -> str:
    outputs = ", ".join(name for name in ("y", "o") if f"{name} =" in body)
    return " ".join(
        compare_with_onnxruntime(CONV_GRAPH.format(outputs=outputs, body=body), level, opset=opset)
    )


@pytest.mark.parametrize("opset", [13, 22])
@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Conv(x, k, b) y = Relu(a) -> FusedConv
a = Conv(x, k) y = Sigmoid(a) -> FusedConv
a = Conv(x, k) y = Tanh(a) -> FusedConv
a = Conv(x, k) y = LeakyRelu<alpha = 0.3>(a) -> FusedConv
a = Conv(x, k) y = LeakyRelu(a) -> FusedConv
a = Conv(x, k) y = HardSigmoid<beta = 0.4>(a) -> FusedConv
a = Conv(x, k) y = Clip(a, low, high) -> FusedConv
a = Conv(x, k) y = Clip(a) -> FusedConv
a = Conv(x, k) y = Clip(a, p, high) -> Conv Clip
a = Conv(x, k) y = Elu(a) -> Conv Elu
a = Conv(x, k) e = Relu(a) y = Add(a, e) -> Conv Relu Add
o = Conv(x, k) y = Relu(o) -> Conv Relu
a = Conv(x, k) y = com.microsoft.QuickGelu(a) -> Conv QuickGelu
a = Conv(line, k1) y = Relu(a) -> FusedConv
"""),
)
def test_activation_after_convolution(body: str, expected: str, opset: int) -> None:
    assert optimized_convolutions(body, "extended", opset) == expected


@pytest.mark.parametrize(
    ("bounds", "expected"), [("min = -1.0, max = 6.0", "FusedConv"), ("max = 6.0", "FusedConv")]
)
def test_clip_with_bounds_as_attributes_after_convolution(bounds: str, expected: str) -> None:
    assert (
        optimized_convolutions(f"a = Conv(x, k) y = Clip<{bounds}>(a)", "extended", 10) == expected
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Conv(x, k, b) y = Add(a, z) -> FusedConv
a = Conv(x, k, b) y = Add(z, a) -> FusedConv
a = Conv(x, k, b) c = Add(a, z) y = Relu(c) -> FusedConv
a = Conv(x, k, b) c = Add(a, z) y = HardSigmoid(c) -> FusedConv
a = Conv(x, k, b) c = Add(a, z) y = Clip(c) -> FusedConv
a = Conv(x, k, b) c = Add(a, z) y = Exp(c) -> FusedConv Exp
a = Conv(x, k, b) c = Add(a, z) y = Relu(c) o = Neg(c) -> FusedConv Neg Relu
a = Conv(x, k, b) o = Add(a, z) y = Relu(o) -> FusedConv Relu
a = Conv(x, k) y = Add(a, z) -> Conv Add
a = Conv(x, k, b) y = Add(a, one) -> Conv Add
a = Conv(line, k1, b) y = Add(a, sum1) -> Conv Add
a = Conv(empty, k, b) y = Add(a, none) -> Conv Add
a = Conv(open, k, b) y = Add(a, sum2) -> FusedConv
a = Conv(some, k, b) y = Add(a, sum3) -> Conv Add
a = Conv(x, k, b) y = Sub(a, z) -> Conv Sub
a = Conv(x, k, b) r = Relu(a) y = Add(r, z) -> FusedConv Add
a = Conv(x, k, b) y = Add(a, a) -> Conv Add
a = Conv(x, k, b) y = Add(a, z) o = Neg(a) -> Conv Neg Add
a = Conv(x, k, b) c = Conv(z, k2, b) y = Add(a, c) -> Conv FusedConv
a = Conv(x, k, b) c = Conv(z, k2, b) y = Add(c, a) -> Conv FusedConv
a = Conv(x, k) c = Conv(z, k2, b) y = Add(a, c) -> Conv FusedConv
"""),
)
def test_add_after_convolution(body: str, expected: str) -> None:
    assert optimized_convolutions(body) == expected


MATMUL_GRAPH = """agraph (float[N,7] x, float[3,11,7] deep, float[N,3,7] open, float[5,7] k,
   float[N,5] full,
  float[M,5] unlike, float[N,1] column, float[1,5] wide, float[5] row, float p, float16[N,7] h,
  float[7,3] turned, float[2,3,11,7] four, float[2,3,13,7] image, int64[3] to, float[P,Q] some,
  float[3,11,5] threefold, float[2,13,3,7] batch, float[11,3,7] front, double[N,7] d64,
  int32[N,7] whole, float[7] vector,
  float[7,3,2] sideways)
  => ({outputs})
  <float[7,5] w, float[5] b, float[3,7,5] batched, float two = {{2.0}}, float[1] half = {{0.5}},
   float[1,1,1] flat = {{2.0}}, float[2] pair = {{2.0, 3.0}}, float nought = {{0.0}},
   int64 integer = {{2}}, float[7,5,1] odd, double[7,5] w64, double[5] b64, int32[7,5] w32,
   float16[7,5] w16, float16[5] b16, float[7] g, float[7] z7, float[7,7] q, float[7,7] r,
   float[7,7] s,
   float[7,7] t>
  {{ {body} }}"""


def optimized_matmul(body: str, opset: int = 21, level: str = "basic") -> str:
    outputs = ", ".join(name for name in ("y", "z") if f"{name} =" in body)
    return " ".join(
        compare_with_onnxruntime(
            MATMUL_GRAPH.format(outputs=outputs, body=body), level, opset=opset
        )
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = MatMul(x, w) y = Add(a, b) -> Gemm
a = MatMul(x, w) y = Add(b, a) -> Gemm
a = MatMul(x, w) y = Add(a, row) -> Gemm
a = MatMul(x, w) y = Add(a, full) -> Gemm
a = MatMul(x, w) y = Add(a, wide) -> Gemm
a = MatMul(x, w) y = Add(a, column) -> Gemm
a = MatMul(x, w) y = Add(a, unlike) -> MatMul Add
a = MatMul(x, w) y = Add(a, p) -> MatMul Add
a = MatMul(x, w) y = Add(a, half) -> MatMul Add
a = MatMul(x, w) y = Add(a, threefold) -> MatMul Add
a = MatMul(x, w) y = Sub(a, b) -> MatMul Sub
a = MatMul(x, w) y = Add(a, a) -> MatMul Add
a = MatMul(x, w) e = Add(a, b) y = Mul(a, e) -> MatMul Add Mul
z = MatMul(x, w) y = Add(z, b) -> MatMul Add
a = MatMul(deep, w) y = Add(a, b) -> Reshape Gemm Reshape
a = MatMul(deep, w) y = Add(b, a) -> Reshape Gemm Reshape
a = MatMul(deep, w) y = Add(a, wide) -> MatMul Add
a = MatMul(deep, w) y = Add(a, threefold) -> MatMul Add
a = MatMul(deep, batched) y = Add(a, b) -> MatMul Add
a = MatMul(open, w) y = Add(a, b) -> MatMul Add
a = MatMul(vector, w) y = Add(a, b) -> Reshape Gemm Reshape
a = MatMul(four, w) y = Add(a, b) -> Reshape Gemm Reshape
a = MatMul(some, w) y = Add(a, b) -> Gemm
a = MatMul(x, some) y = Add(a, row) -> MatMul Add
e = Reshape(x, to) a = MatMul(e, w) y = Add(a, b) -> Reshape MatMul Add
e = Squeeze(x) a = MatMul(e, w) y = Add(a, b) -> Squeeze MatMul Add
a = MatMul(d64, w64) y = Add(a, b64) -> MatMul Add
a = MatMul(whole, w32) y = Abs(a) -> MatMul Abs
a = MatMul(h, w16) y = Add(a, b16) -> Cast Cast Cast Gemm Cast
"""),
)
def test_add_after_matmul(body: str, expected: str) -> None:
    assert optimized_matmul(body) == expected


QKV = """n = LayerNormalization(deep, g, z7) i = MatMul(n, q) j = MatMul(n, r) l = MatMul(n, s)
 i2 = Add(i, z7) j2 = Add(j, z7) l2 = Add(l, z7) o = Mul(i2, j2) c = Mul(o, l2)
 f = MatMul(c, t) e = Add(f, g) y = Add(n, e)"""


@pytest.mark.parametrize("level", ["basic", "extended"])
@pytest.mark.parametrize(
    ("old", "new", "is_block"),
    [
        ("y = Add(n, e)", "y = Add(n, e)", True),
        ("y = Add(n, e)", "y = Add(e, n)", True),
        ("y = Add(n, e)", "y = Mul(n, e)", False),
        ("y = Add(n, e)", "k2 = Mul(e, g) y = Add(n, k2)", False),
        ("y = Add(n, e)", "y = Add(n, deep)", False),
        ("l = MatMul(n, s)", "l = Identity(n)", False),
        ("y = Add", "z = Neg(n) y = Add", False),
    ],
)
def test_matmuls_of_an_attention_block_are_fused_at_the_extended_level(
    old: str, new: str, level: str, *, is_block: bool
) -> None:
    expected = optimized_matmul(QKV.replace(old, new), level=level)
    assert ("Gemm" not in expected) == (is_block and level == "basic")


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
e = Mul(x, two) y = MatMul(e, w) -> FusedMatMul
e = Mul(two, x) y = MatMul(e, w) -> FusedMatMul
e = Div(x, two) y = MatMul(e, w) -> FusedMatMul
e = Div(x, half) y = MatMul(e, w) -> FusedMatMul
e = Div(two, x) y = MatMul(e, w) -> Div MatMul
e = Div(x, nought) y = MatMul(e, w) -> FusedMatMul
e = Mul(x, nought) y = MatMul(e, w) -> FusedMatMul
e = Mul(x, flat) y = MatMul(e, w) -> Mul MatMul
e = Mul(x, p) y = MatMul(e, w) -> Mul MatMul
e = Mul(x, g) y = MatMul(e, w) -> Mul MatMul
e = Add(x, two) y = MatMul(e, w) -> Add MatMul
e = Mul(x, two) y = MatMul(e, w) z = Neg(e) -> FusedMatMul Mul Neg
z = Mul(x, two) y = MatMul(z, w) -> FusedMatMul Mul
e = MatMul(x, w) y = Mul(e, two) -> FusedMatMul
e = MatMul(x, w) y = Mul(two, e) -> FusedMatMul
e = MatMul(x, w) y = Div(e, two) -> FusedMatMul
e = MatMul(x, w) y = Div(two, e) -> MatMul Div
e = MatMul(x, w) y = Mul(e, flat) -> MatMul Mul
e = MatMul(x, w) y = Mul(e, two) z = Neg(e) -> MatMul Neg Mul
z = MatMul(x, w) y = Mul(z, two) -> MatMul Mul
e = Mul(x, two) f = Mul(k, half) t2 = Transpose<perm = [1, 0]>(f) i = MatMul(e, t2)\
 y = Mul(i, two) -> FusedMatMul
e = Mul(x, two) f = Div(turned, half) i = MatMul(e, f) y = Mul(i, two) -> FusedMatMul
e = Mul(k, two) y = MatMul(e, w) z = MatMul(e, turned) -> FusedMatMul FusedMatMul
e = Mul(d64, c64) y = MatMul(e, w64) -> FusedMatMul
e = Mul(x, two) y = com.microsoft.FusedMatMul<alpha = 0.25, transB = 1>(e, k) -> FusedMatMul
e = Squeeze(x) f = Mul(e, half) y = MatMul(f, w) -> Squeeze Mul MatMul
e = Squeeze(x) f = Mul(e, two) y = MatMul(f, w) -> Squeeze Mul MatMul
"""),
)
def test_constant_factors_around_matmul(body: str, expected: str) -> None:
    if "c64" in body:
        body = f"c64 = Cast<to = 11>(two) {body}"
    assert optimized_matmul(body, level="extended") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
e = Transpose<perm = [1, 0]>(k) y = MatMul(x, e) -> FusedMatMul
e = Transpose(k) y = MatMul(x, e) -> FusedMatMul
e = Transpose<perm = [1, 0]>(x) y = MatMul(e, full) -> FusedMatMul
e = Transpose<perm = [1, 0]>(x) f = Transpose<perm = [1, 0]>(full) y = MatMul(f, x)\
 -> FusedMatMul Transpose
e = Transpose<perm = [1, 0]>(k) y = MatMul(k, e) -> FusedMatMul
e = Transpose<perm = [1, 0]>(k) y = MatMul(x, e) z = Neg(e) -> FusedMatMul Transpose Neg
z = Transpose<perm = [1, 0]>(k) y = MatMul(x, z) -> Transpose MatMul
e = Transpose<perm = [0, 2, 1]>(deep) y = MatMul(deep, e) -> FusedMatMul
e = Transpose<perm = [0, 1, 3, 2]>(image) y = MatMul(four, e) -> FusedMatMul
e = Transpose<perm = [0, 2, 1, 3]>(batch) y = MatMul(e, turned) -> Transpose MatMul
e = Transpose<perm = [1, 0, 2]>(front) y = MatMul(e, turned) -> Transpose MatMul
e = Transpose<perm = [1, 0, 2]>(front) y = MatMul(e, batched) -> FusedMatMul
e = Transpose<perm = [1, 2, 0]>(front) y = MatMul(e, deep) -> FusedMatMul
e = Transpose<perm = [1, 2, 0]>(front) f = Transpose<perm = [1, 2, 0]>(front)\
 y = MatMul(deep, e) -> FusedMatMul
e = Transpose<perm = [2, 1, 0]>(front) y = MatMul(turned, e) -> Transpose MatMul
e = Transpose<perm = [1, 2, 3, 0]>(four) y = Exp(e) -> Transpose Exp
e = Transpose<perm = [1, 2, 0, 3]>(four) y = MatMul(e, turned) -> Transpose MatMul
e = Transpose<perm = [0]>(vector) y = MatMul(x, e) -> Transpose MatMul
e = Transpose(vector) y = MatMul(x, e) -> Transpose MatMul
e = Transpose(deep) y = MatMul(e, sideways) -> Transpose MatMul
e = Squeeze(some) f = Transpose(e) y = MatMul(x, f) -> Squeeze Transpose MatMul
e = Transpose<perm = [1, 0]>(k) y = com.microsoft.FusedMatMul<alpha = 0.5>(x, e) -> FusedMatMul
e = Transpose<perm = [1, 0]>(w) y = com.microsoft.FusedMatMul<transB = 1>(x, e) -> FusedMatMul
e = Transpose<perm = [1, 0]>(turned) y = com.microsoft.FusedMatMul<transB = 1>(x, e) -> FusedMatMul
e = Transpose<perm = [1, 0]>(k) f = Mul(e, two) y = MatMul(x, f) -> FusedMatMul
e = Transpose<perm = [1, 0]>(whole) y = MatMul(e, whole) -> Transpose MatMul
e = Transpose<perm = [1, 0]>(d64) y = MatMul(e, d64) -> FusedMatMul
e = Transpose<perm = [1, 0]>(h) f = Cast<to = 1>(e) y = MatMul(f, full) -> Cast FusedMatMul
e = Transpose<perm = [1, 0]>(h) f = Cast<to = 1>(e) y = MatMul(f, full) z = Neg(f)\
 -> Cast FusedMatMul Transpose Neg
e = Transpose<perm = [1, 0]>(h) f = Cast<to = 1>(e) y = MatMul(f, full) z = Identity(e)\
 -> Cast FusedMatMul Transpose Identity
e = Transpose<perm = [1, 0]>(whole) f = Cast<to = 1>(e) y = MatMul(f, full) -> Cast FusedMatMul
"""),
)
def test_transposes_before_matmul(body: str, expected: str) -> None:
    assert optimized_matmul(body, level="extended") == expected


NBITS_GRAPH = """<ir_version: 10, opset_import: ["" : OPSET, "com.microsoft" : 1]>
  agraph (float[2,3,32] x, float[7] row, float[1,7] wide, float[1] one, float[M] open,
    float[2,3,7] full, bool t) => (OUTPUTS)
  <uint8[7,1,16] w, float[7] s, float[7] b, float[7] c, uint8[7,1] z> { BODY }"""
PRODUCT = "com.microsoft.MatMulNBits <K = 32, N = 7, bits = 4, block_size = 32>"


def optimized_matmul_nbits(body: str, level: str = "extended", opset: int = 21) -> str:
    body = body.replace("PRODUCT", PRODUCT)
    outputs = ", ".join(f"float[] {name}" for name in ("y", "u") if f"{name} =" in body)
    text = (
        NBITS_GRAPH.replace("OPSET", str(opset)).replace("OUTPUTS", outputs).replace("BODY", body)
    )
    return " ".join(compare_with_onnxruntime(text, level, opset=opset))


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = PRODUCT(x, w, s) y = Add(a, b) -> MatMulNBits
a = PRODUCT(x, w, s) y = Add(b, a) -> MatMulNBits
a = PRODUCT(x, w, s, z) y = Add(a, b) -> MatMulNBits
a = PRODUCT(x, w, s) y = Add(a, row) -> MatMulNBits
a = PRODUCT(x, w, s) e = Neg(row) y = Add(a, e) -> Neg MatMulNBits
a = PRODUCT(x, w, s) e = Add(a, b) y = Relu(e) -> MatMulNBits Relu
a = PRODUCT(x, w, s) e = Add(a, b) y = Add(e, c) -> MatMulNBits Add
a = PRODUCT(x, w, s, z, , c) y = Add(a, b) -> MatMulNBits Add
a = PRODUCT(x, w, s) y = Add(a, wide) -> MatMulNBits Add
a = PRODUCT(x, w, s) y = Add(a, one) -> MatMulNBits Add
a = PRODUCT(x, w, s) y = Add(a, open) -> MatMulNBits Add
a = PRODUCT(x, w, s) y = Add(a, full) -> MatMulNBits Add
a = PRODUCT(x, w, s) y = Add(a, a) -> MatMulNBits Add
a = PRODUCT(x, w, s) y = Sub(a, b) -> MatMulNBits Sub
u = PRODUCT(x, w, s) y = Add(u, b) -> MatMulNBits Add
a = PRODUCT(x, w, s) u = Neg(a) y = Add(a, b) -> MatMulNBits Add Neg
a = PRODUCT(x, w, s) y = If(t) <then_branch = n () => (float[2,3,7] p) { p = Add(a, b) }, \
  else_branch = e () => (float[2,3,7] q) { q = Neg(a) }> -> MatMulNBits If
y = If(t) <then_branch = n () => (float[2,3,7] p) { a = PRODUCT(x, w, s) p = Add(a, b) }, \
  else_branch = e () => (float[2,3,7] q) { q = Neg(full) }> -> If
"""),
)
def test_add_of_a_row_becomes_the_bias_of_matmul_nbits(body: str, expected: str) -> None:
    assert optimized_matmul_nbits(body) == expected


@pytest.mark.parametrize(
    ("level", "opset", "expected"),
    [
        ("basic", 21, "MatMulNBits Add"),
        ("all", 21, "MatMulNBits"),
        ("all", 13, "MatMulNBits"),
        ("all", 7, "MatMulNBits"),
    ],
)
def test_matmul_nbits_bias_is_fused_from_the_extended_level_on(
    level: str, opset: int, expected: str
) -> None:
    assert optimized_matmul_nbits("a = PRODUCT(x, w, s) y = Add(a, b)", level, opset) == expected


NORM_GRAPH = """agraph (float[N,3,7] x, float[N,3,7] skip, float p, float[7] r, float16[N,3,7] h,
   float[P] f,
  float[N,7] flat, float[N,M,7] same, float[N,M,7] other, float[K,M,7] unlike, float[M,7] m2)
  => ({outputs})
  <float two = {{2.0}}, float tiny = {{0.001}}, float[7] g, float[7] b, float[1] one, float[7,7] v,
   int64[1] last = {{-1}}, int64[1] middle = {{1}}, int64[1] second = {{2}},
   int64[2] lasts = {{1, 2}},
   float three = {{3.0}}, float[3,7] wide, float[3,1] tall,
   double tiny64 = {{0.0009765625}}, double third64 = {{0.3}}>
  {{ {body} }}"""
MEAN = "m = ReduceMean<axes = [-1]>(x) d = Sub(x, m) "
CLOSE = "s = Add(w, tiny) t = Sqrt(s) q = Div(d, t) "
NORM = f"{MEAN} c = Pow(d, two) w = ReduceMean<axes = [-1]>(c) {CLOSE} e = Mul(q, g) y = Add(e, b)"


def optimized_norms(body: str, opset: int = 17) -> str:
    outputs = ", ".join(name for name in ("y", "z") if f"{name} =" in body)
    return " ".join(
        compare_with_onnxruntime(
            NORM_GRAPH.format(outputs=outputs, body=body), "extended", opset=opset
        )
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", "LayerNormalization"),
        ("Sub(x, m)", "Sub(m, x)", "LayerNormalization"),
        ("Mul(q, g)", "Mul(g, q)", "LayerNormalization"),
        ("Add(e, b)", "Add(b, e)", "LayerNormalization"),
        pytest.param("Add(w, tiny)", "Add(tiny, w)", "LayerNormalization", marks=since("1.32")),
        ("[-1]", "[2]", "LayerNormalization"),
        ("<axes = [-1]>(x)", "<axes = [1]>(x)", "ReduceMean Sub SimplifiedLayerNormalization Add"),
        (
            "<axes = [-1]>(c)",
            "<axes = [1]>(c)",
            "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add",
        ),
        ("<axes = [-1]>", "<axes = [1, 2]>", "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"),
        (
            "<axes = [-1]>",
            "<axes = [-2, -1]>",
            "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add",
        ),
        ("<axes = [-1]>", "", "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"),
        ("Pow(d, two)", "Pow(d, three)", "LayerNormalization"),
        ("Pow(d, two)", "Mul(d, d)", "ReduceMean Sub Mul ReduceMean Add Sqrt Div Mul Add"),
        ("Pow(d, two)", "Abs(d)", "ReduceMean Sub Abs ReduceMean Add Sqrt Div Mul Add"),
        ("Sqrt(s)", "Exp(s)", "ReduceMean Sub Pow ReduceMean Add Exp Div Mul Add"),
        ("Div(d, t)", "Mul(d, t)", "ReduceMean Sub Pow ReduceMean Add Sqrt Mul Mul Add"),
        ("Div(d, t)", "Div(x, t)", "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"),
        ("Div(d, t)", "Div(t, d)", "LayerNormalization"),
        ("Mul(q, g)", "Mul(q, p)", "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"),
        ("Mul(q, g)", "Mul(q, r)", "LayerNormalization"),
        ("Mul(q, g)", "Sub(q, g)", "ReduceMean Sub Pow ReduceMean Add Sqrt Div Sub Add"),
        ("Mul(q, g)", "Mul(q, wide)", "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"),
        ("Add(e, b)", "Add(e, wide)", "ReduceMean Sub SimplifiedLayerNormalization Add"),
        ("Add(e, b)", "Add(e, one)", "ReduceMean Sub SimplifiedLayerNormalization Add"),
        ("Add(e, b)", "Sub(e, b)", "ReduceMean Sub SimplifiedLayerNormalization Sub"),
        ("Add(e, b)", "Exp(e)", "ReduceMean Sub SimplifiedLayerNormalization Exp"),
        ("Sub(x, m)", "Add(x, m)", "ReduceMean Add SimplifiedLayerNormalization Add"),
        ("Sub(x, m)", "Sub(skip, m)", "ReduceMean Sub SimplifiedLayerNormalization Add"),
        (
            "Add(e, b)",
            "Add(e, b) z = Neg(e)",
            "ReduceMean Sub SimplifiedLayerNormalization Neg Add",
        ),
        (
            "Add(e, b)",
            "Add(e, b) z = Neg(m)",
            "ReduceMean Neg Sub SimplifiedLayerNormalization Add",
        ),
        (
            "Add(e, b)",
            "Add(e, b) z = Neg(d)",
            "ReduceMean Sub Neg SimplifiedLayerNormalization Add",
        ),
        (
            "Add(e, b)",
            "Add(e, b) z = Neg(t)",
            "ReduceMean Sub Pow ReduceMean Add Sqrt Neg Div Mul Add",
        ),
        (
            "Add(e, b)",
            "Add(e, b) z = Neg(q)",
            "ReduceMean Sub Pow ReduceMean Add Sqrt Div Neg Mul Add",
        ),
        (
            "Add(e, b)",
            "Add(e, b) z = Neg(w)",
            "ReduceMean Sub Pow ReduceMean Neg Add Sqrt Div Mul Add",
        ),
        (
            "m = Red",
            "z = Identity(m) m = Red",
            "ReduceMean Sub SimplifiedLayerNormalization Add Identity",
        ),
        ("d = Sub(x, m) ", "d = Sub(x, m) d2 = Sub(x, m) k = Identity(d2) ", "LayerNormalization"),
        ("Pow(d, two)", "Cast<to = 1>(d) c = Pow(dd, two)", "LayerNormalization"),
        pytest.param(
            "Add(w, tiny)",
            "Add(w, p)",
            "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add",
            marks=since("1.32"),
        ),
        ("Add(w, tiny)", "Sub(w, tiny)", "ReduceMean Sub Pow ReduceMean Sub Sqrt Div Mul Add"),
        (
            "w = ReduceMean<axes = [-1]>(c)",
            "w = Abs(c)",
            "ReduceMean Sub Pow Abs Add Sqrt Div Mul Add",
        ),
        (
            "s = Add(w, tiny) t = Sqrt(s)",
            "t = Sqrt(w)",
            "ReduceMean Sub Pow ReduceMean Sqrt Div Mul Add",
        ),
        ("t = Sqrt(s)", "t = Sqrt(p)", "Sqrt ReduceMean Sub Div Mul Add Pow ReduceMean Add"),
    ],
)
def test_a_normalization_in_parts_becomes_one_node(old: str, new: str, expected: str) -> None:
    body = NORM.replace(old, new) if old else NORM
    if "z = Identity(m)" in body:
        body = NORM.replace("e = Mul", "z = Identity(m) e = Mul")
    if "dd, two" in body:
        body = NORM.replace("Pow(d, two)", "Pow(dd, two)").replace(
            "c = Pow", "dd = Cast<to = 1>(d) c = Pow"
        )
    assert optimized_norms(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
m = ReduceMean(x, last) d = Sub(x, m) c = Pow(d, two) w = ReduceMean(c, last) s = Add(w, tiny)\
 t = Sqrt(s) q = Div(d, t) e = Mul(q, g) y = Add(e, b) -> LayerNormalization
m = ReduceMean(x, second) d = Sub(x, m) c = Pow(d, two) w = ReduceMean(c, last) s = Add(w, tiny)\
 t = Sqrt(s) q = Div(d, t) e = Mul(q, g) y = Add(e, b) -> LayerNormalization
m = ReduceMean(x, lasts) d = Sub(x, m) c = Pow(d, two) w = ReduceMean(c, lasts) s = Add(w, tiny)\
 t = Sqrt(s) q = Div(d, t) e = Mul(q, g) y = Add(e, b)\
 -> ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add
m = ReduceMean(x, middle) d = Sub(x, m) c = Pow(d, two) w = ReduceMean(c, middle) s = Add(w, tiny)\
 t = Sqrt(s) q = Div(d, t) e = Mul(q, g) y = Add(e, b)\
 -> ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add
m = ReduceMean(x, last) d = Sub(x, m) d2 = Sub(x, m) c = Pow(d, two) w = ReduceMean(c, last)\
 s = Add(w, tiny) t = Sqrt(s) q = Div(d2, t) e = Mul(q, g) y = Add(e, b) -> LayerNormalization
hh = Cast<to = 1>(h) m = ReduceMean(hh, last) d = Sub(hh, m) c = Pow(d, two)\
 w = ReduceMean(c, last) s = Add(w, tiny) t = Sqrt(s) q = Div(d, t) e = Mul(q, g)\
 y = Add(e, b) z = Neg(hh)\
 -> Cast LayerNormalization Neg
m = ReduceMean(x, last) d = Sub(x, m) k = Cast<to = 11>(d) dd = Cast<to = 1>(k) c = Pow(dd, two)\
 w = ReduceMean(c, last) s = Add(w, tiny) t = Sqrt(s) q = Div(dd, t) e = Mul(q, g)\
 y = Add(e, b) -> ReduceMean Sub SimplifiedLayerNormalization Add
m = ReduceMean(x, last) d = Sub(x, m) dd = Cast<to = 11>(d) c = Pow(dd, two)\
 w = ReduceMean(c, last) s = Add(w, tiny64) t = Sqrt(s) q = Div(dd, t) k = Cast<to = 1>(q)\
 e = Mul(k, g) y = Add(e, b) -> LayerNormalization
m = ReduceMean(x, last) d = Sub(x, m) dd = Cast<to = 11>(d) c = Pow(dd, two)\
 w = ReduceMean(c, last) s = Add(w, tiny64) t = Sqrt(s) k = Cast<to = 1>(t) q = Div(d, k)\
 e = Mul(q, g) y = Add(e, b) -> ReduceMean Sub Cast Pow ReduceMean Add Sqrt Cast Div Mul Add
m = ReduceMean(x, last) d = Sub(x, m) y = Exp(d) -> ReduceMean Sub Exp
m = ReduceMean(x, last) y = Exp(m) -> ReduceMean Exp
m = ReduceMean(x, last) d = Sub(x, m) c = Pow(d, two) y = Mul(d, c) -> ReduceMean Sub Pow Mul
m = ReduceMean(x, last) d = Sub(x, m) e = Exp(m) y = Add(d, e) -> ReduceMean Exp Sub Add
"""),
)
def test_layer_normalization_with_axes_as_an_input(body: str, expected: str) -> None:
    assert optimized_norms(body, 18) == expected


RMS = """c = Pow(x, two) w = ReduceMean<axes = [-1]>(c) s = Add(w, tiny) t = Sqrt(s)
 q = Div(x, t) y = Mul(q, g)"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", "SimplifiedLayerNormalization"),
        ("Mul(q, g)", "Mul(g, q)", "SimplifiedLayerNormalization"),
        ("[-1]", "[2]", "SimplifiedLayerNormalization"),
        ("[-1]", "[1]", "Pow ReduceMean Add Sqrt Div Mul"),
        ("[-1]", "[1, 2]", "Pow ReduceMean Add Sqrt Div Mul"),
        ("Div(x, t)", "Div(skip, t)", "Pow ReduceMean Add Sqrt Div Mul"),
        ("Div(x, t)", "Mul(x, t)", "Pow ReduceMean Add Sqrt Mul Mul"),
        ("Sqrt(s)", "Exp(s)", "Pow ReduceMean Add Exp Div Mul"),
        ("Add(w, tiny)", "Sub(w, tiny)", "Pow ReduceMean Sub Sqrt Div Mul"),
        pytest.param(
            "Add(w, tiny)", "Add(w, p)", "Pow ReduceMean Add Sqrt Div Mul", marks=since("1.32")
        ),
        ("Pow(x, two)", "Pow(x, three)", "Pow ReduceMean Add Sqrt Div Mul"),
        ("Pow(x, two)", "Mul(x, x)", "Mul ReduceMean Add Sqrt Div Mul"),
        ("Mul(q, g)", "Mul(q, p)", "Pow ReduceMean Add Sqrt Div Mul"),
        ("Mul(q, g)", "Mul(q, r)", "SimplifiedLayerNormalization"),
        ("Mul(q, g)", "Mul(q, wide)", "Pow ReduceMean Add Sqrt Div Mul"),
        ("Mul(q, g)", "Add(q, g)", "Pow ReduceMean Add Sqrt Div Add"),
        ("Mul(q, g)", "Mul(q, g) z = Neg(t)", "Pow ReduceMean Add Sqrt Neg Div Mul"),
        ("Mul(q, g)", "Mul(q, g) z = Neg(q)", "Pow ReduceMean Add Sqrt Div Neg Mul"),
        ("Mul(q, g)", "Mul(q, g) z = Neg(c)", "Pow Neg ReduceMean Add Sqrt Div Mul"),
        (
            "q = Div(x, t) y = Mul(q, g)",
            "i = Reciprocal(t) q = Mul(x, i) y = Mul(q, g)",
            "Pow ReduceMean Add Sqrt Reciprocal Mul Mul",
        ),
        (
            "q = Div(x, t) y = Mul(q, g)",
            "q = Div(x, t) y = Neg(q)",
            "Pow ReduceMean Add Sqrt Div Neg",
        ),
    ],
)
def test_a_normalization_without_a_mean_becomes_one_node(old: str, new: str, expected: str) -> None:
    assert optimized_norms(RMS.replace(old, new) if old else RMS) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Add(x, skip) y = LayerNormalization(a, g, b) -> SkipLayerNormalization
a = Add(x, skip) y = LayerNormalization<epsilon = 0.01>(a, g) -> SkipLayerNormalization
a = Add(x, skip) y = LayerNormalization(a, r, b) -> SkipLayerNormalization
a = Add(same, other) y = LayerNormalization(a, g, b) -> SkipLayerNormalization
a = Add(same, unlike) y = LayerNormalization(a, g, b) -> Add LayerNormalization
a = Add(x, flat) y = LayerNormalization(a, g, b) -> Add LayerNormalization
a = Add(flat, flat) y = LayerNormalization(a, g, b) -> Add LayerNormalization
a = Add(x, b) y = LayerNormalization(a, g, b) -> Add LayerNormalization
a = Add(same, m2) y = LayerNormalization(a, g, b) -> Add LayerNormalization
a = Sub(x, skip) y = LayerNormalization(a, g, b) -> Sub LayerNormalization
y = LayerNormalization(x, g, b) -> LayerNormalization
a = Add(x, skip) y = LayerNormalization(a, g, b) z = Neg(a) -> Add Neg LayerNormalization
z = Add(x, skip) y = LayerNormalization(z, g, b) -> Add LayerNormalization
c = Add(x, b) a = Add(c, skip) y = LayerNormalization(a, g, b) -> SkipLayerNormalization
c = Add(b, x) a = Add(c, skip) y = LayerNormalization(a, g, b) -> Add SkipLayerNormalization
c = Add(x, b) a = Add(skip, c) y = LayerNormalization(a, g, b) -> SkipLayerNormalization
c = Add(x, r) a = Add(c, skip) y = LayerNormalization(a, g, b) -> Add SkipLayerNormalization
c = Add(x, one) a = Add(c, skip) y = LayerNormalization(a, g, b) -> Add SkipLayerNormalization
c = Add(x, b) a = Add(c, skip) y = LayerNormalization(a, g, b) z = Neg(c)\
 -> Add SkipLayerNormalization Neg
c = Add(x, wide) a = Add(c, skip) y = LayerNormalization(a, g, b) -> Add SkipLayerNormalization
k = MatMul(same, v) c = Add(k, b) a = Add(c, other) y = LayerNormalization(a, g, b)\
 -> MatMul SkipLayerNormalization
k = MatMul(x, v) c = Add(k, b) a = Add(c, skip) y = LayerNormalization(a, g, b)\
 -> MatMul SkipLayerNormalization
k = MatMul(x, v) c = Add(b, k) a = Add(skip, c) y = LayerNormalization(a, g, b)\
 -> MatMul SkipLayerNormalization
a = Add(x, skip) y, n = LayerNormalization(a, g, b) -> SkipLayerNormalization
a = Add(x, skip) y = LayerNormalization<axis = 1>(a, wide, wide) -> Add LayerNormalization
a = Add(x, skip) y, n, i, w = com.microsoft.SkipLayerNormalization(a, skip, g, b)\
 -> Add SkipLayerNormalization
a = Add(x, b) y = com.microsoft.SkipLayerNormalization(a, skip, g, b) -> Add SkipLayerNormalization
k = MatMul(x, v) a = Add(k, b) y = com.microsoft.SkipLayerNormalization(a, skip, g, b)\
 -> MatMul SkipLayerNormalization
k = MatMul(same, v) a = Add(b, k) y = com.microsoft.SkipLayerNormalization(a, other, g, b)\
 -> MatMul SkipLayerNormalization
k = MatMul(same, v) a = Add(k, b) y = com.microsoft.SkipLayerNormalization(a, other, g, b, b)\
 -> MatMul Add SkipLayerNormalization
k = MatMul(same, v) a = Add(k, b) y = com.microsoft.SkipLayerNormalization(other, a, g, b)\
 -> MatMul SkipLayerNormalization
k = MatMul(same, v) a = Add(k, r) y = com.microsoft.SkipLayerNormalization(a, other, g, b)\
 -> MatMul Add SkipLayerNormalization
k = MatMul(same, v) a = Add(k, other) y = com.microsoft.SkipLayerNormalization(a, other, g, b)\
 -> MatMul Add SkipLayerNormalization
k = MatMul(same, v) z = Add(k, b) y = com.microsoft.SkipLayerNormalization(z, other, g, b)\
 -> MatMul Add SkipLayerNormalization
a = Mul(x, b) y = com.microsoft.SkipLayerNormalization(a, skip, g, b) -> Mul SkipLayerNormalization
"""),
)
def test_residual_add_before_layer_normalization(body: str, expected: str) -> None:
    assert optimized_norms(body) == expected


@since("1.32")
def test_an_epsilon_that_no_float_equals_is_not_fused() -> None:
    body = (
        f"{MEAN} dd = Cast<to = 11>(d) c = Pow(dd, two) w = ReduceMean<axes = [-1]>(c)"
        " s = Add(w, third64) t = Sqrt(s) q = Div(dd, t) k = Cast<to = 1>(q)"
        " e = Mul(k, g) y = Add(e, b)"
    )
    expected = "ReduceMean Sub Cast Pow ReduceMean Add Sqrt Div Cast Mul Add"
    assert optimized_norms(body) == expected
    assert optimized_norms(body.replace("third64", "tiny64")) == "LayerNormalization"
