"""A Transpose before an operator that broadcasts: what becomes of the other operands."""

import pytest
from transposed_graphs import left_of

pytestmark = pytest.mark.measure

IMAGES = """agraph (float[2,3,5,7] x, float[2,5,7,3] fed, float[3] fed1, float number,
  float[q] some, int64[r] dims, float[1,1,1,1,1] deep, float[3,7] lower, float[1,1,7,3] long,
  float[1,7,3,1] ends, bool[5,1,3] choice, bool[2,3,5,7] choices, bool c, float[2,3,5,7] x3,
  int64[2,3] integers) => ({outputs})
  <float[2,5,7,3] w, float[7,3] w2, float[3] w1, float[1] one, float[1,1,1,1] one4,
   float scalar = {{3.0}}, int64[2] front = {{0, 1}}, int64[2] both = {{0, 3}},
   int64[3,2] counts = {{1, 2, 3, 4, 5, 6}}>
  {{ {body} }}"""


@pytest.mark.parametrize(
    ("sum_of", "opset", "left"),
    [
        ("Add(a, w)", 21, "Add"),
        ("Add(a, w2)", 21, "Add"),
        ("Add(a, w1)", 21, "Add"),
        ("Add(a, one)", 21, "Add"),
        ("Add(a, one4)", 21, "Add"),
        ("Add(a, scalar)", 21, "Add"),
        ("Sub(w2, a)", 21, "Sub"),
        ("Max(a, w1, a)", 21, "Max"),
        ("Max(a)", 21, "Max"),
    ],
)
def test_a_constant_operand_is_brought_to_rank_and_order(
    sum_of: str, opset: int, left: str
) -> None:
    assert left_of(IMAGES, f"a = Last(x) b = {sum_of} y = First(b)", opset=opset) == left


@pytest.mark.parametrize(
    ("body", "opset", "left"),
    [
        ("w2) y = First(b) z = Softmax(w2)", 21, "Add"),
        ("w) y = First(b) z = Softmax(w)", 21, "Add"),
        ("w2) y = First(b) c2 = Sub(a, w2) z = First(c2)", 21, "Sub Add"),
        ("w2) y = First(b) z = Softmax<axis = 1>(w2)", 12, "Add"),
    ],
)
def test_other_readers_of_a_constant_read_it_as_it_was(body: str, opset: int, left: str) -> None:
    assert left_of(IMAGES, f"a = Last(x) b = Add(a, {body}", opset=opset) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Last(x) b = Add(a, w2) y = First(b) z = Identity(w2)", "Add"),
        (
            (
                "a = Last(x) b = Add(a, w2) y = First(b) z = If (c) <then_branch = t () => "
                "(float[7,3] u) { u = Cos(w2) }, else_branch = e () => (float[7,3] v) { v = "
                "Sin(w2) }>"
            ),
            "If Add",
        ),
    ],
)
def test_a_constant_that_others_see_stays(body: str, left: str) -> None:
    assert left_of(IMAGES, body) == left


@pytest.mark.parametrize(
    ("body", "opset", "left"),
    [
        ("a = Last(x) b = Add(a, fed) y = First(b)", 21, "Transpose Add Transpose"),
        ("a = Last(x) b = Add(a, fed1) y = First(b)", 21, "Unsqueeze Transpose Add"),
        ("a = Last(x) b = Add(a, fed1) y = First(b)", 12, "Unsqueeze Transpose Add"),
        ("a = Last(x) b = Add(a, number) y = First(b)", 21, "Add"),
        (
            "a = Last(x) k = Reshape(some, dims) b = Add(a, k) y = First(b)",
            21,
            "Reshape Transpose Add Transpose",
        ),
        (
            "a = Last(x) b = Add(a, deep) y = Transpose<perm = [0, 1, 4, 2, 3]>(b)",
            21,
            "Transpose Add Transpose",
        ),
        ("a = Last(x) k = Flip(lower) b = Add(a, k) y = First(b)", 21, "Unsqueeze Transpose Add"),
        ("a = Last(x) k = Flip(lower) b = Add(a, k) y = First(b)", 12, "Unsqueeze Transpose Add"),
        ("a = Last(x) k = Squeeze(long, front) b = Add(a, k) y = First(b)", 21, "Transpose Add"),
        (
            "a = Last(x) k = Squeeze(long, front) b = Add(a, k) y = First(b) z = Softmax(k)",
            21,
            "Squeeze Softmax Transpose Add",
        ),
        (
            "a = Last(x) k = Squeeze(ends, both) b = Add(a, k) y = First(b)",
            21,
            "Squeeze Unsqueeze Transpose Add",
        ),
        (
            "a = Last(x) b = Add(a, fed) y = First(b) d = Mul(a, fed) z = First(d)",
            21,
            "Transpose Mul Transpose Add Transpose",
        ),
        ("a = Last(x) b = Where(choice, a, number) y = First(b)", 21, "Unsqueeze Transpose Where"),
        ("a = Last(x) k = Last(choices) b = Where(k, w1, a) y = First(b)", 21, "Where"),
        (
            (
                "a = Last(x) k = Last(x3) b = Sum(a, k, fed) y = First(b) d = First(fed) z = "
                "Softmax(d)"
            ),
            21,
            "Transpose Softmax Sum",
        ),
        ("a = Last(x) k = Last(x3) b = Sum(a, k, fed) y = First(b)", 21, "Transpose Sum"),
    ],
)
def test_a_computed_operand_is_brought_to_rank_and_order(body: str, opset: int, left: str) -> None:
    assert left_of(IMAGES, body, opset=opset) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Flip(integers) b = Add(a, counts) y = Flip(b)", "Add"),
        ("a = Flip(integers) b = Add(a, counts) y = Flip(b) z = Cast<to = 1>(counts)", "Add"),
    ],
)
def test_the_elements_of_a_constant_move_with_its_dims(body: str, left: str) -> None:
    assert left_of(IMAGES, body) == left
