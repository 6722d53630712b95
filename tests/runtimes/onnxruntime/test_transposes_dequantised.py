"""Transposes that are seen through a DequantizeLinear."""

import pytest
from transposed_graphs import left_of

pytestmark = pytest.mark.measure

IMAGES = """agraph (float[2,3,5,7] x, uint8[7,3] q2, uint8[2,5,7,3] q4, uint8[2,3,5,7] qx,
  uint8[2,5,3,7] qo, uint8[1,1,7,3] ql, float[r] fed_scale, uint8[r] fed_zero,
  bool[2,5,7,3] choice, int64[k] dims, float[2,4,3] flat, float[2,3] square, float[3,2,5] cube,
  float[2,3,5,7] x5, float[2,5,7,3] last) => ({outputs})
  <float s = {{0.5}}, uint8 p = {{3}}, float[3] s3 = {{0.5, 0.3, 0.2}}, uint8[3] p3 = {{3, 1, 2}},
   uint8[2,5,7,3] w4, uint8[7,3] w2, uint8[3] w1, uint8 w0 = {{3}},
   uint8[1,1,1,1] w1111 = {{3}}, uint8[1,1,7,3] w3, int64[2] front = {{0, 1}}, uint8[2,3,4] wb,
   float[2,3,2] sb2, uint8[2,3,2] pb2, uint8[3,2] known = {{1, 2, 3, 4, 5, 6}}>
  {{ {body} }}"""


@pytest.mark.parametrize(
    ("constant", "left"),
    [
        ("(w4, s, p)", "DequantizeLinear Add"),
        ("(w2, s, p)", "DequantizeLinear Add"),
        ("(w1, s, p)", "DequantizeLinear Add"),
        ("(w0, s, p)", "DequantizeLinear Add"),
        ("(w1111, s, p)", "DequantizeLinear Add"),
        ("<axis = -1>(w3, s3, p3)", "DequantizeLinear Add"),
        ("<axis = 1>(w2, s3, p3)", "DequantizeLinear Add"),
        (
            "(q2, s, p)",
            (
                "DequantizeLinear Unsqueeze QuantizeLinear DequantizeLinear Transpose "
                "QuantizeLinear DequantizeLinear Add"
            ),
        ),
        (
            "<axis = 1>(q2, s3, p3)",
            (
                "DequantizeLinear Unsqueeze QuantizeLinear DequantizeLinear Transpose "
                "QuantizeLinear DequantizeLinear Add"
            ),
        ),
        ("(q4, s, p)", "DequantizeLinear Transpose Add Transpose"),
    ],
)
def test_a_dequantized_constant_is_brought_to_rank_and_order(constant: str, left: str) -> None:
    assert (
        left_of(IMAGES, f"a = Last(x) d = DequantizeLinear{constant} b = Add(a, d) y = First(b)")
        == left
    )


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (
            "y = First(b) e = DequantizeLinear(w2, s, p) z = Softmax(e)",
            "DequantizeLinear Softmax DequantizeLinear Add",
        ),
        ("y = First(b) z = Softmax(d)", "DequantizeLinear Softmax DequantizeLinear Add"),
        ("y = First(b) z = Identity(d)", "DequantizeLinear DequantizeLinear Add"),
        ("y = First(b) z = Identity(w2)", "DequantizeLinear Add"),
        (
            "y = First(b) e = DequantizeLinear(w2, s, p) f = Sub(a, e) z = First(f)",
            "DequantizeLinear Sub DequantizeLinear Add",
        ),
        (
            "y = First(b) e = DequantizeLinear(w2, s, p) f = Where(choice, a, e) z = First(f)",
            "DequantizeLinear Transpose Where Transpose DequantizeLinear Add",
        ),
    ],
)
def test_a_constant_that_is_dequantized_twice(body: str, left: str) -> None:
    assert (
        left_of(IMAGES, f"a = Last(x) d = DequantizeLinear(w2, s, p) b = Add(a, d) {body}") == left
    )


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("c = Last(qx) d = DequantizeLinear(c, s, p) b = Add(a, d)", "DequantizeLinear Add"),
        (
            "c = Transpose<perm = [0, 1, 3, 2]>(qo) d = DequantizeLinear(c, s, p) b = Add(a, d)",
            "DequantizeLinear Transpose QuantizeLinear DequantizeLinear Add",
        ),
        (
            "c = Last(qx) d = DequantizeLinear(c, s, p) b = Add(a, d) z = Cast<to = 1>(c)",
            "Transpose Cast DequantizeLinear Add",
        ),
        (
            "c = Squeeze(ql, front) d = DequantizeLinear(c, s, p) b = Add(a, d)",
            "DequantizeLinear Transpose QuantizeLinear DequantizeLinear Add",
        ),
        (
            "c = Squeeze(ql, front) d = DequantizeLinear<axis = 1>(c, s3, p3) b = Add(a, d)",
            "DequantizeLinear Transpose QuantizeLinear DequantizeLinear Add",
        ),
        (
            (
                "c = Squeeze(ql, front) d = DequantizeLinear(c, s, p) b = Add(a, d) z = Cast<to "
                "= 1>(c)"
            ),
            "Squeeze Cast DequantizeLinear Transpose QuantizeLinear DequantizeLinear Add",
        ),
    ],
)
def test_a_transpose_or_a_squeeze_is_seen_through_a_dequantization(body: str, left: str) -> None:
    assert left_of(IMAGES, f"a = Last(x) {body} y = First(b)") == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (
            "c = Last(qx) z = DequantizeLinear(c, s, p) b = Add(a, z)",
            "DequantizeLinear Add Transpose DequantizeLinear",
        ),
        (
            "c = Transpose<perm = [0, 1, 3, 2]>(qo) z = DequantizeLinear(c, s, p) b = Add(a, z)",
            (
                "DequantizeLinear Transpose QuantizeLinear DequantizeLinear Add Transpose "
                "DequantizeLinear"
            ),
        ),
        (
            (
                "c = Transpose<perm = [0, 1, 3, 2]>(qo) z = DequantizeLinear(c, s, p) k = "
                "Last(x5) b = Sum(a, z, k)"
            ),
            (
                "DequantizeLinear Transpose QuantizeLinear DequantizeLinear Sum Transpose "
                "DequantizeLinear"
            ),
        ),
        (
            "c = Sin(last) d = QuantizeLinear(c, s, p) z = DequantizeLinear(d, s, p) b = Add(a, z)",
            "Sin QuantizeLinear DequantizeLinear Transpose Add Transpose DequantizeLinear",
        ),
        (
            (
                "c = Last(qx) e = Reshape(fed_scale, dims) f = Reshape(fed_zero, dims) d = "
                "DequantizeLinear(c, e, f) b = Add(a, d)"
            ),
            "Reshape Reshape DequantizeLinear Add",
        ),
    ],
)
def test_a_dequantization_whose_order_others_see_is_not_passed(body: str, left: str) -> None:
    assert left_of(IMAGES, f"a = Last(x) {body} y = First(b)") == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (
            (
                "a = Flip(square) d = DequantizeLinear(known, s, p) b = Add(a, d) y = Flip(b) e "
                "= DequantizeLinear(known, s, p) z = Softmax(e)"
            ),
            "DequantizeLinear Softmax DequantizeLinear Add",
        ),
        (
            (
                "a = Turn(cube) d = DequantizeLinear(known, s, p) b = Add(a, d) y = "
                "Transpose<perm = [1, 2, 0]>(b) e = DequantizeLinear(known, s, p) z = Softmax(e)"
            ),
            "DequantizeLinear Softmax DequantizeLinear Add",
        ),
    ],
)
def test_the_elements_of_a_constant_are_folded_back(body: str, left: str) -> None:
    assert left_of(IMAGES, body) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (
            (
                "a = Swap(flat) d = DequantizeLinear<axis = 2, block_size = 2>(wb, sb2, pb2) b = "
                "Add(a, d) y = Swap(b)"
            ),
            "DequantizeLinear Transpose Add Transpose",
        ),
    ],
)
def test_a_constant_quantized_in_blocks_is_no_constant(body: str, left: str) -> None:
    assert left_of(IMAGES, body) == left
