"""Casts for float16, constant folding and sharing, and equal nodes, compared with onnxruntime."""

import pytest
from runtimes.onnxruntime.optimized_graphs import cases, compare_with_onnxruntime, optimized_ops

pytestmark = pytest.mark.measure

GRAPH = """agraph (float16[N,7] h, float16[5,7] k, float[N,7] x, bool c, int64[1] at, double[N,7] d,
  float16 p, int32[N,7] i, uint8[5,7] q8, bfloat16[N,7] bf, float16[N,2,9,11] image)
  => ({outputs})
  <float16 half = {{14336}}, float16[7] v, float16[7,5] w, float16[3,2,1,1] kernel,
   float scale = {{0.5}},
   uint8 zero = {{3}}, int64[2] shape = {{2, 7}}, float16[5] bias, float16 stored>
  {{ {body} }}"""


def ops_after(body: str, level: str = "basic", opset: int = 18) -> str:
    return optimized_ops(GRAPH, body, level, opset=opset)


@pytest.mark.parametrize("level", ["off", "basic", "all"])
@pytest.mark.parametrize(
    ("body", "expected"),
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
def test_float16_operators_without_a_kernel_run_in_float32(
    body: str, expected: str, level: str
) -> None:
    ops = ops_after(body, level)
    assert level != "basic" or ops == expected


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
def test_operators_without_a_kernel_are_inlined(body: str, level: str) -> None:
    text = GRAPH.replace("bool c,", "bool c, int64[N] t2, int64 at0,")
    outputs = ", ".join(name for name in ("y", "z") if f"{name} =" in body or f", {name} =" in body)
    compare_with_onnxruntime(
        text.format(outputs="y, z" if "y, z" in body else outputs, body=body), level, opset=18
    )


@pytest.mark.parametrize(
    ("operator", "opset"),
    [("GroupNormalization", 21), ("GroupNormalization", 18), ("Swish", 24)],
)
def test_group_normalization_and_swish_are_inlined(operator: str, opset: int) -> None:
    call = "Swish(x)" if operator == "Swish" else "GroupNormalization<num_groups = 2>(x, s, t)"
    text = f"""agraph (float[5,4,7,11] x) => (y) <float[{4 if opset > 18 else 2}] s,
      float[{4 if opset > 18 else 2}] t> {{ y = {call} }}"""
    compare_with_onnxruntime(text, "all", opset=opset)


@pytest.mark.parametrize("level", ["off", "basic"])
@pytest.mark.parametrize(
    ("body", "expected"),
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
def test_each_reader_gets_its_own_dequantize_linear(body: str, expected: str, level: str) -> None:
    assert ops_after(body, level) == expected


CONSTANT_GRAPH = """agraph (float[N,7] x, float[3,11,7] fixed, float[5,7] k,
  float[N,M,7] deep, bool c,
   float p,
  int64[1] at, float[N,3,22] heads, float[P,Q,5] same, float[13,17] const, uint8[3,5] q8,
   float[71,2] tall)
  => ({outputs})
  <float[7] w, float[7] v = {{1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0}}, float half = {{0.5}},
   float half2 = {{0.5}},
   float[1] half1 = {{0.5}}, double half64 = {{0.5}},
   float[9] nine = {{1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0}},
   float[9] nine2 = {{1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0}}, int64 first = {{0}},
   int64 second = {{1}},
   int64 third = {{2}}, int64[1] firsts = {{0}}, int64[1] seconds = {{1}}, int64[1] thirds = {{2}},
   int64[1] minus = {{-1}}, int64[1] eleven = {{11}}, int64[1] two = {{2}},
   int64[2] pair = {{2, 11}}, int64[2] wide = {{70, 71}}, bool yes = {{1}}, bool no = {{0}},
   int64[1] end = {{9223372036854775807}},
   int64[2] big = {{40000, 40000}}, float[70,71] large, bool[2] both = {{1, 0}},
   float scale = {{0.5}},
   uint8 zero = {{3}}, uint8[3,5] stored, int64[3] zeros = {{0, 0, 0}}, float[0] empty = {{}},
   int64[2] halves = {{-1, 33}}, int64[1] thousand = {{33}}>
  {{ {body} }}"""


BEFORE = {"v2": "v2 = Concat<axis = 0>(v, v) ", "third2": "third2 = Identity(third) "}


def optimized_constants(body: str, opset: int = 17, level: str = "basic") -> str:
    outputs = ", ".join(name for name in ("y", "z") if f"{name} =" in body)
    return " ".join(
        compare_with_onnxruntime(
            CONSTANT_GRAPH.format(outputs=outputs, body=body), level, opset=opset
        )
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Exp(w) y = Add(x, a) -> Add
a = Exp(v) e = Neg(a) y = Add(x, e) -> Add
a = Exp(v) y = Add(x, a) z = Neg(a) -> Add
a = Exp(large) y = MatMul(a, tall) -> MatMul
a = SequenceConstruct(v, v) y = SequenceAt(a, first) -> SequenceConstruct SequenceAt
a = Optional(v) y = OptionalGetElement(a) -> Optional OptionalGetElement
a = Compress<axis = 0>(pair, both) y = Cast<to = 1>(a) -> Compress Cast
a, b = TopK(v, two) y = Neg(a) ->
a = Unique(v) y = Neg(a) ->
s = Shape(fixed) y = Reshape(fixed, s) -> Reshape
s = Shape(x) y = Reshape(k, s) -> Shape Reshape
s = Shape<start = 1>(fixed) y = Cast<to = 1>(s) ->
s = Shape<start = 1, end = 2>(fixed) y = Cast<to = 1>(s) ->
s = Shape<start = -1>(x) y = Cast<to = 1>(s) -> Shape Cast
e = Exp(fixed) s = Shape(e) f = Cast<to = 1>(s) y = Neg(f) ->
e = Exp(fixed) s = Shape(e) f = Cast<to = 1>(s) y = Neg(f) z = Abs(e) -> Exp Abs
a = RandomUniform<shape = [7]>() y = Add(x, a) -> RandomUniform Add
a = RandomNormalLike(v) y = Add(x, a) -> RandomNormalLike Add
r = Squeeze(deep) s = Shape(r) y = Cast<to = 1>(s) -> Squeeze Shape Cast
z = DequantizeLinear(stored, scale, zero) y = Add(z, p) -> DequantizeLinear Add DequantizeLinear
a = Clip(v, , half) y = Add(x, a) -> Add
a = ConstantOfShape(wide) y = Add(a, p) -> Add
a = com.microsoft.QuantizeLinear(v, scale, zero) e = Cast<to = 1>(a) y = Add(e, p) -> Add
a = ConstantOfShape(pair) y = Neg(a) ->
a = ConstantOfShape(big) y = Neg(a) -> ConstantOfShape Neg
a = ConstantOfShape(big) e = ReduceMean<keepdims = 0>(a) y = Add(x, e)\
 -> ConstantOfShape ReduceMean Add
a, b = Split(v2) e = Add(a, b) y = Add(x, e) -> Add
a = DequantizeLinear(stored, scale, zero) y = Add(a, p) -> DequantizeLinear Add
a = DequantizeLinear(stored, scale, zero) b = Transpose(a) e = QuantizeLinear(b, scale, zero)\
 y = Cast<to = 1>(e) ->
a = DequantizeLinear(stored, scale, zero) b = Transpose(a) y = Neg(b) -> DequantizeLinear Neg
a = DequantizeLinear(stored, scale, zero) b = Add(a, p) e = QuantizeLinear(b, scale, zero)\
 y = Cast<to = 1>(e) -> DequantizeLinear Add QuantizeLinear Cast
a = NonZero(v) e = Cast<to = 1>(a) y = ReduceSum(e) -> NonZero Cast ReduceSum
a = HardSwish(v) y = Add(x, a) -> HardSigmoid Mul Add
a = com.microsoft.Gelu(v) y = Add(x, a) -> Gelu Add
a = Cast<to = 10>(v) b = Exp(a) e = Cast<to = 1>(b) y = Add(x, e) -> Cast Exp Add
a = If(c) <then_branch = g () => (float t) { t = Neg(half) },\
 else_branch = h () => (float u) { u = Exp(half) }> y = Add(x, a) -> If Add
y = Identity(w) ->
a = Loop(third2, yes) <body = g (int64 i, bool k2) => (bool o, float t) { o = Identity(k2)\
 t = Neg(half) }> y = Neg(a) -> Loop Neg
"""),
)
def test_nodes_with_constant_inputs_are_folded(body: str, expected: str) -> None:
    start = "".join(text for name, text in BEFORE.items() if name in body)
    assert optimized_constants(start + body) == expected


BRANCHES = """<then_branch = g () => (float[A,B] t) { s = Exp(x) t = Add(s, own) },
 else_branch = h () => (float[A,B] u) <float one = {1.0}> { u = Sub(x, one) }>"""
NESTED = """<then_branch = g () => (float[A,B] t)
 { s = Exp(x) t = If(c) <then_branch = i () => (float[A,B] t2) { t2 = Neg(s) },
   else_branch = j () => (float[A,B] u2) { r = Exp(s) u2 = Add(r, s) }> },
 else_branch = h () => (float[A,B] u) { u = Abs(x) }>"""


DEEPER = """<then_branch = g () => (float[A,B] t)
 { s = Exp(x) t = If(c) <then_branch = i () => (float[A,B] t2)
   { t2 = If(c) <then_branch = k () => (float[A,B] t3) { t3 = Neg(s) },
     else_branch = l () => (float[A,B] u3) { u3 = Abs(s) }> },
   else_branch = j () => (float[A,B] u2) { u2 = Exp(s) }> },
 else_branch = h () => (float[A,B] u) { u = Abs(x) }>"""


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
y = If(yes) BRANCHES -> Exp Add
y = If(no) BRANCHES -> Sub
a = If(yes) BRANCHES y = Neg(a) -> Exp Add Neg
a = If(no) BRANCHES y = Neg(a) -> Sub Neg
y = If(c) BRANCHES -> If
f = And(yes, no) y = If(f) BRANCHES -> Sub
y = If(yes) NESTED -> Exp If
y = If(no) NESTED -> Abs
y = If(yes) DEEPER -> Exp If
y = If(no) DEEPER -> Abs
y = If(c) NESTED -> If
"""),
)
def test_an_if_with_a_constant_condition_is_inlined(body: str, expected: str) -> None:
    body = body.replace("BRANCHES", BRANCHES).replace("NESTED", NESTED).replace("DEEPER", DEEPER)
    assert optimized_constants("own = Abs(w) " + body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Exp(x) b = Exp(x) y = Add(a, b) -> Exp Add
a = Exp(x) b = Exp(x) c2 = Neg(a) d = Neg(b) y = Add(c2, d) -> Exp Neg Add
a = Exp(x) y = Exp(x) z = Neg(a) -> Exp Neg Exp
y = Exp(x) z = Exp(x) -> Exp Exp
a = Add(x, half) b = Add(x, half2) y = Mul(a, b) -> Add Mul
a = Add(x, half) b = Add(x, half1) y = Mul(a, b) -> Add Add Mul
a = Add(x, p) b = Add(p, x) y = Mul(a, b) -> Add Add Mul
a = Softmax<axis = 1>(x) b = Softmax(x) y = Mul(a, b) -> Softmax Softmax Mul
a = Softmax<axis = 0>(x) b = Softmax(x) y = Mul(a, b) -> Softmax Softmax Mul
a = LeakyRelu<alpha = 0.2>(x) b = LeakyRelu<alpha = 0.2>(x) y = Mul(a, b) -> LeakyRelu Mul
a = LeakyRelu<alpha = 0.2>(x) b = LeakyRelu<alpha = 0.3>(x) y = Mul(a, b) -> LeakyRelu LeakyRelu Mul
a = RandomUniformLike(x) b = RandomUniformLike(x) y = Add(a, b)\
 -> RandomUniformLike RandomUniformLike Add
a = com.microsoft.Gelu(x) b = com.microsoft.Gelu(x) y = Add(a, b) -> Gelu Gelu Add
a, b = Split<axis = 2>(heads) d, e = Split<axis = 2>(heads) f = Add(a, d) g = Add(b, e)\
 y = Add(f, g) -> Split Add Add Add
a, b = Split<axis = 2>(heads) d, z = Split<axis = 2>(heads) e = Add(a, d) y = Add(e, b)\
 -> Split Add Add
a = DequantizeLinear(q8, scale, zero) b = DequantizeLinear(q8, scale, zero) y = Add(a, b)\
 -> DequantizeLinear DequantizeLinear Add
a = Clip(x, half) b = Clip(x, half, ) y = Add(a, b) -> Clip Add
a = ConstantOfShape<value = float[1] {1.0}>(at)\
 b = ConstantOfShape<value = float[1] {1.0}>(at) y = Add(a, b) -> ConstantOfShape Add
a = ConstantOfShape<value = float[1] {1.0}>(at)\
 b = ConstantOfShape<value = float[1] {2.0}>(at) y = Add(a, b)\
 -> ConstantOfShape ConstantOfShape Add
a = If(c) BRANCHES b = If(c) BRANCHES y = Add(a, b) -> If If Add
a = Mul(nine, p) b = Mul(nine2, p) y = Add(a, b) -> Mul Mul Add
a = Exp(x) b = Exp(x) y = If(c) <then_branch = g () => (float[A,B] t) { t = Neg(a) },\
 else_branch = h () => (float[A,B] u) { u = Abs(b) }> -> Exp If
a = Add(p, half) y = If(c) <then_branch = g () => (float t) { t = Add(a, half) },\
 else_branch = h () => (float u) { u = Add(a, half2) }> -> Add If
"""),
)
def test_equal_nodes_are_merged(body: str, expected: str) -> None:
    assert optimized_constants("own = Abs(w) " + body.replace("BRANCHES", BRANCHES)) == expected
