"""Rewrite rules, compared with onnxruntime."""

import pytest
from installed_runtime import since
from runtimes.onnxruntime.optimized_graphs import cases, compare_with_onnxruntime, optimized_ops

pytestmark = pytest.mark.measure

VECTORS = """agraph (float[N,7] fed, float[M,7] x2, bool b, int64[2] to, float[5,7] k, float p,
   float[1] q,
  int64[1] given, float[N,7,7] x3) => ({outputs})
  <float nought = {{0.0}}, float[1] noughts = {{0.0}}, float one = {{1.0}}, float two = {{2.0}},
   float[1,1,1] deep = {{0.0}}, float[2] pair = {{0.0, 0.0}}, int64 whole = {{1}}, float[7] w,
   int64[1] first = {{0}}, int64[1] second = {{1}}, int64[1] end = {{9223372036854775807}},
   int64[1] short = {{5}}, int64[2] firsts = {{0, 0}},
   int64[2] ends = {{9223372036854775807, 9223372036854775807}},
   int32[1] first32 = {{0}}, int32[1] end32 = {{2147483647}}, int64[1] back = {{-1}},
   int64[2] ones = {{1, 1}}, int64[2] same = {{1, 7}}, int64[2] more = {{5, 7}},
   int64[3] most = {{1, 1, 7}},
   int64[2] both = {{0, -1}}, int64[2] fives = {{5, 7}}, float tenth = {{0.1}},
   float16 half = {{0}}, float[0] none = {{}},
   float[1,1] deepest = {{1.0}}, bool true = {{1}}>
  {{ x = Abs(fed) {body} }}"""


def ops_after(body: str, opset: int = 21) -> str:
    """The operators after the basic level, without the one that produces ``x``."""
    return optimized_ops(VECTORS, body, "basic", opset=opset, without="Abs")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Identity(x) y = Exp(a)", "Exp"),
        ("a = Exp(x) y = Identity(a)", "Exp"),
        ("y = Identity(x)", ""),
        ("y = Identity(w)", ""),
        ("a = Identity(x) c = Identity(a) y = Identity(c)", ""),
        ("a = Exp(x) y = Identity(a) z = Neg(y)", "Exp Identity Neg"),
        ("a = Exp(x) y = Identity(a) z = Identity(a)", "Exp Identity Identity"),
        ("z = Exp(x) y = Identity(z)", "Exp Identity"),
        ("a = Exp(x) y = Identity(a) z = Neg(a)", "Exp Neg Identity"),
        ("a = Identity(x) y = Exp(x)", "Exp"),
        ("a = Identity(fed) y = Exp(a)", "Exp"),
        ("a = Dropout(x) y = Exp(a)", "Exp"),
        ("a, m = Dropout(x, tenth, true) y = Exp(a)", "Exp"),
        ("a, m = Dropout(x, tenth) c = Exp(a) y = Where(m, c, x)", "Dropout Exp Where"),
        ("y = Dropout(x)", "Dropout"),
        ("y, m = Dropout(x) z = Where(m, x, x)", "Dropout Where"),
        ("m = Exp(x) a = Dropout(m, p) y = Exp(a)", "Exp Exp"),
    ],
)
def test_identity_and_dropout(body: str, expected: str) -> None:
    assert ops_after(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Slice(x, first, end)", "Exp"),
        ("a = Slice(x, first, end, second)", "Exp"),
        ("a = Slice(x, first, end, second, second)", "Exp"),
        ("a = Slice(x, firsts, ends)", "Exp"),
        ("a = Slice(x, firsts, ends, both)", "Exp"),
        ("a = Slice(x, first, short)", "Slice Exp"),
        ("a = Slice(x, second, end)", "Slice Exp"),
        ("a = Slice(x, first32, end32)", "Slice Exp"),
        ("a = Slice(x, first, end, second, short)", "Slice Exp"),
        ("a = Slice(x, first, end, , short)", "Exp"),
        ("z = Slice(x, first, end) a = Neg(z)", "Slice Neg Exp"),
        ("a = Slice(x, first, given)", "Slice Exp"),
        ("a = Slice(x, to, ends)", "Slice Exp"),
        ("a = Slice(x, first, end, given)", "Slice Exp"),
        ("a = Slice(x, first, end, second, given)", "Slice Exp"),
    ],
)
def test_slices_of_everything_are_removed(body: str, expected: str) -> None:
    assert ops_after(f"{body} y = Exp(a)") == expected


@pytest.mark.parametrize(
    ("ends", "expected"),
    [("[9223372036854775807]", "Exp"), ("[5]", "Slice Exp"), ("[5], axes = [1]", "Slice Exp")],
)
def test_slice_bounds_may_be_attributes(ends: str, expected: str) -> None:
    body = f"a = Slice<starts = [0], ends = {ends}>(x) y = Exp(a)"
    assert ops_after(body, 9) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Expand(x, ones)", "Exp"),
        ("a = Expand(x, same)", "Exp"),
        ("a = Expand(fed, same)", "Expand Exp"),
        ("a = Expand(x, second)", "Exp"),
        ("a = Expand(x, more)", "Expand Exp"),
        ("a = Expand(x, most)", "Expand Exp"),
        ("a = Expand(x, to)", "Expand Exp"),
        ("s = Exp(k) a = Expand(s, fives)", "Exp Exp"),
        ("a = Expand(x, ones) z = Neg(a)", "Exp Neg"),
    ],
)
def test_expands_to_the_same_shape_are_removed(body: str, expected: str) -> None:
    assert ops_after(f"{body} y = Exp(a)") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Add(x, nought)", "Exp"),
        ("a = Add(noughts, x)", "Exp"),
        ("a = Sub(x, nought)", "Exp"),
        ("a = Sub(nought, x)", "Sub Exp"),
        ("a = Mul(x, one)", "Exp"),
        ("a = Mul(one, x)", "Exp"),
        ("a = Div(x, one)", "Exp"),
        ("a = Div(one, x)", "Div Exp"),
        ("a = Mul(x, nought)", "Mul Exp"),
        ("a = Add(x, one)", "Add Exp"),
        ("a = Add(x, deep)", "Add Exp"),
        ("a = Add(x, x)", "Add Exp"),
        ("a = Add(x, k)", "Add Exp"),
        ("s = Cast<to = 7>(x) i = Mul(s, whole) a = Cast<to = 1>(i)", "Cast Cast Exp"),
        ("a = Add(noughts, nought)", ""),
        ("a = Add(x, w)", "Add Exp"),
        ("s = Exp(p) a = Add(s, noughts)", "Exp Add Exp"),
        ("s = Exp(p) a = Add(s, nought)", "Exp Exp"),
        ("s = Exp(p) a = Add(s, none)", "Exp Add Exp"),
        ("s = Exp(q) a = Add(s, none)", "Exp Add Exp"),
        ("z = Add(x, nought) a = Neg(z)", "Add Neg Exp"),
        ("h = Cast<to = 10>(x) i = Add(h, half) a = Cast<to = 1>(i)", "Cast Cast Exp"),
        ("h = Cast<to = 9>(x) i = And(h, true) a = Cast<to = 1>(i)", "Cast And Cast Exp"),
    ],
)
def test_additions_of_0_and_multiplications_by_1(body: str, expected: str) -> None:
    assert ops_after(f"{body} y = Exp(a)") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Div(one, x) y = Mul(a, k)", "Div"),
        ("a = Div(one, x) y = Mul(k, a)", "Div"),
        ("a = Div(two, x) y = Mul(a, k)", "Div Mul"),
        ("a = Div(p, x) y = Mul(a, k)", "Div Mul"),
        ("a = Div(w, x) y = Mul(a, k)", "Div Mul"),
        ("a = Div(one, x) y = Add(a, k)", "Div Add"),
        ("a = Div(one, x) y = Mul(a, a)", "Div Mul"),
        ("a = Div(one, x) c = Mul(a, k) y = Add(a, c)", "Div Mul Add"),
        ("z = Div(one, x) y = Mul(z, k)", "Div Mul"),
        ("a = Div(deepest, x) y = Mul(a, k)", "Div"),
    ],
)
def test_multiplications_by_reciprocals(body: str, expected: str) -> None:
    assert ops_after(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
c = Cast<to = 1>(x) y = Exp(c) -> Exp
c = Cast<to = 11>(x) e = Cast<to = 1>(c) y = Exp(e) -> Exp
c = Cast<to = 11>(x) e = Cast<to = 6>(c) y = Cast<to = 1>(e) -> Cast Cast
c = Cast<to = 6>(x) e = Cast<to = 11>(c) y = Cast<to = 1>(e) -> Cast Cast
c = Cast<to = 11>(x) e = Cast<to = 6>(c) g = Cast<to = 7>(c) h = Cast<to = 1>(e) i = Cast<to =\
 1>(g) y = Add(h, i) -> Cast Cast Cast Cast Add
c = Cast<to = 11>(x) e = Cast<to = 6>(c) g = Exp(c) h = Cast<to = 1>(e) i = Cast<to = 1>(g) y =\
 Add(h, i) -> Cast Exp Cast Cast Cast Add
y = Cast<to = 1>(x) -> Cast
c = Cast<to = 10>(x) e = Cast<to = 1>(c) y = Exp(e) -> Cast Cast Exp
c = Cast<to = 6>(x) s = Shape(c) y = Reshape(k, s) -> Shape Reshape
c = Cast<to = 6>(x) s = Shape(c) t = Shape<start = 1>(c) u = Slice(s, first, second) v =\
 Concat<axis = 0>(u, t) y = Reshape(k, v) -> Shape Slice Shape Concat Reshape
c = Cast<to = 6>(x) s = Shape(c) r = Reshape(k, s) e = Cast<to = 1>(c) y = Add(r, e) -> Cast Cast\
 Shape Reshape Add
i = Exp(x) c = Cast<to = 6>(i) s = Shape(c) r = Reshape(k, s) y = Neg(r) -> Exp Shape Reshape Neg
c = Cast<to = 6>(b) e = Cast<to = 1>(c) y = Add(x, e) -> Cast Add
c = Cast<to = 2>(b) e = Cast<to = 9>(c) y = Where(e, x, k) -> Where
d = Cast<to = 1>(b) c = CastLike(x, d) y = Exp(c) -> Cast Exp Cast
"""),
)
def test_casts_are_removed_where_nothing_reads_what_they_change(body: str, expected: str) -> None:
    assert ops_after(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("u = Unsqueeze(w, first) y = Add(x, u)", "Add"),
        ("u = Unsqueeze(w, back) v = Transpose<perm = [1, 0]>(u) y = Add(x, v)", "Add"),
        ("u = Unsqueeze(w, both) y = Add(x3, u)", "Add"),
        ("u = Unsqueeze(w, given) y = Add(x, u)", "Unsqueeze Add"),
        ("y = Unsqueeze(w, first)", ""),
        ("u = Unsqueeze(p, first) y = Add(x, u)", "Unsqueeze Add"),
        ("u = Unsqueeze(w, first) c = Add(x, u) y = Mul(c, u)", "Add Mul"),
    ],
)
def test_unsqueezes_of_constants(body: str, expected: str) -> None:
    assert ops_after(body) == expected


def test_axes_of_an_unsqueezed_constant_may_be_attributes() -> None:
    assert ops_after("u = Unsqueeze<axes = [0]>(w) y = Add(x, u)", 11) == "Add"


def test_rules_apply_in_branches() -> None:
    branch = "g () => (float[A,B] t) {{ {} }}"
    body = (
        "a = Identity(x) y = If(b) <then_branch = "
        + branch.format("c = Identity(a) t = Exp(c)")
        + ", else_branch = "
        + branch.format("c = Mul(a, one) t = Neg(c)")
        + ">"
    )
    assert ops_after(body) == "If"


IMAGE = """agraph (float[N,2,7,11] x, float[3] given, float[3,2,1,1] kernel) => ({outputs})
  <float[3,2,1,1] w, float[3] b, float[2,3,1,1] u, float[2,3,1,1] grouped, float[3] s, float[3] t,
   float[3] m, float[3] v, float[6] s6, float[6] t6, float[6] m6, float[6] v6, float f,
   float[1] g, float[3,1,1] c, float[1,3,1,1] d, float[3,7,11] full,
   float[1,1,1] single, float[1,1,7,1] row> {{ {body} }}"""
ONE = "float[A,B,C,D] y"
TWO = f"{ONE}, float[E,F,G,H] a"
NORM = "y = BatchNormalization(a, s, t, m, v)"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"a = Conv(x, w) {NORM}", "Conv"),
        (f"a = Conv(x, w, b) {NORM}", "Conv"),
        (f"a = ConvTranspose(x, u) {NORM}", "ConvTranspose"),
        (
            "a = ConvTranspose<group = 2>(x, grouped) y = BatchNormalization(a, s6, t6, m6, v6)",
            "ConvTranspose",
        ),
        (f"a = Conv(x, kernel) {NORM}", "Conv BatchNormalization"),
        (f"a = Conv(x, w, given) {NORM}", "Conv BatchNormalization"),
        (
            "a = Conv(x, w) y = BatchNormalization(a, given, t, m, v)",
            "Conv BatchNormalization",
        ),
        (
            "a = Conv(x, w) n = BatchNormalization(a, s, t, m, v) y = Add(n, a)",
            "Conv BatchNormalization Add",
        ),
        (
            "a = Conv(x, w) k = Exp(given) y = BatchNormalization(a, k, t, m, v)",
            "Exp Conv BatchNormalization",
        ),
        (f"a = Exp(x) n = Conv(a, w) {NORM.replace('(a,', '(n,')}", "Exp Conv"),
    ],
)
def test_batch_normalization_after_convolution(body: str, expected: str) -> None:
    assert (
        compare_with_onnxruntime(IMAGE.format(outputs=ONE, body=body), "basic") == expected.split()
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Conv(x, w) y = Add(a, c) -> Conv
a = Conv(x, w, b) y = Add(a, c) -> Conv
a = Conv(x, w) y = Add(a, d) -> Conv
a = Conv(x, w) y = Add(d, a) -> Conv Add
a = Conv(x, w) y = Add(a, f) -> Conv Add
a = Conv(x, w) y = Add(a, g) -> Conv Add
a = Conv(x, w) y = Add(a, row) -> Conv Add
a = Conv(x, w) y = Add(a, full) -> Conv Add
a = Conv(x, w) y = Add(a, single) -> Conv Add
a = Conv(x, kernel) y = Add(a, c) -> Conv Add
a = Conv(x, w, given) y = Add(a, c) -> Conv Add
a = Conv(x, w) y = Add(a, a) -> Conv Add
a = ConvTranspose(x, u) y = Add(a, c) -> ConvTranspose Add
a = Conv(x, w) z = Add(a, c) y = Mul(z, a) -> Conv Add Mul
a = Conv(x, w) z = Exp(given) k = Reshape<allowzero = 0>(z, to) y = Add(a, k) -> Exp Reshape Conv\
 Add
a = Conv(x, w) y = Mul(a, c) -> Conv
a = Conv(x, w, b) y = Mul(a, c) -> Conv
a = Conv(x, w) y = Mul(a, d) -> Conv
a = Conv(x, w) y = Mul(a, f) -> Conv
a = Conv(x, w, b) y = Mul(a, f) -> Conv
a = Conv(x, w) y = Mul(f, a) -> Conv Mul
a = Conv(x, w) y = Mul(a, g) -> Conv Mul
a = Conv(x, w, b) y = Mul(a, single) -> Conv Mul
a = Conv(x, kernel) y = Mul(a, c) -> Conv Mul
a = Conv(x, w) z = Mul(a, c) y = Sub(z, a) -> Conv Mul Sub
a = Conv(x, w) z = Mul(a, c) k = Add(z, d) y = BatchNormalization(k, s, t, m, v) -> Conv
"""),
)
def test_add_or_mul_after_convolution(body: str, expected: str) -> None:
    text = IMAGE.format(outputs=ONE, body=body).replace(
        "float f,", "float f, int64[3] to = {3, 1, 1},"
    )
    assert compare_with_onnxruntime(text, "basic") == expected.split()


@pytest.mark.parametrize("last", [NORM, "y = Add(a, c)", "y = Mul(a, c)"])
def test_a_convolution_that_writes_a_graph_output_stays(last: str) -> None:
    text = IMAGE.format(outputs=TWO, body=f"a = Conv(x, w) {last}")
    assert len(compare_with_onnxruntime(text, "basic")) == 2


def test_a_batch_normalization_in_training_mode_stays() -> None:
    body = "a = Conv(x, w) y, p, q = BatchNormalization<training_mode = 1>(a, s, t, m, v)"
    assert compare_with_onnxruntime(IMAGE.format(outputs=ONE, body=body), "basic") == [
        "Conv",
        "BatchNormalization",
    ]


def test_a_bias_for_more_channels_than_there_are_is_not_fused() -> None:
    body = "a = Conv(x, w, s6) y = BatchNormalization(a, s, t, m, v)"
    assert compare_with_onnxruntime(IMAGE.format(outputs=ONE, body=body), "basic") == [
        "Conv",
        "BatchNormalization",
    ]


def test_statistics_of_another_type_are_not_fused() -> None:
    body = "a = Conv(x, w) y = BatchNormalization(a, s, t, m, v)"
    text = IMAGE.format(outputs=ONE, body=body).replace("float[", "float16[")
    for name in "mv":
        text = text.replace(f"float16[3] {name}", f"float[3] {name}")
    assert "BatchNormalization" in compare_with_onnxruntime(text, "basic")


def test_float16_convolutions_are_fused() -> None:
    text = IMAGE.format(outputs=ONE, body=f"a = Conv(x, w) {NORM}").replace("float[", "float16[")
    assert compare_with_onnxruntime(text, "basic") == ["Cast", "Cast", "Cast", "Conv", "Cast"]


PAD = """agraph (float[N,2,7,11] x{inputs}) => (float[A,B,C,D] y{outputs})
  <float[3,2,1,1] w, int64[8] pads = {{0, 0, 1, 2, 0, 0, 3, 4}},
   int64[8] cut = {{0, 0, 1, 2, 0, 0, -1, 4}},
   int64[8] channels = {{0, 1, 1, 2, 0, 0, 3, 4}}, int64[8] batch = {{0, 0, 1, 2, 1, 0, 3, 4}},
   int64[4] some = {{1, 2, 3, 4}}, int64[2] axes = {{2, 3}}, float nought = {{0.0}},
   float[1] noughts = {{0.0}}, float half = {{0.5}}>
  {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Pad(x, pads) y = Conv(a, w)", "Conv"),
        ("a = Pad(x, pads) y = Conv<pads = [5, 6, 7, 8]>(a, w)", "Conv"),
        ("a = Pad(x, pads, nought) y = Conv(a, w)", "Conv"),
        ("a = Pad(x, pads, noughts) y = Conv(a, w)", "Conv"),
        ("a = Pad(x, pads, half) y = Conv(a, w)", "Pad Conv"),
        ("a = Pad(x, cut) y = Conv(a, w)", "Pad Conv"),
        ("a = Pad(x, channels) y = Conv(a, k)", "Pad Conv"),
        ("a = Pad(x, batch) y = Conv(a, w)", "Pad Conv"),
        ("a = Pad(x, some, , axes) y = Conv(a, w)", "Pad Conv"),
        ('a = Pad<mode = "edge">(x, pads) y = Conv(a, w)', "Pad Conv"),
        ('a = Pad<mode = "reflect">(x, pads) y = Conv(a, w)', "Pad Conv"),
        ('a = Pad(x, pads) y = Conv<auto_pad = "VALID">(a, w)', "Pad Conv"),
        ("a = Pad(x, pads) y = ConvTranspose(a, v)", "Pad ConvTranspose"),
        ("a = Pad(x, pads) y = AveragePool<kernel_shape = [5, 5]>(a)", "AveragePool"),
        (
            "a = Pad(x, pads) y = AveragePool<kernel_shape = [5, 5], count_include_pad = 1>(a)",
            "AveragePool",
        ),
        pytest.param(
            "a = Pad(x, pads) y = MaxPool<kernel_shape = [5, 5]>(a)",
            "Pad MaxPool",
            marks=since("1.32"),
        ),
        pytest.param(
            "a = Pad(x, pads) y = AveragePool<kernel_shape = [5, 5], ceil_mode = 1>(a)",
            "Pad AveragePool",
            marks=since("1.32"),
        ),
        (
            "a = Pad(x, pads) y = AveragePool<kernel_shape = [5, 5], pads = [1, 1, 1, 1]>(a)",
            "Pad AveragePool",
        ),
        ("a = Pad(x, pads) y, i = MaxPool<kernel_shape = [5, 5]>(a)", "Pad MaxPool"),
        ("a = Pad(x, pads) b = Conv(a, w) c = Conv(a, w2) y = Sub(b, c)", "Pad Conv Conv Sub"),
        ("a = Pad(x, pads) e = Exp(a) y = Conv(e, w)", "Pad Exp Conv"),
        ("a = Pad(x, p) y = Conv(a, w)", "Pad Conv"),
        ("a = Pad(x, pads, h) y = Conv(a, w)", "Pad Conv"),
    ],
)
def test_pad_before_convolution_or_pool(body: str, expected: str) -> None:
    given = ", float h, int64[8] p, float[2,3,1,1] v, float[3,3,1,1] k, float[3,2,1,1] w2"
    assert (
        compare_with_onnxruntime(PAD.format(inputs=given, outputs="", body=body), "basic")
        == expected.split()
    )


def test_a_pad_that_writes_a_graph_output_stays() -> None:
    text = PAD.format(
        inputs="", outputs=", float[E,F,G,H] a", body="a = Pad(x, pads) y = Conv(a, w)"
    )
    assert compare_with_onnxruntime(text, "basic") == ["Pad", "Conv"]


@pytest.mark.parametrize(("value", "expected"), [("", "Conv"), (", value = 0.5", "Pad Conv")])
def test_pads_may_be_attributes(value: str, expected: str) -> None:
    body = f"a = Pad<pads = [0, 0, 1, 2, 0, 0, 3, 4]{value}>(x) y = Conv(a, w)"
    assert (
        compare_with_onnxruntime(PAD.format(inputs="", outputs="", body=body), "basic", opset=10)
        == expected.split()
    )


MATRICES = """agraph (float[N,7] x, float[7,M] v, float[5,7] k, float[5] row, float[N,5] full,
   bool[5] c,
  float given, float[1,5] wide, float[3,N,7] deep, float[N,5,1] tall) => ({outputs})
  <float[7,5] w, float[5] b, float[5,1] column, float[5] s, float[5] t, float[5] m, float[5] q,
   float low = {{-1.0}}, float high = {{6.0}}, float half = {{0.5}}, float[3,7,5] batched,
   float16 low16 = {{48128}}, double low64 = {{-1.0}},
   float[7] s7, float[7] t7, float[7] m7, float[7] q7>
  {{ {body} }}"""


def optimized_products(body: str, opset: int = 21, level: str = "basic") -> str:
    outputs = ", ".join(name for name in ("y", "z") if f"{name} =" in body)
    return " ".join(
        compare_with_onnxruntime(MATRICES.format(outputs=outputs, body=body), level, opset=opset)
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Gemm(x, w) y = Sum(a, row) -> Gemm
a = Gemm(x, w) y = Sum(row, a) -> Gemm
a = Gemm<alpha = 0.5, transB = 1>(x, k) y = Sum(a, full) -> Gemm
a = Gemm(x, w) y = Sum(a, wide) -> Gemm
a = Gemm(x, w) y = Sum(a, given) -> Gemm Sum
a = Gemm(x, w) y = Sum(a, b) -> Gemm
a = Gemm(x, w, b) y = Sum(a, row) -> Gemm Sum
a = Gemm(x, w, ) y = Sum(a, row) -> Gemm
a = Gemm(x, w) y = Sum(a, row, full) -> Gemm Sum
a = Gemm(x, w) y = Add(a, row) -> Gemm Add
a = Gemm(x, w) y = Sum(a, tall) -> Gemm Sum
a = Gemm(x, w) y = Sum(a, a) -> Gemm Sum
a = Gemm(x, w) e = Sum(a, row) y = Mul(e, a) -> Gemm Sum Mul
z = Gemm(x, w) y = Sum(z, row) -> Gemm Sum
a = Gemm(x, w) e = NonZero(row) f = Cast<to = 1>(e) y = Sum(a, f) -> NonZero Cast Gemm Sum
"""),
)
def test_sum_operator_after_gemm(body: str, expected: str) -> None:
    assert optimized_products(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Transpose<perm = [1, 0]>(k) y = Gemm(x, a) -> Gemm
a = Transpose(k) y = Gemm(x, a) -> Gemm
a = Transpose<perm = [1, 0]>(v) y = Gemm<transB = 1>(a, k) -> Gemm
a = Transpose<perm = [1, 0]>(x) y = Gemm<transA = 1>(a, w) -> Gemm
a = Transpose<perm = [1, 0]>(v) e = Transpose<perm = [1, 0]>(k) y = Gemm(a, e, b) -> Gemm
a = Transpose<perm = [1, 0]>(k) y = Gemm(x, a) z = Exp(a) -> Transpose Exp Gemm
z = Transpose<perm = [1, 0]>(k) y = Gemm(x, z) -> Transpose Gemm
a = Transpose<perm = [0, 1]>(w) y = Gemm(x, a) -> Gemm
a = Exp(w) y = Gemm(x, a) -> Gemm
a = Gemm(x, w) y = Transpose(a) -> Gemm
a = Gemm<transB = 1>(x, k) y = Transpose<perm = [1, 0]>(a) -> Gemm
a = Gemm(x, w, b) y = Transpose(a) -> Gemm Transpose
a = Gemm(x, w) e = Transpose(a) y = Exp(a) -> Gemm Exp Transpose
a = Transpose<perm = [1, 0]>(k) y = Gemm(k, a) -> Gemm
a = Transpose<perm = [1, 0]>(k) y = Gemm<transA = 1>(a, a) -> Gemm
"""),
)
def test_transposes_around_gemm(body: str, expected: str) -> None:
    assert optimized_products(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Where(c, row, b)", "Where"),
        ("a = Not(c) y = Where(a, row, b)", "Where"),
        ("a = Not(c) e = Where(a, row, b) f = Where(a, b, row) y = Add(e, f)", "Where Where Add"),
        ("a = Not(c) e = Where(a, row, b) f = Cast<to = 1>(a) y = Add(e, f)", "Not Cast Where Add"),
        ("z = Not(c) y = Where(z, row, b)", "Not Where"),
        ("a = And(c, c) y = Where(a, row, b)", "And Where"),
    ],
)
def test_where_with_a_negated_condition(body: str, expected: str) -> None:
    assert optimized_products(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = MatMul(x, w) y = BatchNormalization(a, s, t, m, q) -> Gemm
a = MatMul(x, w) e = BatchNormalization(a, s, t, m, q) y = Add(e, a) -> MatMul BatchNormalization\
 Add
z = MatMul(x, w) y = BatchNormalization(z, s, t, m, q) -> MatMul BatchNormalization
a = MatMul(x, v) y = BatchNormalization(a, s, t, m, q) -> MatMul BatchNormalization
a = MatMul(x, w) y = BatchNormalization(a, row, t, m, q) -> MatMul BatchNormalization
a = MatMul(deep, batched) y = BatchNormalization(a, s, t, m, q) -> MatMul BatchNormalization
a = MatMul(x, w) y, g, h = BatchNormalization<training_mode = 1>(a, s, t, m, q) -> MatMul\
 BatchNormalization
a = MatMul(x, w) y = Exp(a) -> MatMul Exp
a = MatMul(deep, w) y = BatchNormalization(a, s, t, m, q) -> MatMul BatchNormalization
a = MatMul(x, w) e = Reshape(a, to) y = BatchNormalization(e, s, t, m, q) -> Gemm Reshape
a = MatMul(x, w) e = Transpose<perm = [1, 0]>(a) y = BatchNormalization(e, s7, t7, m7, q7) ->\
 MatMul Transpose BatchNormalization
"""),
)
def test_batch_normalization_after_matmul(body: str, expected: str) -> None:
    if "Reshape" in body:
        body = f"to = Constant<value_ints = [0, 5, 1, 1]>() {body}"
    assert optimized_products(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
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
def test_relu_before_clip(body: str, expected: str) -> None:
    assert optimized_products(body) == expected


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [("min = -1.0, max = 6.0", "Clip"), ("min = 0.5", "Clip"), ("max = 6.0", "Clip")],
)
def test_relu_before_clip_with_bounds_as_attributes(bounds: str, expected: str) -> None:
    assert optimized_products(f"a = Relu(x) y = Clip<{bounds}>(a)", 10) == expected


QUANTIZED = """agraph (float[N,7] x, float f, uint8 zp) => ({outputs})
  <float scale = {{0.5}}, float[1] scale1 = {{0.5}}, uint8 nought = {{0}},
   uint8[1] nought1 = {{0}}, uint8 middle = {{128}},
   int8 lowest = {{-128}}, int8 center = {{0}}, float low = {{-1.0}}, float zero = {{0.0}},
   float high = {{127.5}},
   float six = {{6.0}}, float far = {{1000.0}}, float edge = {{127.75}}, float below = {{-0.25}},
   float[7] scales, uint8[7] noughts, int16 wide = {{-32768}}, uint4 nought4 = {{0}},
   float down = {{-1000.0}}>
  {{ {body} w = DequantizeLinear(q, scale, {zero}) y = Exp(w) }}"""


@pytest.mark.parametrize(
    ("body", "zero", "expected"),
    cases("""
a = Relu(x) q = QuantizeLinear(a, scale, nought) -> nought -> QuantizeLinear
a = Relu(x) q = QuantizeLinear(a, scale, lowest) -> lowest -> QuantizeLinear
a = Relu(x) q = QuantizeLinear(a, scale, wide) -> wide -> QuantizeLinear
a = Relu(x) q = QuantizeLinear(a, scale, middle) -> middle -> Relu QuantizeLinear
a = Relu(x) q = QuantizeLinear(a, scale, center) -> center -> Relu QuantizeLinear
a = Relu(x) q = QuantizeLinear(a, scale, nought4) -> nought4 -> QuantizeLinear
a = Relu(x) q = QuantizeLinear(a, scale) -> nought -> Relu QuantizeLinear
a = Relu(x) q = QuantizeLinear(a, scale, zp) -> zp -> Relu QuantizeLinear
a = Relu(x) q = QuantizeLinear<axis = 1>(a, scales, noughts) -> nought -> Relu QuantizeLinear
z = Relu(x) q = QuantizeLinear(z, scale, nought) -> nought -> Relu QuantizeLinear
a = Relu(x) z = Neg(a) q = QuantizeLinear(a, scale, nought) -> nought -> Relu QuantizeLinear Neg
a = Clip(x, low, far) q = QuantizeLinear(a, scale, nought) -> nought -> QuantizeLinear
a = Clip(x, zero, high) q = QuantizeLinear(a, scale, nought) -> nought -> QuantizeLinear
a = Clip(x, zero, edge) q = QuantizeLinear(a, scale, nought) -> nought -> QuantizeLinear
a = Clip(x, below, far) q = QuantizeLinear(a, scale, nought) -> nought -> QuantizeLinear
a = Clip(x, zero, six) q = QuantizeLinear(a, scale, nought) -> nought -> Clip QuantizeLinear
a = Clip(x, , far) q = QuantizeLinear(a, scale, nought) -> nought -> QuantizeLinear
a = Clip(x, f, far) q = QuantizeLinear(a, scale, nought) -> nought -> Clip QuantizeLinear
a = Clip(x, down, far) q = QuantizeLinear(a, scale, center) -> center -> QuantizeLinear
a = Clip(x, low, far) q = QuantizeLinear(a, scale1, nought1) -> nought -> Clip QuantizeLinear
a = Clip(x, low, far) q = QuantizeLinear(a, scale) -> nought -> Clip QuantizeLinear
a = Clip(x, low, far) q = QuantizeLinear(a, f, nought) -> nought -> Clip QuantizeLinear
z = Clip(x, low, far) q = QuantizeLinear(z, scale, nought) -> nought -> Clip QuantizeLinear
a = Clip(x, low, far) z = Neg(a) q = QuantizeLinear(a, scale, nought) -> nought -> Clip\
 QuantizeLinear Neg
a = Clip(x, low, far) z = Neg(a) q = QuantizeLinear(z, scale, nought) -> nought -> Clip Neg\
 QuantizeLinear
"""),
)
def test_activations_that_quantization_makes_redundant(body: str, zero: str, expected: str) -> None:
    outputs = "y, z" if "z =" in body else "y"
    text = QUANTIZED.format(
        outputs=outputs, body=f"p = Abs(x) {body.replace('(x', '(p')}", zero=zero
    )
    assert optimized_text(text) == expected


def optimized_text(text: str) -> str:
    """The operators after optimization, without the ones before and after those of the test."""
    ops = compare_with_onnxruntime(text, "extended")
    for op_type in ("Abs", "DequantizeLinear", "Exp"):
        ops.remove(op_type)
    return " ".join(ops)
