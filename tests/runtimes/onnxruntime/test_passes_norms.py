"""Layer normalizations that onnxruntime puts together, and the sums that it takes into them."""

import pytest
from installed_runtime import since
from optimized_graphs import agrees, cases

pytestmark = pytest.mark.measure

GRAPH = """agraph (float[N,3,7] x, float[N,3,7] skip, float p, float[7] r, float16[N,3,7] h,
   float[P] f,
  float[N,7] flat, float[N,M,7] same, float[N,M,7] other, float[K,M,7] unlike, float[M,7] m2)
  => ({outputs})
  <float two = {{2.0}}, float tiny = {{0.001}}, float[7] g, float[7] b, float[1] one, float[7,7] v,
   int64[1] last = {{-1}}, int64[1] middle = {{1}}, int64[1] second = {{2}},
   int64[2] lasts = {{1, 2}},
   float three = {{3.0}}, float[3,7] wide, float[3,1] tall,
   double tiny64 = {{0.0009765625}}, double third64 = {{0.3}}>
  {{ {body} }}"""
MEAN = "m = ReduceMean<axes = [-1]>(x) d = Sub(x, m) "
CLOSE = "s = Add(w, tiny) t = Sqrt(s) q = Div(d, t) "
NORM = f"{MEAN} c = Pow(d, two) w = ReduceMean<axes = [-1]>(c) {CLOSE} e = Mul(q, g) y = Add(e, b)"


def left_of(body: str, opset: int = 17) -> str:
    outputs = ", ".join(name for name in ("y", "z") if f"{name} =" in body)
    return " ".join(agrees(GRAPH.format(outputs=outputs, body=body), "extended", opset=opset))


@pytest.mark.parametrize(
    ("old", "new", "left"),
    [
        ("", "", "LayerNormalization"),
        ("Sub(x, m)", "Sub(m, x)", "LayerNormalization"),
        ("Mul(q, g)", "Mul(g, q)", "LayerNormalization"),
        ("Add(e, b)", "Add(b, e)", "LayerNormalization"),
        pytest.param("Add(w, tiny)", "Add(tiny, w)", "LayerNormalization", marks=since("1.32")),
        ("[-1]", "[2]", "LayerNormalization"),
        ("<axes = [-1]>(x)", "<axes = [1]>(x)", "ReduceMean Sub SimplifiedLayerNormalization Add"),
        (
            "<axes = [-1]>(c)",
            "<axes = [1]>(c)",
            "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add",
        ),
        ("<axes = [-1]>", "<axes = [1, 2]>", "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"),
        (
            "<axes = [-1]>",
            "<axes = [-2, -1]>",
            "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add",
        ),
        ("<axes = [-1]>", "", "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"),
        ("Pow(d, two)", "Pow(d, three)", "LayerNormalization"),
        ("Pow(d, two)", "Mul(d, d)", "ReduceMean Sub Mul ReduceMean Add Sqrt Div Mul Add"),
        ("Pow(d, two)", "Abs(d)", "ReduceMean Sub Abs ReduceMean Add Sqrt Div Mul Add"),
        ("Sqrt(s)", "Exp(s)", "ReduceMean Sub Pow ReduceMean Add Exp Div Mul Add"),
        ("Div(d, t)", "Mul(d, t)", "ReduceMean Sub Pow ReduceMean Add Sqrt Mul Mul Add"),
        ("Div(d, t)", "Div(x, t)", "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"),
        ("Div(d, t)", "Div(t, d)", "LayerNormalization"),
        ("Mul(q, g)", "Mul(q, p)", "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"),
        ("Mul(q, g)", "Mul(q, r)", "LayerNormalization"),
        ("Mul(q, g)", "Sub(q, g)", "ReduceMean Sub Pow ReduceMean Add Sqrt Div Sub Add"),
        ("Mul(q, g)", "Mul(q, wide)", "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add"),
        ("Add(e, b)", "Add(e, wide)", "ReduceMean Sub SimplifiedLayerNormalization Add"),
        ("Add(e, b)", "Add(e, one)", "ReduceMean Sub SimplifiedLayerNormalization Add"),
        ("Add(e, b)", "Sub(e, b)", "ReduceMean Sub SimplifiedLayerNormalization Sub"),
        ("Add(e, b)", "Exp(e)", "ReduceMean Sub SimplifiedLayerNormalization Exp"),
        ("Sub(x, m)", "Add(x, m)", "ReduceMean Add SimplifiedLayerNormalization Add"),
        ("Sub(x, m)", "Sub(skip, m)", "ReduceMean Sub SimplifiedLayerNormalization Add"),
        (
            "Add(e, b)",
            "Add(e, b) z = Neg(e)",
            "ReduceMean Sub SimplifiedLayerNormalization Neg Add",
        ),
        (
            "Add(e, b)",
            "Add(e, b) z = Neg(m)",
            "ReduceMean Neg Sub SimplifiedLayerNormalization Add",
        ),
        (
            "Add(e, b)",
            "Add(e, b) z = Neg(d)",
            "ReduceMean Sub Neg SimplifiedLayerNormalization Add",
        ),
        (
            "Add(e, b)",
            "Add(e, b) z = Neg(t)",
            "ReduceMean Sub Pow ReduceMean Add Sqrt Neg Div Mul Add",
        ),
        (
            "Add(e, b)",
            "Add(e, b) z = Neg(q)",
            "ReduceMean Sub Pow ReduceMean Add Sqrt Div Neg Mul Add",
        ),
        (
            "Add(e, b)",
            "Add(e, b) z = Neg(w)",
            "ReduceMean Sub Pow ReduceMean Neg Add Sqrt Div Mul Add",
        ),
        (
            "m = Red",
            "z = Identity(m) m = Red",
            "ReduceMean Sub SimplifiedLayerNormalization Add Identity",
        ),
        ("d = Sub(x, m) ", "d = Sub(x, m) d2 = Sub(x, m) k = Identity(d2) ", "LayerNormalization"),
        ("Pow(d, two)", "Cast<to = 1>(d) c = Pow(dd, two)", "LayerNormalization"),
        pytest.param(
            "Add(w, tiny)",
            "Add(w, p)",
            "ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add",
            marks=since("1.32"),
        ),
        ("Add(w, tiny)", "Sub(w, tiny)", "ReduceMean Sub Pow ReduceMean Sub Sqrt Div Mul Add"),
        (
            "w = ReduceMean<axes = [-1]>(c)",
            "w = Abs(c)",
            "ReduceMean Sub Pow Abs Add Sqrt Div Mul Add",
        ),
        (
            "s = Add(w, tiny) t = Sqrt(s)",
            "t = Sqrt(w)",
            "ReduceMean Sub Pow ReduceMean Sqrt Div Mul Add",
        ),
        ("t = Sqrt(s)", "t = Sqrt(p)", "Sqrt ReduceMean Sub Div Mul Add Pow ReduceMean Add"),
    ],
)
def test_layer_normalization(old: str, new: str, left: str) -> None:
    body = NORM.replace(old, new) if old else NORM
    if "z = Identity(m)" in body:
        body = NORM.replace("e = Mul", "z = Identity(m) e = Mul")
    if "dd, two" in body:
        body = NORM.replace("Pow(d, two)", "Pow(dd, two)").replace(
            "c = Pow", "dd = Cast<to = 1>(d) c = Pow"
        )
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "left"),
    cases("""
m = ReduceMean(x, last) d = Sub(x, m) c = Pow(d, two) w = ReduceMean(c, last) s = Add(w, tiny)\
 t = Sqrt(s) q = Div(d, t) e = Mul(q, g) y = Add(e, b) -> LayerNormalization
m = ReduceMean(x, second) d = Sub(x, m) c = Pow(d, two) w = ReduceMean(c, last) s = Add(w, tiny)\
 t = Sqrt(s) q = Div(d, t) e = Mul(q, g) y = Add(e, b) -> LayerNormalization
m = ReduceMean(x, lasts) d = Sub(x, m) c = Pow(d, two) w = ReduceMean(c, lasts) s = Add(w, tiny)\
 t = Sqrt(s) q = Div(d, t) e = Mul(q, g) y = Add(e, b)\
 -> ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add
m = ReduceMean(x, middle) d = Sub(x, m) c = Pow(d, two) w = ReduceMean(c, middle) s = Add(w, tiny)\
 t = Sqrt(s) q = Div(d, t) e = Mul(q, g) y = Add(e, b)\
 -> ReduceMean Sub Pow ReduceMean Add Sqrt Div Mul Add
m = ReduceMean(x, last) d = Sub(x, m) d2 = Sub(x, m) c = Pow(d, two) w = ReduceMean(c, last)\
 s = Add(w, tiny) t = Sqrt(s) q = Div(d2, t) e = Mul(q, g) y = Add(e, b) -> LayerNormalization
hh = Cast<to = 1>(h) m = ReduceMean(hh, last) d = Sub(hh, m) c = Pow(d, two)\
 w = ReduceMean(c, last) s = Add(w, tiny) t = Sqrt(s) q = Div(d, t) e = Mul(q, g)\
 y = Add(e, b) z = Neg(hh)\
 -> Cast LayerNormalization Neg
m = ReduceMean(x, last) d = Sub(x, m) k = Cast<to = 11>(d) dd = Cast<to = 1>(k) c = Pow(dd, two)\
 w = ReduceMean(c, last) s = Add(w, tiny) t = Sqrt(s) q = Div(dd, t) e = Mul(q, g)\
 y = Add(e, b) -> ReduceMean Sub SimplifiedLayerNormalization Add
m = ReduceMean(x, last) d = Sub(x, m) dd = Cast<to = 11>(d) c = Pow(dd, two)\
 w = ReduceMean(c, last) s = Add(w, tiny64) t = Sqrt(s) q = Div(dd, t) k = Cast<to = 1>(q)\
 e = Mul(k, g) y = Add(e, b) -> LayerNormalization
m = ReduceMean(x, last) d = Sub(x, m) dd = Cast<to = 11>(d) c = Pow(dd, two)\
 w = ReduceMean(c, last) s = Add(w, tiny64) t = Sqrt(s) k = Cast<to = 1>(t) q = Div(d, k)\
 e = Mul(q, g) y = Add(e, b) -> ReduceMean Sub Cast Pow ReduceMean Add Sqrt Cast Div Mul Add
m = ReduceMean(x, last) d = Sub(x, m) y = Exp(d) -> ReduceMean Sub Exp
m = ReduceMean(x, last) y = Exp(m) -> ReduceMean Exp
m = ReduceMean(x, last) d = Sub(x, m) c = Pow(d, two) y = Mul(d, c) -> ReduceMean Sub Pow Mul
m = ReduceMean(x, last) d = Sub(x, m) e = Exp(m) y = Add(d, e) -> ReduceMean Exp Sub Add
"""),
)
def test_layer_normalization_by_axes_as_an_input(body: str, left: str) -> None:
    assert left_of(body, 18) == left


RMS = """c = Pow(x, two) w = ReduceMean<axes = [-1]>(c) s = Add(w, tiny) t = Sqrt(s)
 q = Div(x, t) y = Mul(q, g)"""


@pytest.mark.parametrize(
    ("old", "new", "left"),
    [
        ("", "", "SimplifiedLayerNormalization"),
        ("Mul(q, g)", "Mul(g, q)", "SimplifiedLayerNormalization"),
        ("[-1]", "[2]", "SimplifiedLayerNormalization"),
        ("[-1]", "[1]", "Pow ReduceMean Add Sqrt Div Mul"),
        ("[-1]", "[1, 2]", "Pow ReduceMean Add Sqrt Div Mul"),
        ("Div(x, t)", "Div(skip, t)", "Pow ReduceMean Add Sqrt Div Mul"),
        ("Div(x, t)", "Mul(x, t)", "Pow ReduceMean Add Sqrt Mul Mul"),
        ("Sqrt(s)", "Exp(s)", "Pow ReduceMean Add Exp Div Mul"),
        ("Add(w, tiny)", "Sub(w, tiny)", "Pow ReduceMean Sub Sqrt Div Mul"),
        pytest.param(
            "Add(w, tiny)", "Add(w, p)", "Pow ReduceMean Add Sqrt Div Mul", marks=since("1.32")
        ),
        ("Pow(x, two)", "Pow(x, three)", "Pow ReduceMean Add Sqrt Div Mul"),
        ("Pow(x, two)", "Mul(x, x)", "Mul ReduceMean Add Sqrt Div Mul"),
        ("Mul(q, g)", "Mul(q, p)", "Pow ReduceMean Add Sqrt Div Mul"),
        ("Mul(q, g)", "Mul(q, r)", "SimplifiedLayerNormalization"),
        ("Mul(q, g)", "Mul(q, wide)", "Pow ReduceMean Add Sqrt Div Mul"),
        ("Mul(q, g)", "Add(q, g)", "Pow ReduceMean Add Sqrt Div Add"),
        ("Mul(q, g)", "Mul(q, g) z = Neg(t)", "Pow ReduceMean Add Sqrt Neg Div Mul"),
        ("Mul(q, g)", "Mul(q, g) z = Neg(q)", "Pow ReduceMean Add Sqrt Div Neg Mul"),
        ("Mul(q, g)", "Mul(q, g) z = Neg(c)", "Pow Neg ReduceMean Add Sqrt Div Mul"),
        (
            "q = Div(x, t) y = Mul(q, g)",
            "i = Reciprocal(t) q = Mul(x, i) y = Mul(q, g)",
            "Pow ReduceMean Add Sqrt Reciprocal Mul Mul",
        ),
        (
            "q = Div(x, t) y = Mul(q, g)",
            "q = Div(x, t) y = Neg(q)",
            "Pow ReduceMean Add Sqrt Div Neg",
        ),
    ],
)
def test_normalization_by_the_root_mean_square(old: str, new: str, left: str) -> None:
    assert left_of(RMS.replace(old, new) if old else RMS) == left


@pytest.mark.parametrize(
    ("body", "left"),
    cases("""
a = Add(x, skip) y = LayerNormalization(a, g, b) -> SkipLayerNormalization
a = Add(x, skip) y = LayerNormalization<epsilon = 0.01>(a, g) -> SkipLayerNormalization
a = Add(x, skip) y = LayerNormalization(a, r, b) -> SkipLayerNormalization
a = Add(same, other) y = LayerNormalization(a, g, b) -> SkipLayerNormalization
a = Add(same, unlike) y = LayerNormalization(a, g, b) -> Add LayerNormalization
a = Add(x, flat) y = LayerNormalization(a, g, b) -> Add LayerNormalization
a = Add(flat, flat) y = LayerNormalization(a, g, b) -> Add LayerNormalization
a = Add(x, b) y = LayerNormalization(a, g, b) -> Add LayerNormalization
a = Add(same, m2) y = LayerNormalization(a, g, b) -> Add LayerNormalization
a = Sub(x, skip) y = LayerNormalization(a, g, b) -> Sub LayerNormalization
y = LayerNormalization(x, g, b) -> LayerNormalization
a = Add(x, skip) y = LayerNormalization(a, g, b) z = Neg(a) -> Add Neg LayerNormalization
z = Add(x, skip) y = LayerNormalization(z, g, b) -> Add LayerNormalization
c = Add(x, b) a = Add(c, skip) y = LayerNormalization(a, g, b) -> SkipLayerNormalization
c = Add(b, x) a = Add(c, skip) y = LayerNormalization(a, g, b) -> Add SkipLayerNormalization
c = Add(x, b) a = Add(skip, c) y = LayerNormalization(a, g, b) -> SkipLayerNormalization
c = Add(x, r) a = Add(c, skip) y = LayerNormalization(a, g, b) -> Add SkipLayerNormalization
c = Add(x, one) a = Add(c, skip) y = LayerNormalization(a, g, b) -> Add SkipLayerNormalization
c = Add(x, b) a = Add(c, skip) y = LayerNormalization(a, g, b) z = Neg(c)\
 -> Add SkipLayerNormalization Neg
c = Add(x, wide) a = Add(c, skip) y = LayerNormalization(a, g, b) -> Add SkipLayerNormalization
k = MatMul(same, v) c = Add(k, b) a = Add(c, other) y = LayerNormalization(a, g, b)\
 -> MatMul SkipLayerNormalization
k = MatMul(x, v) c = Add(k, b) a = Add(c, skip) y = LayerNormalization(a, g, b)\
 -> MatMul SkipLayerNormalization
k = MatMul(x, v) c = Add(b, k) a = Add(skip, c) y = LayerNormalization(a, g, b)\
 -> MatMul SkipLayerNormalization
a = Add(x, skip) y, n = LayerNormalization(a, g, b) -> SkipLayerNormalization
a = Add(x, skip) y = LayerNormalization<axis = 1>(a, wide, wide) -> Add LayerNormalization
a = Add(x, skip) y, n, i, w = com.microsoft.SkipLayerNormalization(a, skip, g, b)\
 -> Add SkipLayerNormalization
a = Add(x, b) y = com.microsoft.SkipLayerNormalization(a, skip, g, b) -> Add SkipLayerNormalization
k = MatMul(x, v) a = Add(k, b) y = com.microsoft.SkipLayerNormalization(a, skip, g, b)\
 -> MatMul SkipLayerNormalization
k = MatMul(same, v) a = Add(b, k) y = com.microsoft.SkipLayerNormalization(a, other, g, b)\
 -> MatMul SkipLayerNormalization
k = MatMul(same, v) a = Add(k, b) y = com.microsoft.SkipLayerNormalization(a, other, g, b, b)\
 -> MatMul Add SkipLayerNormalization
k = MatMul(same, v) a = Add(k, b) y = com.microsoft.SkipLayerNormalization(other, a, g, b)\
 -> MatMul SkipLayerNormalization
k = MatMul(same, v) a = Add(k, r) y = com.microsoft.SkipLayerNormalization(a, other, g, b)\
 -> MatMul Add SkipLayerNormalization
k = MatMul(same, v) a = Add(k, other) y = com.microsoft.SkipLayerNormalization(a, other, g, b)\
 -> MatMul Add SkipLayerNormalization
k = MatMul(same, v) z = Add(k, b) y = com.microsoft.SkipLayerNormalization(z, other, g, b)\
 -> MatMul Add SkipLayerNormalization
a = Mul(x, b) y = com.microsoft.SkipLayerNormalization(a, skip, g, b) -> Mul SkipLayerNormalization
"""),
)
def test_a_sum_before_a_normalization(body: str, left: str) -> None:
    assert left_of(body) == left


@since("1.32")
def test_an_epsilon_that_is_not_a_float_stays() -> None:
    body = (
        f"{MEAN} dd = Cast<to = 11>(d) c = Pow(dd, two) w = ReduceMean<axes = [-1]>(c)"
        " s = Add(w, third64) t = Sqrt(s) q = Div(dd, t) k = Cast<to = 1>(q)"
        " e = Mul(k, g) y = Add(e, b)"
    )
    left = "ReduceMean Sub Cast Pow ReduceMean Add Sqrt Div Cast Mul Add"
    assert left_of(body) == left
    assert left_of(body.replace("third64", "tiny64")) == "LayerNormalization"
