"""Rules that take single nodes away, as onnxruntime applies them: what goes and what stays."""

import pytest
from optimized_graphs import agrees

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


def left_of(body: str, opset: int = 21) -> str:
    """What is left of the nodes at the basic level, the one that makes ``x`` aside."""
    outputs = "y, z" if "z =" in body else "y"
    left = agrees(VECTORS.format(outputs=outputs, body=body), "basic", opset=opset)
    left.remove("Abs")
    return " ".join(left)


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_identity_and_dropout(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_slices(body: str, left: str) -> None:
    assert left_of(f"{body} y = Exp(a)") == left


@pytest.mark.parametrize(
    ("ends", "left"),
    [("[9223372036854775807]", "Exp"), ("[5]", "Slice Exp"), ("[5], axes = [1]", "Slice Exp")],
)
def test_older_slices_have_their_bounds_as_attributes(ends: str, left: str) -> None:
    body = f"a = Slice<starts = [0], ends = {ends}>(x) y = Exp(a)"
    assert left_of(body, 9) == left


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_expands(body: str, left: str) -> None:
    assert left_of(f"{body} y = Exp(a)") == left


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_sums_with_nought_and_products_with_one(body: str, left: str) -> None:
    assert left_of(f"{body} y = Exp(a)") == left


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_reciprocals_in_products(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("c = Cast<to = 1>(x) y = Exp(c)", "Exp"),
        ("c = Cast<to = 11>(x) e = Cast<to = 1>(c) y = Exp(e)", "Exp"),
        ("c = Cast<to = 11>(x) e = Cast<to = 6>(c) y = Cast<to = 1>(e)", "Cast Cast"),
        ("c = Cast<to = 6>(x) e = Cast<to = 11>(c) y = Cast<to = 1>(e)", "Cast Cast"),
        (
            (
                "c = Cast<to = 11>(x) e = Cast<to = 6>(c) g = Cast<to = 7>(c) "
                "h = Cast<to = 1>(e) i = Cast<to = 1>(g) y = Add(h, i)"
            ),
            "Cast Cast Cast Cast Add",
        ),
        (
            (
                "c = Cast<to = 11>(x) e = Cast<to = 6>(c) g = Exp(c) h = Cast<to = 1>(e) "
                "i = Cast<to = 1>(g) y = Add(h, i)"
            ),
            "Cast Exp Cast Cast Cast Add",
        ),
        ("y = Cast<to = 1>(x)", "Cast"),
        ("c = Cast<to = 10>(x) e = Cast<to = 1>(c) y = Exp(e)", "Cast Cast Exp"),
        ("c = Cast<to = 6>(x) s = Shape(c) y = Reshape(k, s)", "Shape Reshape"),
        (
            (
                "c = Cast<to = 6>(x) s = Shape(c) t = Shape<start = 1>(c) "
                "u = Slice(s, first, second) v = Concat<axis = 0>(u, t) y = Reshape(k, v)"
            ),
            "Shape Slice Shape Concat Reshape",
        ),
        (
            "c = Cast<to = 6>(x) s = Shape(c) r = Reshape(k, s) e = Cast<to = 1>(c) y = Add(r, e)",
            "Cast Cast Shape Reshape Add",
        ),
        (
            "i = Exp(x) c = Cast<to = 6>(i) s = Shape(c) r = Reshape(k, s) y = Neg(r)",
            "Exp Shape Reshape Neg",
        ),
        ("c = Cast<to = 6>(b) e = Cast<to = 1>(c) y = Add(x, e)", "Cast Add"),
        ("c = Cast<to = 2>(b) e = Cast<to = 9>(c) y = Where(e, x, k)", "Where"),
        ("d = Cast<to = 1>(b) c = CastLike(x, d) y = Exp(c)", "Cast Exp Cast"),
    ],
)
def test_casts(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "left"),
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
def test_unsqueezed_constants(body: str, left: str) -> None:
    assert left_of(body) == left


def test_older_unsqueezes_have_their_axes_as_attributes() -> None:
    assert left_of("u = Unsqueeze<axes = [0]>(w) y = Add(x, u)", 11) == "Add"


def test_a_rule_reaches_into_branches() -> None:
    branch = "g () => (float[A,B] t) {{ {} }}"
    body = (
        "a = Identity(x) y = If(b) <then_branch = "
        + branch.format("c = Identity(a) t = Exp(c)")
        + ", else_branch = "
        + branch.format("c = Mul(a, one) t = Neg(c)")
        + ">"
    )
    assert left_of(body) == "If"
