"""Transposes in QDQ networks, beside onnxruntime."""

import pytest
from runtimes.onnxruntime.transposed_graphs import left_of

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


SCALED_IMAGES = """agraph (float[2,3,5,7] x, uint8[2,3,5,7] q, float[r] fed_scale,
  uint8[r] fed_zero,
  int64[k] dims, uint8[2,3,4] blocks, float[2,3,4] blocks_too) => ({outputs})
  <float s = {{0.5}}, uint8 p = {{3}}, float[1] s1 = {{0.5}}, uint8[1] p1 = {{3}},
   float[3] s3 = {{0.5, 0.3, 0.2}}, uint8[3] p3 = {{3, 1, 2}},
   float[5] s5 = {{0.5, 0.3, 0.2, 0.1, 0.6}}, uint8[5] p5 = {{3, 1, 2, 4, 5}},
   float[2,2,3] sb = {{1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2}}, uint8[2,2,3] pb, float[2,3,2] sb2,
   uint8[2,3,2] pb2>
  {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "opset", "left"),
    [
        ("Last(x) b = QuantizeLinear(a, s, p)", 10, "QuantizeLinear"),
        ("Last(x) b = QuantizeLinear(a, s, p)", 12, "QuantizeLinear"),
        ("Last(x) b = QuantizeLinear(a, s, p)", 21, "QuantizeLinear"),
        ("Last(q) b = DequantizeLinear(a, s, p)", 21, "DequantizeLinear"),
        ("Last(x) b = QuantizeLinear<axis = -1>(a, s3, p3)", 21, "QuantizeLinear"),
        ("Last(x) b = QuantizeLinear(a, s5, p5)", 21, "QuantizeLinear"),
        ("Last(x) b = QuantizeLinear(a, s1, p1)", 21, "QuantizeLinear"),
        ("Last(x) b = QuantizeLinear<axis = 3>(a, s1, p1)", 21, "QuantizeLinear"),
        ("Last(x) b = QuantizeLinear(a, fed_scale, fed_zero)", 21, "QuantizeLinear"),
        (
            (
                "Last(x) c = Reshape(fed_scale, dims) d = Reshape(fed_zero, dims) b = "
                "QuantizeLinear(a, c, d)"
            ),
            21,
            "Reshape Reshape QuantizeLinear",
        ),
        ("Last(x) b = com.microsoft.QuantizeLinear(a, s, p)", 21, "QuantizeLinear"),
        ("Last(x) b = com.microsoft.QuantizeLinear(a, s1, p1)", 21, "QuantizeLinear"),
        ("Last(x) b = com.microsoft.QuantizeLinear(a, s5, p5)", 21, "QuantizeLinear"),
    ],
)
def test_a_quantization_lets_a_transpose_pass(body: str, opset: int, left: str) -> None:
    assert left_of(SCALED_IMAGES, f"a = {body} y = First(b)", opset=opset) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (
            (
                "a = Swap(blocks) b = DequantizeLinear<axis = 1, block_size = 2>(a, sb, pb) y = "
                "Swap(b)"
            ),
            "DequantizeLinear",
        ),
        (
            (
                "d = DequantizeLinear<axis = 2, block_size = 2>(blocks, sb2, pb2) a = Swap(d) y "
                "= Softmax(a)"
            ),
            "DequantizeLinear Transpose Softmax",
        ),
        (
            (
                "b = Softmax(blocks_too) a = Swap(b) c = QuantizeLinear<axis = 1, block_size = "
                "2>(a, sb, pb) d = DequantizeLinear<axis = 1, block_size = 2>(c, sb, pb) y = "
                "Softmax(d)"
            ),
            "Softmax Transpose QuantizeLinear DequantizeLinear Softmax",
        ),
    ],
)
def test_a_quantization_in_blocks_lets_no_transpose_pass(body: str, left: str) -> None:
    assert left_of(SCALED_IMAGES, body) == left


UNIT_IMAGES = """agraph (float[2,3,5,7] x, uint8[2,3,5,7] q, float scale, float scale2, uint8 zero,
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
    assert left_of(UNIT_IMAGES, body, opset=opset) == left


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
        left_of(
            UNIT_IMAGES,
            f"d = DequantizeLinear({quantized}) a = Last(d) b = First(a) {body}",
        )
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
    assert left_of(UNIT_IMAGES, f"b = Sin(x) c = QuantizeLinear(b, s, p) {body}") == left
