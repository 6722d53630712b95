"""Fusion of Reshapes, Gathers and Slices, compared with onnxruntime."""

import pytest
from runtimes.onnxruntime.optimized_graphs import cases, compare_with_onnxruntime, optimized_ops

pytestmark = pytest.mark.measure

GRAPH = """agraph (float[B,S,H] x, float[B,S,12] known, float[2,3,5] fixed, float p, int64 n,
   int64[1] one,
  int64[3] three, float[B,Q,H] other, int64[2] two, float[R,6,N] six, int64 start, int64 limit,
  int64 delta, int32[6,7] whole, float[4,N] four, float[B,Q,H,D] rank4)
  => ({outputs})
  <int64 zero = {{0}}, int64 first = {{1}}, int64 second = {{2}}, int64[1] zeros = {{0}},
   int64[1] ones = {{1}},
   int64[1] twos = {{2}}, int64[1] minus = {{-1}}, int64[1] twelve = {{12}},
   int64[2] ends = {{-1, 12}},
   int64[1] end = {{9223372036854775807}}, int64[1] three1 = {{3}}, int64[1] six1 = {{6}},
   int64[1] four1 = {{4}},
   int64[1] five1 = {{5}}, int64[2] pair = {{0, 1}}, int64[2] target = {{6, 5}},
   int64[3] target3 = {{1, 6, 5}},
   int64[1] behind = {{-3}}, int32[1] twos32 = {{2}}, int64[1] flat = {{30}},
   int64 minus1 = {{-1}}, int64 minus2 = {{-2}},
   int32 first32 = {{1}}, int64[2] copied = {{0, -1}}>
  {{ {body} }}"""
DIM0 = "s = Shape(x) g = Gather(s, zero) u = Unsqueeze(g, zeros) "
DIM1 = "s1 = Shape(x) g1 = Gather(s1, first) u1 = Unsqueeze(g1, zeros) "
DIM2 = "s2 = Shape(x) g2 = Gather(s2, second) u2 = Unsqueeze(g2, zeros) "


def ops_after(body: str, opset: int = 17, level: str = "basic") -> str:
    return optimized_ops(GRAPH, body, level, opset=opset)


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
DIM0 c = Concat<axis = 0>(u, minus) y = Reshape(x, c) -> Reshape
DIM0 DIM1 c = Concat<axis = 0>(u, u1, minus) y = Reshape(x, c) -> Reshape
DIM0 DIM1 DIM2 c = Concat<axis = 0>(u, u1, u2) y = Reshape(x, c) -> Reshape
DIM0 DIM1 c = Concat<axis = 0>(u1, u, minus) y = Reshape(x, c)\
 -> Shape Gather Unsqueeze Gather Unsqueeze Concat Reshape
DIM0 c = Concat<axis = 0>(u, ends) y = Reshape(x, c) -> Reshape
DIM0 c = Concat<axis = 0>(u, minus) y = Reshape(known, c) -> Reshape
DIM0 c = Concat<axis = 0>(u, minus) y = Reshape(other, c) -> Reshape
DIM0 c = Concat<axis = 0>(u, minus) y = Reshape(six, c) -> Shape Gather Unsqueeze Concat Reshape
DIM0 c = Concat<axis = 0>(u, minus) y = Reshape(x, c) z = Cast<to = 1>(c)\
 -> Shape Gather Unsqueeze Concat Cast Reshape
DIM0 c = Concat<axis = 0>(u, minus) y = Reshape(x, c) z = Cast<to = 1>(g)\
 -> Shape Gather Cast Reshape
DIM0 z = Concat<axis = 0>(u, minus) y = Reshape(x, z) -> Shape Gather Unsqueeze Concat Reshape
DIM0 c = Concat<axis = 0>(u, minus) y = Reshape<allowzero = 1>(x, c)\
 -> Shape Gather Unsqueeze Concat Reshape
DIM0 c = Concat<axis = 0>(u, one) y = Reshape(x, c) -> Reshape
DIM0 c = Concat<axis = 0>(u, one, minus) y = Reshape(x, c) -> Shape Gather Unsqueeze Concat Reshape
DIM0 c = Concat<axis = 0>(u, two) y = Reshape(x, c) -> Shape Gather Unsqueeze Concat Reshape
u = Unsqueeze(n, zeros) c = Concat<axis = 0>(zeros, u) y = Reshape(x, c) -> Reshape
u = Unsqueeze(one, zeros) v = Squeeze(u, zeros) c = Concat<axis = 0>(zeros, v)\
 y = Reshape(x, c) -> Reshape
s = Shape(other) g = Gather(s, first) u = Unsqueeze(g, zeros) c = Concat<axis = 0>(zeros, u)\
 y = Reshape(x, c) -> Reshape
s = Shape(x) g = Gather(s, first) m = Mul(g, n) u = Unsqueeze(m, zeros)\
 c = Concat<axis = 0>(zeros, u) y = Reshape(x, c) -> Reshape
s = Shape(x) g = Gather(s, first) m = Div(g, second) u = Unsqueeze(m, zeros)\
 c = Concat<axis = 0>(zeros, u) y = Reshape(x, c) -> Reshape
s = Shape(x) g = Gather(s, first) m = Add(g, n) u = Unsqueeze(m, zeros)\
 c = Concat<axis = 0>(zeros, u) y = Reshape(x, c) -> Reshape
s = Shape(x) i = Slice(s, twos, end) q = Squeeze(i, zeros) m = Mul(q, n)\
 u = Unsqueeze(m, zeros) c = Concat<axis = 0>(zeros, u) y = Reshape(x, c) -> Reshape
s = Shape(x) i = Slice(s, ones, twos) q = Squeeze(i, zeros) m = Mul(q, n)\
 u = Unsqueeze(m, zeros) c = Concat<axis = 0>(zeros, u) y = Reshape(x, c) -> Reshape
s = Shape(x) i = Slice(s, minus, end) q = Squeeze(i, zeros) u = Unsqueeze(q, zeros)\
 c = Concat<axis = 0>(zeros, u) y = Reshape(x, c) -> Reshape
s = Shape(x) i = Slice(s, ones, one) q = Squeeze(i, zeros) u = Unsqueeze(q, zeros)\
 c = Concat<axis = 0>(zeros, u) y = Reshape(x, c) -> Reshape
s = Shape(x) i = Slice(s, ones, end) c = Concat<axis = 0>(zeros, i) y = Reshape(x, c)\
 -> Shape Slice Concat Reshape
s = Shape(other) i = Slice(s, ones, twos) q = Squeeze(i) u = Unsqueeze(q, zeros)\
 c = Concat<axis = 0>(zeros, u) y = Reshape(x, c) -> Reshape
s = Shape(other) i = Slice(s, one, twos) q = Squeeze(i) u = Unsqueeze(q, zeros)\
 c = Concat<axis = 0>(zeros, u) y = Reshape(x, c) -> Shape Slice Squeeze Unsqueeze Concat Reshape
i = Slice(three, one, twos) q = Squeeze(i) u = Unsqueeze(q, zeros)\
 c = Concat<axis = 0>(zeros, u) y = Reshape(x, c) -> Slice Squeeze Unsqueeze Concat Reshape
g = Gather(three, first) u = Unsqueeze(g, zeros) c = Concat<axis = 0>(zeros, u)\
 y = Reshape(x, c) -> Reshape
c = Concat<axis = 0>(zeros, three) y = Reshape(x, c) -> Concat Reshape
s = Shape(x) c = Concat<axis = 0>(zeros, s) y = Reshape(x, c) -> Shape Concat Reshape
s = Shape(x) g = Gather(s, n) u = Unsqueeze(g, zeros) c = Concat<axis = 0>(zeros, u)\
 y = Reshape(x, c) -> Reshape
s = Shape(x) g = Gather(s, two) c = Concat<axis = 0>(g, minus) y = Reshape(x, c)\
 -> Shape Gather Concat Reshape
e = Exp(x) s = Shape(e) g = Gather(s, zero) u = Unsqueeze(g, zeros)\
 c = Concat<axis = 0>(u, minus) y = Reshape(x, c) -> Reshape
s = Shape(rank4) g = Gather(s, three3) u = Unsqueeze(g, zeros) c = Concat<axis = 0>(u, minus)\
 y = Reshape(x, c) -> Shape Gather Unsqueeze Concat Reshape
r = Squeeze(other) s = Shape(r) i = Slice(s, minus, end) q = Squeeze(i)\
 u = Unsqueeze(q, zeros) c = Concat<axis = 0>(zeros, u) y = Reshape(r, c)\
 -> Squeeze Shape Slice Squeeze Unsqueeze Concat Reshape
r = Squeeze(other) s = Shape(r) i = Slice(s, ones, twos) q = Squeeze(i)\
 u = Unsqueeze(q, zeros) c = Concat<axis = 0>(zeros, u) y = Reshape(r, c)\
 -> Squeeze Shape Slice Squeeze Unsqueeze Concat Reshape
r = Squeeze(other) s = Shape(r) i = Slice(s, zeros, twos) q = Squeeze(i)\
 u = Unsqueeze(q, zeros) c = Concat<axis = 0>(zeros, u) y = Reshape(r, c)\
 -> Squeeze Shape Slice Squeeze Unsqueeze Concat Reshape
r = Squeeze(other) s = Shape(r) i = Slice(s, one, twos) q = Squeeze(i) u = Unsqueeze(q, zeros)\
 c = Concat<axis = 0>(zeros, u) y = Reshape(r, c)\
 -> Squeeze Shape Slice Squeeze Unsqueeze Concat Reshape
r = Squeeze(other) s = Shape(x) i = Slice(s, one, twos) q = Squeeze(i) u = Unsqueeze(q, zeros)\
 c = Concat<axis = 0>(zeros, u) y = Reshape(r, c)\
 -> Shape Slice Squeeze Unsqueeze Concat Squeeze Reshape
r = Squeeze(other) s = Shape(r) i = Slice(s, minus, end) q = Squeeze(i) m = Mul(q, n)\
 u = Unsqueeze(m, zeros) c = Concat<axis = 0>(zeros, u) y = Reshape(r, c)\
 -> Squeeze Shape Slice Squeeze Mul Unsqueeze Concat Reshape
r = Squeeze(other) s = Shape(r) i = Slice(s, minus, end) q = Squeeze(i) m = Div(q, n)\
 u = Unsqueeze(m, zeros) c = Concat<axis = 0>(zeros, u) y = Reshape(r, c)\
 -> Squeeze Shape Slice Squeeze Div Unsqueeze Concat Reshape
r = Squeeze(other) s = Shape(r) q = Squeeze(s) u = Unsqueeze(q, zeros)\
 c = Concat<axis = 0>(zeros, u) y = Reshape(r, c) -> Squeeze Shape Squeeze Unsqueeze Concat Reshape
r = Squeeze(other) s = Shape(r) g = Gather(s, one) u = Unsqueeze(g, ones) v = Squeeze(u)\
 w = Unsqueeze(v, zeros) c = Concat<axis = 0>(zeros, w) y = Reshape(r, c) -> Squeeze Reshape
r = Squeeze(one) u = Unsqueeze(r, zeros) c = Concat<axis = 0>(zeros, u) y = Reshape(x, c) -> Reshape
r = Squeeze(other) s = Shape(r) g = Gather(s, first) u = Unsqueeze(g, zeros)\
 c = Concat<axis = 0>(zeros, u) y = Reshape(x, c) -> Reshape
c = Add(two, pair) y = Reshape(x, c) -> Add Reshape
y = Reshape(x, two) -> Reshape
"""),
)
def test_reshape_targets_computed_from_the_input_shape(body: str, expected: str) -> None:
    for name, text in (("DIM0", DIM0), ("DIM1", DIM1), ("DIM2", DIM2)):
        body = body.replace(name, text)
    assert ops_after(body.replace("three3", "first")) == expected


def test_unsqueeze_axes_may_be_attributes() -> None:
    body = """s = Shape(x) i = Slice<starts = [1], ends = [2]>(s) q = Squeeze<axes = [0]>(i)
      u = Unsqueeze<axes = [0]>(q) c = Concat<axis = 0>(zeros, u) y = Reshape(x, c)"""
    assert ops_after(body, 9) == "Reshape"


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Reshape(fixed, target) y = Reshape(a, flat) -> Reshape
a = Reshape(fixed, target) b = Unsqueeze(a, zeros) y = Neg(b) -> Reshape Neg
a = Reshape(fixed, target3) b = Squeeze(a, zeros) y = Neg(b) -> Reshape Neg
a = Reshape(fixed, target3) b = Squeeze(a) c = Unsqueeze(b, ones) y = Reshape(c, flat) -> Reshape
a = Reshape(fixed, target) b = Reshape(a, flat) y = Neg(b) z = Neg(a) -> Reshape Neg Reshape Neg
z = Reshape(fixed, target) y = Reshape(z, flat) -> Reshape Reshape
a = Reshape(x, copied) y = Unsqueeze(a, zeros) -> Reshape Unsqueeze
a = Reshape(fixed, target) y = Reshape(a, two) -> Reshape Reshape
a = Reshape(fixed, target) y = Reshape<allowzero = 1>(a, flat) -> Reshape Reshape
a = Reshape(fixed, flat) b = Cast<to = 7>(a) y = Reshape(fixed, b) -> Reshape Cast Reshape
a = Reshape(fixed, target) b = Flatten(a) y = Reshape(b, flat) -> Reshape Flatten Reshape
a = Unsqueeze(fixed, zeros) y = Reshape(a, flat) -> Unsqueeze Reshape
"""),
)
def test_consecutive_reshapes_become_the_last_one(body: str, expected: str) -> None:
    assert ops_after(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Gather<axis = 1>(six, zero) b = Slice(six, ones, six1, ones) e = ReduceSum(b, ones)\
 y = Add(a, e) -> Split Squeeze ReduceSum Add
a = Slice(six, zeros, twos, ones) b = Slice(six, twos, six1, ones) y = Concat<axis = 1>(b, a)\
 -> Split Concat
a = Slice(six, twos, six1, ones) b = Slice(six, zeros, twos, ones) y = Concat<axis = 1>(b, a)\
 -> Split Concat
a = Slice(six, zeros, twos, ones, ones) b = Slice(six, twos, end, ones, ones)\
 y = Concat<axis = 1>(b, a) -> Split Concat
a = Slice(six, zeros, behind, ones) b = Slice(six, behind, end, ones)\
 y = Concat<axis = 1>(b, a) -> Split Concat
a = Slice(six, zeros, twos, ones) b = Slice(six, three1, six1, ones) y = Concat<axis = 1>(b, a)\
 -> Slice Slice Concat
a = Slice(six, zeros, twos, ones) b = Slice(six, ones, six1, ones) y = Concat<axis = 1>(b, a)\
 -> Slice Slice Concat
a = Slice(six, zeros, twos, ones) b = Slice(six, twos, five1, ones) y = Concat<axis = 1>(b, a)\
 -> Slice Slice Concat
a = Slice(six, zeros, twos, ones, ones) b = Slice(six, twos, six1, ones, twos)\
 y = Concat<axis = 1>(b, a) -> Slice Slice Concat
a = Slice(six, zeros, twos, ones) b = Slice(six, twos, six1, zeros) y = Concat<axis = 1>(b, a)\
 -> Slice Slice Concat
a = Slice(six, zeros, twos, one) b = Slice(six, twos, six1, ones) y = Concat<axis = 1>(b, a)\
 -> Slice Slice Concat
a = Slice(six, zeros, one, ones) b = Slice(six, twos, six1, ones) y = Concat<axis = 1>(b, a)\
 -> Slice Slice Concat
a = Slice(six, zeros, twos) b = Slice(six, twos, six1) y = Concat<axis = 0>(b, a)\
 -> Slice Slice Concat
a = Slice(whole, zeros, twos, zeros) b = Slice(whole, twos, six1, zeros)\
 y = Concat<axis = 0>(b, a) -> Split Concat
a = Slice(six, zeros, twos, ones) b = Slice(six, twos, six1, ones) e = Neg(six)\
 y = Concat<axis = 1>(b, a) z = Exp(e) -> Neg Exp Split Concat
a = Gather(four, zero) b = Gather(four, first) c = Gather(four, second)\
 d = Gather(four, minus1) e = Add(a, b) f = Add(c, d) y = Mul(e, f)\
 -> Split Squeeze Squeeze Add Squeeze Squeeze Add Mul
a = Gather(four, zeros) b = Gather(four, ones) c = Gather(four, twos) d = Gather(four, minus)\
 e = Add(a, b) f = Add(c, d) y = Mul(e, f) -> Split Add Add Mul
a = Gather(four, zero) b = Gather(four, first) c = Gather(four, second) e = Add(a, b)\
 y = Mul(e, c) -> Gather Gather Add Gather Mul
a = Gather(four, zero) b = Gather(four, n) c = Gather(four, second) d = Gather(four, minus1)\
 e = Add(a, b) f = Add(c, d) y = Mul(e, f) -> Gather Gather Add Gather Gather Add Mul
h = Exp(four) a = Gather(h, zero) b = Gather(h, first) c = Gather(h, second)\
 d = Gather(h, minus1) e = Add(a, b) f = Add(c, d) y = Mul(e, f)\
 -> Exp Split Squeeze Squeeze Add Squeeze Squeeze Add Mul
h = Exp(four) a = Slice(h, zeros, ones, zeros) b = Slice(h, ones, four1, zeros)\
 y = Concat<axis = 0>(a, b) z = Neg(h) -> Exp Neg Split Concat
z = Exp(four) a = Slice(z, zeros, ones, zeros) b = Slice(z, ones, four1, zeros)\
 y = Concat<axis = 0>(a, b) -> Exp Split Concat
a = Gather<axis = 1>(x, zero) b = Gather<axis = 1>(x, first) y = Add(a, b) -> Gather Gather Add
h = Squeeze(x) a = Gather<axis = 1>(h, zero) b = Gather<axis = 1>(h, first) y = Add(a, b)\
 -> Squeeze Gather Gather Add
a = Gather(four, first32) b = Gather(four, zero) y = Add(a, b) -> Gather Gather Add
a = Gather(four, pair) b = Gather(four, zero) y = Add(a, b) -> Gather Gather Add
s = Shape(rank4) a = Gather(s, zero) b = Gather(s, first) c = Gather(s, second)\
 d = Gather(s, minus1) e = Add(a, b) f = Add(c, d) y = Mul(e, f)\
 -> Shape Gather Gather Add Gather Gather Add Mul
"""),
)
def test_gathers_and_slices_of_a_whole_value_become_a_split(body: str, expected: str) -> None:
    assert ops_after(body, level="extended") == expected


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
r = Range(start, limit, delta) y = Gather<axis = 1>(x, r) -> Unsqueeze Unsqueeze Unsqueeze Slice
r = Range(start, limit, delta) y = Gather(x, r) -> Unsqueeze Unsqueeze Unsqueeze Slice
r = Range(start, limit, delta) y = Gather(r, one) -> Range Gather
r = Range(start, limit, delta) y = Gather(x, r) z = Neg(r) -> Range Neg Gather
z = Range(start, limit, delta) y = Gather(x, z) -> Range Gather
r = Range(start, limit, delta) y = Add(r, n) -> Range Add
a = Cast<to = 6>(start) b = Cast<to = 6>(limit) c = Cast<to = 6>(delta) r = Range(a, b, c)\
 y = Gather(x, r) -> Cast Unsqueeze Cast Unsqueeze Cast Unsqueeze Slice
"""),
)
def test_a_gather_of_a_range_becomes_a_slice(body: str, expected: str, opset: int) -> None:
    assert ops_after(body, opset, "extended") == expected


def test_a_reshape_whose_target_is_read_from_another_is_not_merged() -> None:
    text = """agraph (int64[3,1] three, float[2,3,5] x) => (float[3,5,2] y) <int64[1] flat = {3}>
      { a = Reshape(three, flat) b = Neg(a) c = Neg(b) y = Reshape(x, c) }"""
    assert compare_with_onnxruntime(text, "basic") == ["Reshape", "Neg", "Neg", "Reshape"]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ("starts = [1], ends = [2]", "Squeeze Reshape"),
        ("starts = [-1], ends = [9223372036854775807]", "Squeeze Reshape"),
        ("starts = [0], ends = [2]", "Squeeze Shape Slice Squeeze Unsqueeze Concat Reshape"),
    ],
)
@pytest.mark.parametrize("factor", ["", "f = Mul(q, n) ", "f = Div(q, n) "])
def test_one_dim_of_a_shape_of_unknown_rank(bounds: str, expected: str, factor: str) -> None:
    body = f"""r = Squeeze(other) s = Shape(r) i = Slice<{bounds}>(s) q = Squeeze(i) {factor}
      u = Unsqueeze<axes = [0]>({"f" if factor else "q"}) c = Concat<axis = 0>(zeros, u)
      y = Reshape(r, c)"""
    kinds = (
        expected.replace("Unsqueeze", f"{factor[4:7]} Unsqueeze")
        if "Slice" in expected
        else expected
    )
    assert ops_after(body, 9) == " ".join(kinds.split())
