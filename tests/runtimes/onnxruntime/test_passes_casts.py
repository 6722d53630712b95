"""Half precision and operators without a kernel, as onnxruntime makes them run."""

import pytest
from optimized_graphs import agrees, cases

pytestmark = pytest.mark.measure

GRAPH = """agraph (float16[N,7] h, float16[5,7] k, float[N,7] x, bool c, int64[1] at, double[N,7] d,
  float16 p, int32[N,7] i, uint8[5,7] q8, bfloat16[N,7] bf, float16[N,2,9,11] image)
  => ({outputs})
  <float16 half = {{14336}}, float16[7] v, float16[7,5] w, float16[3,2,1,1] kernel,
   float scale = {{0.5}},
   uint8 zero = {{3}}, int64[2] shape = {{2, 7}}, float16[5] bias, float16 stored>
  {{ {body} }}"""


def left_of(body: str, level: str = "basic", opset: int = 18) -> str:
    outputs = ", ".join(name for name in ("y", "z") if f"{name} =" in body)
    return " ".join(agrees(GRAPH.format(outputs=outputs, body=body), level, opset=opset))


@pytest.mark.parametrize("level", ["off", "basic", "all"])
@pytest.mark.parametrize(
    ("body", "left"),
    cases("""
y = Exp(h) -> Cast Exp Cast
a = Exp(h) y = Neg(a) -> Cast Exp Neg Cast
a = Exp(h) b = Transpose(a) y = Exp(b) -> Cast Exp Transpose Exp Cast
a = Exp(h) b = Transpose(a) y = Exp(b) z = Transpose(b)\
 -> Cast Exp Cast Transpose Cast Exp Cast Transpose
a = Transpose(h) b = Exp(a) y = Transpose(b) -> Transpose Cast Exp Cast Transpose
a = Exp(h) b = Concat<axis = 0>(a, k) y = Exp(b) -> Cast Cast Exp Concat Exp Cast
a = Exp(h) b = Exp(k) e = Concat<axis = 0>(a, b) y = Exp(e) -> Cast Exp Cast Exp Concat Exp Cast
a = Exp(h) b = Abs(h) y = Add(a, b) -> Cast Abs Exp Add Cast
y = Add(h, half) -> Cast Cast Add Cast
y = Add(h, v) -> Cast Cast Add Cast
a = Add(h, v) y = Add(a, v) -> Cast Cast Add Add Cast
y = MatMul(h, w) -> Cast Cast MatMul Cast
a = MatMul(h, w) y = Add(a, bias) -> Cast Cast Cast Gemm Cast
y = Conv(image, kernel) -> Cast Cast Conv Cast
y = EyeLike<dtype = 10>(h) -> Cast EyeLike Cast
y = Clip(h, half) -> Clip
a = Cast<to = 1>(h) b = Exp(a) y = Cast<to = 10>(b) -> Cast Exp Cast
a = Cast<to = 1>(h) b = Cast<to = 10>(a) y = Exp(b) -> Cast Exp Cast
a = Cast<to = 10>(x) b = Cast<to = 1>(a) y = Neg(b) -> Cast Cast Neg
a = Cast<to = 10>(x) y = Cast<to = 1>(a) z = Exp(a) -> Cast Cast Exp Cast Cast
a = Cast<to = 11>(x) b = Cast<to = 1>(a) e = Cast<to = 6>(a) f = Cast<to = 1>(e) y = Add(b, f)\
 -> Cast Cast Add
a = Cast<to = 6>(x) b = Cast<to = 1>(a) y = Neg(b) -> Cast Cast Neg
a = Cast<to = 1>(i) b = Cast<to = 6>(a) y = Neg(b) -> Cast Cast Neg
a = Cast<to = 7>(i) b = Cast<to = 6>(a) y = Neg(b) -> Neg
a = Cast<to = 1>(q8) b = Cast<to = 2>(a) e = Cast<to = 6>(b) y = Neg(e) -> Cast Neg
a = Cast<to = 2>(i) b = Cast<to = 6>(a) y = Neg(b) -> Cast Cast Neg
a = Cast<to = 3>(q8) b = Cast<to = 2>(a) e = Cast<to = 6>(b) y = Neg(e) -> Cast Cast Cast Neg
a = Cast<to = 12>(i) b = Cast<to = 6>(a) y = Neg(b) -> Cast Cast Neg
a = Cast<to = 16>(h) b = Cast<to = 10>(a) y = Exp(b) -> Cast Cast Exp Cast
a = Cast<to = 9>(x) b = Cast<to = 1>(a) y = Neg(b) -> Cast Cast Neg
a = Cast<to = 8>(x) b = Cast<to = 1>(a) y = Neg(b) -> Cast Cast Neg
a = Cast<to = 11>(h) b = Cast<to = 1>(a) y = Neg(b) -> Cast Neg
a = Exp(h) y = If(c) <then_branch = g () => (float16[A,B] t) { e = Exp(a) t = Neg(e) },\
 else_branch = f () => (float16[A,B] u) { u = Transpose(a) }> -> Cast Exp Cast If
y = Equal(h, h) -> Cast Equal
y = com.microsoft.FusedMatMul(h, w) -> Cast Cast FusedMatMul Cast
a = Exp(h) b = Shape(a) e = Cast<to = 1>(b) y = Neg(e) -> Cast Exp Cast Shape Cast Neg
a = DequantizeLinear(q8, scale, zero) y = Neg(a) z = Exp(a)\
 -> DequantizeLinear Exp DequantizeLinear Neg
"""),
)
def test_half_precision_runs_in_single(body: str, left: str, level: str) -> None:
    made = left_of(body, level)
    assert level != "basic" or made == left


@pytest.mark.parametrize("level", ["off", "all"])
@pytest.mark.parametrize(
    "body",
    [
        "y = HardSwish(x)",
        "a = HardSwish(h) y = Neg(a)",
        "y = Mish(x)",
        "y = CastLike(x, h)",
        "y = CenterCropPad(x, shape)",
        "y = Bernoulli(x)",
        "y = Bernoulli<dtype = 10>(x)",
        "t = Cast<to = 7>(at) l = LogSoftmax(x) y = NegativeLogLikelihoodLoss(l, t2)",
        "y, z = SoftmaxCrossEntropyLoss(x, t2)",
        "y = If(c) <then_branch = g () => (float[A,B] t) { t = HardSwish(x) },\
         else_branch = f () => (float[A,B] u) { u = Neg(x) }>",
        "a = SequenceConstruct(x, x) e = SequenceMap<body = g (float[A,B] s) => (float[A,B] t)\
         { t = Exp(s) }>(a) y = SequenceAt(e, at0)",
        "a = SequenceConstruct(x, x) e = SequenceMap<body = g (float[A,B] s) => (float[A,B] t)\
         { t = Add(s, x) }>(a) y = SequenceAt(e, at0)",
        "a = SequenceConstruct(x, x) e = SequenceMap<body = g (float[A,B] s, float[A,B] r)\
         => (float[A,B] t) { t = Add(s, r) }>(a, x) y = SequenceAt(e, at0)",
    ],
)
def test_operators_without_a_kernel_are_written_out(body: str, level: str) -> None:
    text = GRAPH.replace("bool c,", "bool c, int64[N] t2, int64 at0,")
    outputs = ", ".join(name for name in ("y", "z") if f"{name} =" in body or f", {name} =" in body)
    agrees(text.format(outputs="y, z" if "y, z" in body else outputs, body=body), level, opset=18)


@pytest.mark.parametrize(
    ("operator", "opset"),
    [("GroupNormalization", 21), ("GroupNormalization", 18), ("Swish", 24)],
)
def test_normalization_by_groups_and_swish(operator: str, opset: int) -> None:
    call = "Swish(x)" if operator == "Swish" else "GroupNormalization<num_groups = 2>(x, s, t)"
    text = f"""agraph (float[5,4,7,11] x) => (y) <float[{4 if opset > 18 else 2}] s,
      float[{4 if opset > 18 else 2}] t> {{ y = {call} }}"""
    agrees(text, "all", opset=opset)


@pytest.mark.parametrize("level", ["off", "basic"])
@pytest.mark.parametrize(
    ("body", "left"),
    cases("""
a = DequantizeLinear(q8, scale, zero) b = Exp(a) y = Add(a, b)\
 -> DequantizeLinear DequantizeLinear Exp Add
z = DequantizeLinear(q8, scale, zero) y = Exp(z) -> DequantizeLinear Exp DequantizeLinear
a = DequantizeLinear(q8, scale, zero) y = If(c)\
 <then_branch = g () => (float[A,B] t) { t = Exp(a) },\
 else_branch = f () => (float[A,B] u) { u = Neg(a) }>\
 -> DequantizeLinear If
a = DequantizeLinear(q8, scale, zero) b = Neg(a) y = If(c)\
 <then_branch = g () => (float[A,B] t) { t = Exp(a) },\
 else_branch = f () => (float[A,B] u) { u = Neg(b) }>\
 -> DequantizeLinear Neg DequantizeLinear If
a = DequantizeLinear(q8, scale, zero) y = Exp(a) -> DequantizeLinear Exp
a = com.microsoft.DequantizeLinear(q8, scale, zero) b = Exp(a) y = Add(a, b)\
 -> DequantizeLinear DequantizeLinear Exp Add
"""),
)
def test_each_reader_has_a_dequantizer_of_its_own(body: str, left: str, level: str) -> None:
    assert left_of(body, level) == left
