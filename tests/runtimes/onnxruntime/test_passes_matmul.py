"""What onnxruntime takes into products of matrices: sums, factors and transposes."""

import pytest
from optimized_graphs import agrees, cases

pytestmark = pytest.mark.measure

GRAPH = """agraph (float[N,7] x, float[3,11,7] deep, float[N,3,7] open, float[5,7] k,
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


def left_of(body: str, opset: int = 21, level: str = "basic") -> str:
    outputs = ", ".join(name for name in ("y", "z") if f"{name} =" in body)
    return " ".join(agrees(GRAPH.format(outputs=outputs, body=body), level, opset=opset))


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_a_sum_after_a_product(body: str, left: str) -> None:
    assert left_of(body) == left


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
def test_products_of_an_attention_block_wait(
    old: str, new: str, level: str, *, is_block: bool
) -> None:
    left = left_of(QKV.replace(old, new), level=level)
    assert ("Gemm" not in left) == (is_block and level == "basic")


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_factors_around_a_product(body: str, left: str) -> None:
    if "c64" in body:
        body = f"c64 = Cast<to = 11>(two) {body}"
    assert left_of(body, level="extended") == left


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_transposes_before_a_product(body: str, left: str) -> None:
    assert left_of(body, level="extended") == left
