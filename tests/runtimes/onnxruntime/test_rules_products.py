"""Rules around matrix products, choices and cut-off activations, as onnxruntime applies them."""

import pytest
from optimized_graphs import agrees

pytestmark = pytest.mark.measure

MATRICES = """agraph (float[N,7] x, float[7,M] v, float[5,7] k, float[5] row, float[N,5] full,
   bool[5] c,
  float given, float[1,5] wide, float[3,N,7] deep, float[N,5,1] tall) => ({outputs})
  <float[7,5] w, float[5] b, float[5,1] column, float[5] s, float[5] t, float[5] m, float[5] q,
   float low = {{-1.0}}, float high = {{6.0}}, float half = {{0.5}}, float[3,7,5] batched,
   float16 low16 = {{48128}}, double low64 = {{-1.0}},
   float[7] s7, float[7] t7, float[7] m7, float[7] q7>
  {{ {body} }}"""


def left_of(body: str, opset: int = 21, level: str = "basic") -> str:
    outputs = ", ".join(name for name in ("y", "z") if f"{name} =" in body)
    return " ".join(agrees(MATRICES.format(outputs=outputs, body=body), level, opset=opset))


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Gemm(x, w) y = Sum(a, row)", "Gemm"),
        ("a = Gemm(x, w) y = Sum(row, a)", "Gemm"),
        ("a = Gemm<alpha = 0.5, transB = 1>(x, k) y = Sum(a, full)", "Gemm"),
        ("a = Gemm(x, w) y = Sum(a, wide)", "Gemm"),
        ("a = Gemm(x, w) y = Sum(a, given)", "Gemm Sum"),
        ("a = Gemm(x, w) y = Sum(a, b)", "Gemm"),
        ("a = Gemm(x, w, b) y = Sum(a, row)", "Gemm Sum"),
        ("a = Gemm(x, w, ) y = Sum(a, row)", "Gemm"),
        ("a = Gemm(x, w) y = Sum(a, row, full)", "Gemm Sum"),
        ("a = Gemm(x, w) y = Add(a, row)", "Gemm Add"),
        ("a = Gemm(x, w) y = Sum(a, tall)", "Gemm Sum"),
        ("a = Gemm(x, w) y = Sum(a, a)", "Gemm Sum"),
        ("a = Gemm(x, w) e = Sum(a, row) y = Mul(e, a)", "Gemm Sum Mul"),
        ("z = Gemm(x, w) y = Sum(z, row)", "Gemm Sum"),
        (
            "a = Gemm(x, w) e = NonZero(row) f = Cast<to = 1>(e) y = Sum(a, f)",
            "NonZero Cast Gemm Sum",
        ),
    ],
)
def test_sum_after_gemm(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Transpose<perm = [1, 0]>(k) y = Gemm(x, a)", "Gemm"),
        ("a = Transpose(k) y = Gemm(x, a)", "Gemm"),
        ("a = Transpose<perm = [1, 0]>(v) y = Gemm<transB = 1>(a, k)", "Gemm"),
        ("a = Transpose<perm = [1, 0]>(x) y = Gemm<transA = 1>(a, w)", "Gemm"),
        (
            "a = Transpose<perm = [1, 0]>(v) e = Transpose<perm = [1, 0]>(k) y = Gemm(a, e, b)",
            "Gemm",
        ),
        ("a = Transpose<perm = [1, 0]>(k) y = Gemm(x, a) z = Exp(a)", "Transpose Exp Gemm"),
        ("z = Transpose<perm = [1, 0]>(k) y = Gemm(x, z)", "Transpose Gemm"),
        ("a = Transpose<perm = [0, 1]>(w) y = Gemm(x, a)", "Gemm"),
        ("a = Exp(w) y = Gemm(x, a)", "Gemm"),
        ("a = Gemm(x, w) y = Transpose(a)", "Gemm"),
        ("a = Gemm<transB = 1>(x, k) y = Transpose<perm = [1, 0]>(a)", "Gemm"),
        ("a = Gemm(x, w, b) y = Transpose(a)", "Gemm Transpose"),
        ("a = Gemm(x, w) e = Transpose(a) y = Exp(a)", "Gemm Exp Transpose"),
        ("a = Transpose<perm = [1, 0]>(k) y = Gemm(k, a)", "Gemm"),
        ("a = Transpose<perm = [1, 0]>(k) y = Gemm<transA = 1>(a, a)", "Gemm"),
    ],
)
def test_transposes_before_gemm(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("y = Where(c, row, b)", "Where"),
        ("a = Not(c) y = Where(a, row, b)", "Where"),
        ("a = Not(c) e = Where(a, row, b) f = Where(a, b, row) y = Add(e, f)", "Where Where Add"),
        ("a = Not(c) e = Where(a, row, b) f = Cast<to = 1>(a) y = Add(e, f)", "Not Cast Where Add"),
        ("z = Not(c) y = Where(z, row, b)", "Not Where"),
        ("a = And(c, c) y = Where(a, row, b)", "And Where"),
    ],
)
def test_choices_by_a_negation(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = MatMul(x, w) y = BatchNormalization(a, s, t, m, q)", "Gemm"),
        (
            "a = MatMul(x, w) e = BatchNormalization(a, s, t, m, q) y = Add(e, a)",
            "MatMul BatchNormalization Add",
        ),
        ("z = MatMul(x, w) y = BatchNormalization(z, s, t, m, q)", "MatMul BatchNormalization"),
        ("a = MatMul(x, v) y = BatchNormalization(a, s, t, m, q)", "MatMul BatchNormalization"),
        ("a = MatMul(x, w) y = BatchNormalization(a, row, t, m, q)", "MatMul BatchNormalization"),
        (
            "a = MatMul(deep, batched) y = BatchNormalization(a, s, t, m, q)",
            "MatMul BatchNormalization",
        ),
        (
            "a = MatMul(x, w) y, g, h = BatchNormalization<training_mode = 1>(a, s, t, m, q)",
            "MatMul BatchNormalization",
        ),
        ("a = MatMul(x, w) y = Exp(a)", "MatMul Exp"),
        ("a = MatMul(deep, w) y = BatchNormalization(a, s, t, m, q)", "MatMul BatchNormalization"),
        (
            "a = MatMul(x, w) e = Reshape(a, to) y = BatchNormalization(e, s, t, m, q)",
            "Gemm Reshape",
        ),
        (
            (
                "a = MatMul(x, w) e = Transpose<perm = [1, 0]>(a) "
                "y = BatchNormalization(e, s7, t7, m7, q7)"
            ),
            "MatMul Transpose BatchNormalization",
        ),
    ],
)
def test_normalization_after_a_product(body: str, left: str) -> None:
    if "Reshape" in body:
        body = f"to = Constant<value_ints = [0, 5, 1, 1]>() {body}"
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Relu(x) y = Clip(a, low, high)", "Clip"),
        ("a = Relu(x) y = Clip(a, half, high)", "Clip"),
        ("a = Relu(x) y = Clip(a, , high)", "Clip"),
        ("a = Relu(x) y = Clip(a)", "Clip"),
        ("a = Relu(x) y = Clip(a, given, high)", "Relu Clip"),
        ("a = Relu(x) y = Exp(a)", "Relu Exp"),
        ("a = Relu(x) e = Clip(a, low, high) y = Add(a, e)", "Relu Clip Add"),
        ("z = Relu(x) y = Clip(z, low, high)", "Relu Clip"),
        ("a = Cast<to = 10>(x) r = Relu(a) y = Clip(r, low16)", "Cast Clip"),
        ("a = Cast<to = 11>(x) r = Relu(a) y = Clip(r)", "Cast Clip"),
        ("a = Relu(given) y = Clip(low, a, high)", "Relu Clip"),
    ],
)
def test_relu_before_clip(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("bounds", "left"),
    [("min = -1.0, max = 6.0", "Clip"), ("min = 0.5", "Clip"), ("max = 6.0", "Clip")],
)
def test_relu_before_an_older_clip(bounds: str, left: str) -> None:
    assert left_of(f"a = Relu(x) y = Clip<{bounds}>(a)", 10) == left


QUANTISED = """agraph (float[N,7] x, float f, uint8 zp) => ({outputs})
  <float scale = {{0.5}}, float[1] scale1 = {{0.5}}, uint8 nought = {{0}},
   uint8[1] nought1 = {{0}}, uint8 middle = {{128}},
   int8 lowest = {{-128}}, int8 centre = {{0}}, float low = {{-1.0}}, float zero = {{0.0}},
   float high = {{127.5}},
   float six = {{6.0}}, float far = {{1000.0}}, float edge = {{127.75}}, float below = {{-0.25}},
   float[7] scales, uint8[7] noughts, int16 wide = {{-32768}}, uint4 nought4 = {{0}},
   float down = {{-1000.0}}>
  {{ {body} w = DequantizeLinear(q, scale, {zero}) y = Exp(w) }}"""


@pytest.mark.parametrize(
    ("body", "zero", "left"),
    [
        ("a = Relu(x) q = QuantizeLinear(a, scale, nought)", "nought", "QuantizeLinear"),
        ("a = Relu(x) q = QuantizeLinear(a, scale, lowest)", "lowest", "QuantizeLinear"),
        ("a = Relu(x) q = QuantizeLinear(a, scale, wide)", "wide", "QuantizeLinear"),
        ("a = Relu(x) q = QuantizeLinear(a, scale, middle)", "middle", "Relu QuantizeLinear"),
        ("a = Relu(x) q = QuantizeLinear(a, scale, centre)", "centre", "Relu QuantizeLinear"),
        ("a = Relu(x) q = QuantizeLinear(a, scale, nought4)", "nought4", "QuantizeLinear"),
        ("a = Relu(x) q = QuantizeLinear(a, scale)", "nought", "Relu QuantizeLinear"),
        ("a = Relu(x) q = QuantizeLinear(a, scale, zp)", "zp", "Relu QuantizeLinear"),
        (
            "a = Relu(x) q = QuantizeLinear<axis = 1>(a, scales, noughts)",
            "nought",
            "Relu QuantizeLinear",
        ),
        ("z = Relu(x) q = QuantizeLinear(z, scale, nought)", "nought", "Relu QuantizeLinear"),
        (
            "a = Relu(x) z = Neg(a) q = QuantizeLinear(a, scale, nought)",
            "nought",
            "Relu QuantizeLinear Neg",
        ),
        ("a = Clip(x, low, far) q = QuantizeLinear(a, scale, nought)", "nought", "QuantizeLinear"),
        (
            "a = Clip(x, zero, high) q = QuantizeLinear(a, scale, nought)",
            "nought",
            "QuantizeLinear",
        ),
        (
            "a = Clip(x, zero, edge) q = QuantizeLinear(a, scale, nought)",
            "nought",
            "QuantizeLinear",
        ),
        (
            "a = Clip(x, below, far) q = QuantizeLinear(a, scale, nought)",
            "nought",
            "QuantizeLinear",
        ),
        (
            "a = Clip(x, zero, six) q = QuantizeLinear(a, scale, nought)",
            "nought",
            "Clip QuantizeLinear",
        ),
        ("a = Clip(x, , far) q = QuantizeLinear(a, scale, nought)", "nought", "QuantizeLinear"),
        (
            "a = Clip(x, f, far) q = QuantizeLinear(a, scale, nought)",
            "nought",
            "Clip QuantizeLinear",
        ),
        ("a = Clip(x, down, far) q = QuantizeLinear(a, scale, centre)", "centre", "QuantizeLinear"),
        (
            "a = Clip(x, low, far) q = QuantizeLinear(a, scale1, nought1)",
            "nought",
            "Clip QuantizeLinear",
        ),
        ("a = Clip(x, low, far) q = QuantizeLinear(a, scale)", "nought", "Clip QuantizeLinear"),
        ("a = Clip(x, low, far) q = QuantizeLinear(a, f, nought)", "nought", "Clip QuantizeLinear"),
        (
            "z = Clip(x, low, far) q = QuantizeLinear(z, scale, nought)",
            "nought",
            "Clip QuantizeLinear",
        ),
        (
            "a = Clip(x, low, far) z = Neg(a) q = QuantizeLinear(a, scale, nought)",
            "nought",
            "Clip QuantizeLinear Neg",
        ),
        (
            "a = Clip(x, low, far) z = Neg(a) q = QuantizeLinear(z, scale, nought)",
            "nought",
            "Clip Neg QuantizeLinear",
        ),
    ],
)
def test_activations_that_quantizing_makes_needless(body: str, zero: str, left: str) -> None:
    outputs = "y, z" if "z =" in body else "y"
    text = QUANTISED.format(
        outputs=outputs, body=f"p = Abs(x) {body.replace('(x', '(p')}", zero=zero
    )
    assert left_of_text(text) == left


def left_of_text(text: str) -> str:
    """What is left, without the nodes before and behind."""
    left = agrees(text, "extended")
    for op_type in ("Abs", "DequantizeLinear", "Exp"):
        left.remove(op_type)
    return " ".join(left)
