"""Rules around convolutions, as onnxruntime applies them: what it fuses and what it leaves."""

import pytest
from installed_runtime import since
from optimized_graphs import agrees

pytestmark = pytest.mark.measure

IMAGE = """agraph (float[N,2,7,11] x, float[3] given, float[3,2,1,1] kernel) => ({outputs})
  <float[3,2,1,1] w, float[3] b, float[2,3,1,1] u, float[2,3,1,1] grouped, float[3] s, float[3] t,
   float[3] m, float[3] v, float[6] s6, float[6] t6, float[6] m6, float[6] v6, float f,
   float[1] g, float[3,1,1] c, float[1,3,1,1] d, float[3,7,11] full,
   float[1,1,1] single, float[1,1,7,1] row> {{ {body} }}"""
ONE = "float[A,B,C,D] y"
TWO = f"{ONE}, float[E,F,G,H] a"
NORM = "y = BatchNormalization(a, s, t, m, v)"


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_normalization_after_a_convolution(body: str, left: str) -> None:
    assert agrees(IMAGE.format(outputs=ONE, body=body), "basic") == left.split()


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Conv(x, w) y = Add(a, c)", "Conv"),
        ("a = Conv(x, w, b) y = Add(a, c)", "Conv"),
        ("a = Conv(x, w) y = Add(a, d)", "Conv"),
        ("a = Conv(x, w) y = Add(d, a)", "Conv Add"),
        ("a = Conv(x, w) y = Add(a, f)", "Conv Add"),
        ("a = Conv(x, w) y = Add(a, g)", "Conv Add"),
        ("a = Conv(x, w) y = Add(a, row)", "Conv Add"),
        ("a = Conv(x, w) y = Add(a, full)", "Conv Add"),
        ("a = Conv(x, w) y = Add(a, single)", "Conv Add"),
        ("a = Conv(x, kernel) y = Add(a, c)", "Conv Add"),
        ("a = Conv(x, w, given) y = Add(a, c)", "Conv Add"),
        ("a = Conv(x, w) y = Add(a, a)", "Conv Add"),
        ("a = ConvTranspose(x, u) y = Add(a, c)", "ConvTranspose Add"),
        ("a = Conv(x, w) z = Add(a, c) y = Mul(z, a)", "Conv Add Mul"),
        (
            "a = Conv(x, w) z = Exp(given) k = Reshape<allowzero = 0>(z, to) y = Add(a, k)",
            "Exp Reshape Conv Add",
        ),
        ("a = Conv(x, w) y = Mul(a, c)", "Conv"),
        ("a = Conv(x, w, b) y = Mul(a, c)", "Conv"),
        ("a = Conv(x, w) y = Mul(a, d)", "Conv"),
        ("a = Conv(x, w) y = Mul(a, f)", "Conv"),
        ("a = Conv(x, w, b) y = Mul(a, f)", "Conv"),
        ("a = Conv(x, w) y = Mul(f, a)", "Conv Mul"),
        ("a = Conv(x, w) y = Mul(a, g)", "Conv Mul"),
        ("a = Conv(x, w, b) y = Mul(a, single)", "Conv Mul"),
        ("a = Conv(x, kernel) y = Mul(a, c)", "Conv Mul"),
        ("a = Conv(x, w) z = Mul(a, c) y = Sub(z, a)", "Conv Mul Sub"),
        (
            "a = Conv(x, w) z = Mul(a, c) k = Add(z, d) y = BatchNormalization(k, s, t, m, v)",
            "Conv",
        ),
    ],
)
def test_sum_or_product_after_a_convolution(body: str, left: str) -> None:
    text = IMAGE.format(outputs=ONE, body=body).replace(
        "float f,", "float f, int64[3] to = {3, 1, 1},"
    )
    assert agrees(text, "basic") == left.split()


@pytest.mark.parametrize("last", [NORM, "y = Add(a, c)", "y = Mul(a, c)"])
def test_a_convolution_whose_result_is_wanted_stays(last: str) -> None:
    text = IMAGE.format(outputs=TWO, body=f"a = Conv(x, w) {last}")
    assert len(agrees(text, "basic")) == 2


def test_a_normalization_that_trains_stays() -> None:
    body = "a = Conv(x, w) y, p, q = BatchNormalization<training_mode = 1>(a, s, t, m, v)"
    assert agrees(IMAGE.format(outputs=ONE, body=body), "basic") == ["Conv", "BatchNormalization"]


def test_a_bias_for_more_channels_than_there_are_is_not_fused() -> None:
    body = "a = Conv(x, w, s6) y = BatchNormalization(a, s, t, m, v)"
    assert agrees(IMAGE.format(outputs=ONE, body=body), "basic") == ["Conv", "BatchNormalization"]


def test_statistics_of_another_type_are_not_fused() -> None:
    body = "a = Conv(x, w) y = BatchNormalization(a, s, t, m, v)"
    text = IMAGE.format(outputs=ONE, body=body).replace("float[", "float16[")
    for name in "mv":
        text = text.replace(f"float16[3] {name}", f"float[3] {name}")
    assert "BatchNormalization" in agrees(text, "basic")


def test_half_precision_is_fused_too() -> None:
    text = IMAGE.format(outputs=ONE, body=f"a = Conv(x, w) {NORM}").replace("float[", "float16[")
    assert agrees(text, "basic") == ["Cast", "Cast", "Cast", "Conv", "Cast"]


PAD = """agraph (float[N,2,7,11] x{inputs}) => (float[A,B,C,D] y{outputs})
  <float[3,2,1,1] w, int64[8] pads = {{0, 0, 1, 2, 0, 0, 3, 4}},
   int64[8] cut = {{0, 0, 1, 2, 0, 0, -1, 4}},
   int64[8] channels = {{0, 1, 1, 2, 0, 0, 3, 4}}, int64[8] batch = {{0, 0, 1, 2, 1, 0, 3, 4}},
   int64[4] some = {{1, 2, 3, 4}}, int64[2] axes = {{2, 3}}, float nought = {{0.0}},
   float[1] noughts = {{0.0}}, float half = {{0.5}}>
  {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_padding_before_a_convolution_or_a_pooling(body: str, left: str) -> None:
    given = ", float h, int64[8] p, float[2,3,1,1] v, float[3,3,1,1] k, float[3,2,1,1] w2"
    assert agrees(PAD.format(inputs=given, outputs="", body=body), "basic") == left.split()


def test_a_padding_that_is_wanted_itself_stays() -> None:
    text = PAD.format(
        inputs="", outputs=", float[E,F,G,H] a", body="a = Pad(x, pads) y = Conv(a, w)"
    )
    assert agrees(text, "basic") == ["Pad", "Conv"]


@pytest.mark.parametrize(("value", "left"), [("", "Conv"), (", value = 0.5", "Pad Conv")])
def test_older_paddings_have_their_amounts_as_attributes(value: str, left: str) -> None:
    body = f"a = Pad<pads = [0, 0, 1, 2, 0, 0, 3, 4]{value}>(x) y = Conv(a, w)"
    assert agrees(PAD.format(inputs="", outputs="", body=body), "basic", opset=10) == left.split()
