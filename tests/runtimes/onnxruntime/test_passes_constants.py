"""Constants that onnxruntime works out, shares and reshapes by, and nodes that it finds equal."""

import pytest
from optimized_graphs import agrees, cases

pytestmark = pytest.mark.measure

GRAPH = """agraph (float[N,7] x, float[3,11,7] fixed, float[5,7] k, float[N,M,7] deep, bool c,
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


def left_of(body: str, opset: int = 17, level: str = "basic") -> str:
    outputs = ", ".join(name for name in ("y", "z") if f"{name} =" in body)
    return " ".join(agrees(GRAPH.format(outputs=outputs, body=body), level, opset=opset))


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_nodes_of_constants_are_worked_out(body: str, left: str) -> None:
    start = "".join(text for name, text in BEFORE.items() if name in body)
    assert left_of(start + body) == left


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
    ("body", "left"),
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
def test_a_branch_that_is_sure_to_run_takes_the_place_of_its_choice(body: str, left: str) -> None:
    body = body.replace("BRANCHES", BRANCHES).replace("NESTED", NESTED).replace("DEEPER", DEEPER)
    assert left_of("own = Abs(w) " + body) == left


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_equal_nodes_become_one(body: str, left: str) -> None:
    assert left_of("own = Abs(w) " + body.replace("BRANCHES", BRANCHES)) == left
