"""Activations that onnxruntime puts together, and those that it takes into the node before."""

import pytest
from optimized_graphs import agrees, cases

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


def left_of(body: str, opset: int = 20) -> str:
    """What is left of the nodes, the one that makes ``x`` aside."""
    outputs = ", ".join(name for name in ("y", "z") if f"{name} =" in body)
    left = agrees(GRAPH.format(outputs=outputs, body=body), "extended", opset=opset)
    left.remove("Abs")
    return " ".join(left)


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_gelu_by_way_of_the_error_function(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_gelu_by_way_of_tanh(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_quick_gelu(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_a_bias_before_gelu(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_an_activation_after_gemm(body: str, left: str) -> None:
    assert left_of(body) == left
