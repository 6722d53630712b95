"""Units of quantized networks that a moved Transpose left open, and pairs that it left empty."""

import pytest
from transposed_graphs import left_of

pytestmark = pytest.mark.measure

IMAGES = """agraph (float[2,3,5,7] x, uint8[2,3,5,7] q, float scale, float scale2, uint8 zero,
  uint8 zero2) => ({outputs})
  <float s = {{0.5}}, uint8 p = {{3}}, float s2 = {{0.6}}, uint8 p2 = {{4}},
   float s_too = {{0.5}}, uint8 p_too = {{3}}, int8 p8 = {{3}}, uint8 nought = {{0}},
   float[1] s1 = {{0.5}}, uint8[1] p1 = {{3}}, float[3] s3 = {{0.5, 0.3, 0.2}},
   uint8[3] p3 = {{3, 1, 2}}>
  {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "opset", "left"),
    [
        (
            "d = DequantizeLinear(q, s, p) a = Last(d) y = Softmax(a)",
            19,
            "DequantizeLinear Transpose QuantizeLinear DequantizeLinear Softmax",
        ),
        (
            "d = DequantizeLinear(q, s, p) y = Last(d)",
            19,
            "DequantizeLinear Transpose QuantizeLinear DequantizeLinear",
        ),
        (
            "z = DequantizeLinear(q, s, p) y = Last(z)",
            19,
            "DequantizeLinear Transpose QuantizeLinear DequantizeLinear DequantizeLinear",
        ),
        (
            "z = DequantizeLinear(q, s, p) a = Last(z) b = First(a) y = QuantizeLinear(b, s, p)",
            19,
            "DequantizeLinear QuantizeLinear DequantizeLinear",
        ),
        (
            "d = DequantizeLinear<axis = 1>(q, s3, p3) a = Last(d) y = Softmax(a)",
            19,
            "DequantizeLinear Transpose QuantizeLinear DequantizeLinear Softmax",
        ),
        (
            "d = DequantizeLinear<axis = -3>(q, s3, p3) y = Transpose<perm = [1, 2, 3, 0]>(d)",
            19,
            "DequantizeLinear Transpose QuantizeLinear DequantizeLinear",
        ),
        (
            (
                "b = Softmax(x) a = Last(b) c = QuantizeLinear(a, s, p) d = DequantizeLinear(c, "
                "s, p) y = Softmax(d)"
            ),
            19,
            (
                "Softmax QuantizeLinear DequantizeLinear Transpose QuantizeLinear "
                "DequantizeLinear Softmax"
            ),
        ),
        (
            "a = Last(x) c = QuantizeLinear(a, s, p) d = DequantizeLinear(c, s, p) y = Softmax(d)",
            19,
            "QuantizeLinear DequantizeLinear Transpose QuantizeLinear DequantizeLinear Softmax",
        ),
        (
            (
                "z = Softmax(x) a = Last(z) c = QuantizeLinear(a, s, p) d = DequantizeLinear(c, "
                "s, p) y = Softmax(d)"
            ),
            19,
            (
                "Softmax QuantizeLinear DequantizeLinear DequantizeLinear Transpose "
                "QuantizeLinear DequantizeLinear Softmax"
            ),
        ),
        (
            (
                "b = Softmax(x) z = Last(b) c = QuantizeLinear(z, s, p) d = DequantizeLinear(c, "
                "s, p) y = Softmax(d)"
            ),
            19,
            "Softmax Transpose QuantizeLinear DequantizeLinear Softmax",
        ),
        (
            (
                "b = Softmax(x) a = Last(b) c = QuantizeLinear<axis = 3>(a, s3, p3) d = "
                "DequantizeLinear<axis = 3>(c, s3, p3) y = Softmax(d)"
            ),
            19,
            (
                "Softmax QuantizeLinear DequantizeLinear Transpose QuantizeLinear "
                "DequantizeLinear Softmax"
            ),
        ),
        (
            (
                "b = Softmax(x) a = Last(b) c = QuantizeLinear(a, s, p) d = DequantizeLinear(c, "
                "s, p) y = Softmax(d) z = Sin(b)"
            ),
            19,
            "Softmax Sin Transpose QuantizeLinear DequantizeLinear Softmax",
        ),
    ],
)
def test_a_unit_that_a_transpose_left_open_is_closed(body: str, opset: int, left: str) -> None:
    assert left_of(IMAGES, body, opset=opset) == left


@pytest.mark.parametrize(
    ("quantized", "body", "left"),
    [
        (
            "q, s, p",
            "c = QuantizeLinear(b, s, p) e = DequantizeLinear(c, s, p) y = Softmax(e)",
            "DequantizeLinear Softmax",
        ),
        (
            "q, s, p",
            (
                "c = QuantizeLinear(b, s_too, p_too) e = DequantizeLinear(c, s_too, p_too) y = "
                "Softmax(e)"
            ),
            "DequantizeLinear Softmax",
        ),
        (
            "q, s, p",
            "c = QuantizeLinear(b, s2, p) e = DequantizeLinear(c, s2, p) y = Softmax(e)",
            "DequantizeLinear QuantizeLinear DequantizeLinear Softmax",
        ),
        (
            "q, s, p",
            "c = QuantizeLinear(b, s, p2) e = DequantizeLinear(c, s, p2) y = Softmax(e)",
            "DequantizeLinear QuantizeLinear DequantizeLinear Softmax",
        ),
        (
            "q, s, p",
            "c = QuantizeLinear(b, s, p8) e = DequantizeLinear(c, s, p8) y = Softmax(e)",
            "DequantizeLinear QuantizeLinear DequantizeLinear Softmax",
        ),
        (
            "q, s, p",
            "c = QuantizeLinear(b, s1, p1) e = DequantizeLinear(c, s1, p1) y = Softmax(e)",
            "DequantizeLinear Softmax",
        ),
        (
            "q, s",
            "c = QuantizeLinear(b, s, nought) e = DequantizeLinear(c, s, nought) y = Softmax(e)",
            "DequantizeLinear Softmax",
        ),
        (
            "q, s",
            "c = QuantizeLinear(b, s, p) e = DequantizeLinear(c, s, p) y = Softmax(e)",
            "DequantizeLinear QuantizeLinear DequantizeLinear Softmax",
        ),
        (
            "q, s, nought",
            "c = QuantizeLinear(b, s) e = DequantizeLinear(c, s) y = Softmax(e)",
            "DequantizeLinear Softmax",
        ),
        (
            "q, scale, p",
            "c = QuantizeLinear(b, scale2, p) e = DequantizeLinear(c, scale2, p) y = Softmax(e)",
            "DequantizeLinear QuantizeLinear DequantizeLinear Softmax",
        ),
        (
            "q, s, zero",
            "c = QuantizeLinear(b, s, zero2) e = DequantizeLinear(c, s, zero2) y = Softmax(e)",
            "DequantizeLinear QuantizeLinear DequantizeLinear Softmax",
        ),
        ("q, s, p", "y = QuantizeLinear(b, s, p)", "DequantizeLinear QuantizeLinear"),
        ("q, s, p", "c = QuantizeLinear(b, s, p) y = Add(c, c)", "Add"),
        (
            "q, s, p",
            (
                "c = QuantizeLinear(b, s, p) e = DequantizeLinear(c, s, p) y = Softmax(e) z = "
                "Cast<to = 1>(c)"
            ),
            "DequantizeLinear QuantizeLinear Cast DequantizeLinear Softmax",
        ),
        (
            "q, s, p",
            (
                "c = QuantizeLinear(b, s, p) e = DequantizeLinear(c, s, p) y = Softmax(e) z = "
                "Softmax(d)"
            ),
            "DequantizeLinear Softmax DequantizeLinear Softmax",
        ),
    ],
)
def test_a_pair_with_nothing_between_goes(quantized: str, body: str, left: str) -> None:
    assert (
        left_of(IMAGES, f"d = DequantizeLinear({quantized}) a = Last(d) b = First(a) {body}")
        == left
    )


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (
            "d = DequantizeLinear(c, s, p) a = Last(d) e = First(a) y = QuantizeLinear(e, s, p)",
            "Sin QuantizeLinear",
        ),
        (
            (
                "d = DequantizeLinear(c, s, p) a = Last(d) e = First(a) y = QuantizeLinear(e, s, "
                "p) z = Cast<to = 1>(c)"
            ),
            "Sin QuantizeLinear Cast DequantizeLinear QuantizeLinear",
        ),
    ],
)
def test_a_pair_at_a_graph_output_goes_where_a_node_makes_its_input(body: str, left: str) -> None:
    assert left_of(IMAGES, f"b = Sin(x) c = QuantizeLinear(b, s, p) {body}") == left
