"""What onnxruntime takes into convolutions that stay in the plain layout."""

import pytest
from optimized_graphs import agrees, cases

pytestmark = pytest.mark.measure

GRAPH = """agraph (float[5,2,7,11] x, float[3,2,1,1] k, float[5,3,7,11] z, float[1,3,7,11] one,
  float[5,2,7] line, float[5,3,7] sum1, float[3,2,1] k1, float[N,2,7,11] open, float[N,3,7,11] sum2,
  float[0,2,7,11] empty, float[0,3,7,11] none, float p, float[3,3,1,1] k2, float[P,2,Q,R] some,
  float[P,3,Q,R] sum3)
  => ({outputs})
  <float[3] b, float low = {{0.0}}, float high = {{6.0}}>
  {{ {body} }}"""


def left_of(body: str, level: str = "all", opset: int = 21) -> str:
    outputs = ", ".join(name for name in ("y", "o") if f"{name} =" in body)
    return " ".join(agrees(GRAPH.format(outputs=outputs, body=body), level, opset=opset))


@pytest.mark.parametrize("opset", [13, 22])
@pytest.mark.parametrize(
    ("body", "left"),
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
def test_an_activation_after_a_convolution(body: str, left: str, opset: int) -> None:
    assert left_of(body, "extended", opset) == left


@pytest.mark.parametrize(
    ("bounds", "left"), [("min = -1.0, max = 6.0", "FusedConv"), ("max = 6.0", "FusedConv")]
)
def test_an_older_clip_after_a_convolution(bounds: str, left: str) -> None:
    assert left_of(f"a = Conv(x, k) y = Clip<{bounds}>(a)", "extended", 10) == left


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_a_sum_after_a_convolution(body: str, left: str) -> None:
    assert left_of(body) == left
