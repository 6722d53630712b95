"""Transposes in QDQ models, compared with onnxruntime."""

import pytest
from runtimes.onnxruntime.optimized_graphs import cases
from runtimes.onnxruntime.transposed_graphs import optimized_ops

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
    ("constant", "expected"),
    cases("""
(w4, s, p) -> DequantizeLinear Add
(w2, s, p) -> DequantizeLinear Add
(w1, s, p) -> DequantizeLinear Add
(w0, s, p) -> DequantizeLinear Add
(w1111, s, p) -> DequantizeLinear Add
<axis = -1>(w3, s3, p3) -> DequantizeLinear Add
<axis = 1>(w2, s3, p3) -> DequantizeLinear Add
(q2, s, p) -> DequantizeLinear Unsqueeze QuantizeLinear DequantizeLinear Transpose QuantizeLinear\
 DequantizeLinear Add
<axis = 1>(q2, s3, p3) -> DequantizeLinear Unsqueeze QuantizeLinear DequantizeLinear Transpose\
 QuantizeLinear DequantizeLinear Add
(q4, s, p) -> DequantizeLinear Transpose Add Transpose
"""),
)
def test_dequantized_constants_are_unsqueezed_and_transposed(constant: str, expected: str) -> None:
    assert (
        optimized_ops(
            IMAGES, f"a = Last(x) d = DequantizeLinear{constant} b = Add(a, d) y = First(b)"
        )
        == expected
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
y = First(b) e = DequantizeLinear(w2, s, p) z = Softmax(e) -> DequantizeLinear Softmax\
 DequantizeLinear Add
y = First(b) z = Softmax(d) -> DequantizeLinear Softmax DequantizeLinear Add
y = First(b) z = Identity(d) -> DequantizeLinear DequantizeLinear Add
y = First(b) z = Identity(w2) -> DequantizeLinear Add
y = First(b) e = DequantizeLinear(w2, s, p) f = Sub(a, e) z = First(f) -> DequantizeLinear Sub\
 DequantizeLinear Add
y = First(b) e = DequantizeLinear(w2, s, p) f = Where(choice, a, e) z = First(f) ->\
 DequantizeLinear Transpose Where Transpose DequantizeLinear Add
"""),
)
def test_constants_that_are_dequantized_twice(body: str, expected: str) -> None:
    assert (
        optimized_ops(IMAGES, f"a = Last(x) d = DequantizeLinear(w2, s, p) b = Add(a, d) {body}")
        == expected
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
c = Last(qx) d = DequantizeLinear(c, s, p) b = Add(a, d) -> DequantizeLinear Add
c = Transpose<perm = [0, 1, 3, 2]>(qo) d = DequantizeLinear(c, s, p) b = Add(a, d) ->\
 DequantizeLinear Transpose QuantizeLinear DequantizeLinear Add
c = Last(qx) d = DequantizeLinear(c, s, p) b = Add(a, d) z = Cast<to = 1>(c) -> Transpose Cast\
 DequantizeLinear Add
c = Squeeze(ql, front) d = DequantizeLinear(c, s, p) b = Add(a, d) -> DequantizeLinear Transpose\
 QuantizeLinear DequantizeLinear Add
c = Squeeze(ql, front) d = DequantizeLinear<axis = 1>(c, s3, p3) b = Add(a, d) -> DequantizeLinear\
 Transpose QuantizeLinear DequantizeLinear Add
c = Squeeze(ql, front) d = DequantizeLinear(c, s, p) b = Add(a, d) z = Cast<to = 1>(c) -> Squeeze\
 Cast DequantizeLinear Transpose QuantizeLinear DequantizeLinear Add
"""),
)
def test_a_transpose_or_squeeze_before_dequantize_linear_cancels(body: str, expected: str) -> None:
    assert optimized_ops(IMAGES, f"a = Last(x) {body} y = First(b)") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
c = Last(qx) z = DequantizeLinear(c, s, p) b = Add(a, z) -> DequantizeLinear Add Transpose\
 DequantizeLinear
c = Transpose<perm = [0, 1, 3, 2]>(qo) z = DequantizeLinear(c, s, p) b = Add(a, z) ->\
 DequantizeLinear Transpose QuantizeLinear DequantizeLinear Add Transpose DequantizeLinear
c = Transpose<perm = [0, 1, 3, 2]>(qo) z = DequantizeLinear(c, s, p) k = Last(x5) b = Sum(a, z, k)\
 -> DequantizeLinear Transpose QuantizeLinear DequantizeLinear Sum Transpose DequantizeLinear
c = Sin(last) d = QuantizeLinear(c, s, p) z = DequantizeLinear(d, s, p) b = Add(a, z) -> Sin\
 QuantizeLinear DequantizeLinear Transpose Add Transpose DequantizeLinear
c = Last(qx) e = Reshape(fed_scale, dims) f = Reshape(fed_zero, dims) d = DequantizeLinear(c, e,\
 f) b = Add(a, d) -> Reshape Reshape DequantizeLinear Add
"""),
)
def test_dequantize_linear_with_other_uses_is_not_passed(body: str, expected: str) -> None:
    assert optimized_ops(IMAGES, f"a = Last(x) {body} y = First(b)") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Flip(square) d = DequantizeLinear(known, s, p) b = Add(a, d) y = Flip(b) e =\
 DequantizeLinear(known, s, p) z = Softmax(e) -> DequantizeLinear Softmax DequantizeLinear Add
a = Turn(cube) d = DequantizeLinear(known, s, p) b = Add(a, d) y = Transpose<perm = [1, 2, 0]>(b)\
 e = DequantizeLinear(known, s, p) z = Softmax(e) -> DequantizeLinear Softmax DequantizeLinear Add
"""),
)
def test_constants_for_other_readers_are_folded(body: str, expected: str) -> None:
    assert optimized_ops(IMAGES, body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Swap(flat) d = DequantizeLinear<axis = 2, block_size = 2>(wb, sb2, pb2) b = Add(a, d) y =\
 Swap(b) -> DequantizeLinear Transpose Add Transpose
"""),
)
def test_blocked_quantized_constants_are_not_transposed(body: str, expected: str) -> None:
    assert optimized_ops(IMAGES, body) == expected


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
    ("body", "opset", "expected"),
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
def test_quantize_and_dequantize_linear(body: str, opset: int, expected: str) -> None:
    assert optimized_ops(SCALED_IMAGES, f"a = {body} y = First(b)", opset=opset) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Swap(blocks) b = DequantizeLinear<axis = 1, block_size = 2>(a, sb, pb) y = Swap(b) ->\
 DequantizeLinear
d = DequantizeLinear<axis = 2, block_size = 2>(blocks, sb2, pb2) a = Swap(d) y = Softmax(a) ->\
 DequantizeLinear Transpose Softmax
b = Softmax(blocks_too) a = Swap(b) c = QuantizeLinear<axis = 1, block_size = 2>(a, sb, pb) d =\
 DequantizeLinear<axis = 1, block_size = 2>(c, sb, pb) y = Softmax(d) -> Softmax Transpose\
 QuantizeLinear DequantizeLinear Softmax
"""),
)
def test_blocked_quantization_is_not_passed(body: str, expected: str) -> None:
    assert optimized_ops(SCALED_IMAGES, body) == expected


UNIT_IMAGES = """agraph (float[2,3,5,7] x, uint8[2,3,5,7] q, float scale, float scale2, uint8 zero,
  uint8 zero2) => ({outputs})
  <float s = {{0.5}}, uint8 p = {{3}}, float s2 = {{0.6}}, uint8 p2 = {{4}},
   float s_too = {{0.5}}, uint8 p_too = {{3}}, int8 p8 = {{3}}, uint8 nought = {{0}},
   float[1] s1 = {{0.5}}, uint8[1] p1 = {{3}}, float[3] s3 = {{0.5, 0.3, 0.2}},
   uint8[3] p3 = {{3, 1, 2}}>
  {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
d = DequantizeLinear(q, s, p) a = Last(d) y = Softmax(a) -> DequantizeLinear Transpose\
 QuantizeLinear DequantizeLinear Softmax
d = DequantizeLinear(q, s, p) y = Last(d) -> DequantizeLinear Transpose QuantizeLinear\
 DequantizeLinear
z = DequantizeLinear(q, s, p) y = Last(z) -> DequantizeLinear Transpose QuantizeLinear\
 DequantizeLinear DequantizeLinear
z = DequantizeLinear(q, s, p) a = Last(z) b = First(a) y = QuantizeLinear(b, s, p) ->\
 DequantizeLinear QuantizeLinear DequantizeLinear
d = DequantizeLinear<axis = 1>(q, s3, p3) a = Last(d) y = Softmax(a) -> DequantizeLinear Transpose\
 QuantizeLinear DequantizeLinear Softmax
d = DequantizeLinear<axis = -3>(q, s3, p3) y = Transpose<perm = [1, 2, 3, 0]>(d) ->\
 DequantizeLinear Transpose QuantizeLinear DequantizeLinear
b = Softmax(x) a = Last(b) c = QuantizeLinear(a, s, p) d = DequantizeLinear(c, s, p) y =\
 Softmax(d) -> Softmax QuantizeLinear DequantizeLinear Transpose QuantizeLinear DequantizeLinear\
 Softmax
a = Last(x) c = QuantizeLinear(a, s, p) d = DequantizeLinear(c, s, p) y = Softmax(d) ->\
 QuantizeLinear DequantizeLinear Transpose QuantizeLinear DequantizeLinear Softmax
z = Softmax(x) a = Last(z) c = QuantizeLinear(a, s, p) d = DequantizeLinear(c, s, p) y =\
 Softmax(d) -> Softmax QuantizeLinear DequantizeLinear DequantizeLinear Transpose QuantizeLinear\
 DequantizeLinear Softmax
b = Softmax(x) z = Last(b) c = QuantizeLinear(z, s, p) d = DequantizeLinear(c, s, p) y =\
 Softmax(d) -> Softmax Transpose QuantizeLinear DequantizeLinear Softmax
b = Softmax(x) a = Last(b) c = QuantizeLinear<axis = 3>(a, s3, p3) d = DequantizeLinear<axis =\
 3>(c, s3, p3) y = Softmax(d) -> Softmax QuantizeLinear DequantizeLinear Transpose QuantizeLinear\
 DequantizeLinear Softmax
b = Softmax(x) a = Last(b) c = QuantizeLinear(a, s, p) d = DequantizeLinear(c, s, p) y =\
 Softmax(d) z = Sin(b) -> Softmax Sin Transpose QuantizeLinear DequantizeLinear Softmax
"""),
)
def test_broken_qdq_units_are_repaired(body: str, expected: str) -> None:
    assert optimized_ops(UNIT_IMAGES, body, opset=19) == expected


@pytest.mark.parametrize(
    ("quantized", "body", "expected"),
    cases("""
q, s, p -> c = QuantizeLinear(b, s, p) e = DequantizeLinear(c, s, p) y = Softmax(e) ->\
 DequantizeLinear Softmax
q, s, p -> c = QuantizeLinear(b, s_too, p_too) e = DequantizeLinear(c, s_too, p_too) y =\
 Softmax(e) -> DequantizeLinear Softmax
q, s, p -> c = QuantizeLinear(b, s2, p) e = DequantizeLinear(c, s2, p) y = Softmax(e) ->\
 DequantizeLinear QuantizeLinear DequantizeLinear Softmax
q, s, p -> c = QuantizeLinear(b, s, p2) e = DequantizeLinear(c, s, p2) y = Softmax(e) ->\
 DequantizeLinear QuantizeLinear DequantizeLinear Softmax
q, s, p -> c = QuantizeLinear(b, s, p8) e = DequantizeLinear(c, s, p8) y = Softmax(e) ->\
 DequantizeLinear QuantizeLinear DequantizeLinear Softmax
q, s, p -> c = QuantizeLinear(b, s1, p1) e = DequantizeLinear(c, s1, p1) y = Softmax(e) ->\
 DequantizeLinear Softmax
q, s -> c = QuantizeLinear(b, s, nought) e = DequantizeLinear(c, s, nought) y = Softmax(e) ->\
 DequantizeLinear Softmax
q, s -> c = QuantizeLinear(b, s, p) e = DequantizeLinear(c, s, p) y = Softmax(e) ->\
 DequantizeLinear QuantizeLinear DequantizeLinear Softmax
q, s, nought -> c = QuantizeLinear(b, s) e = DequantizeLinear(c, s) y = Softmax(e) ->\
 DequantizeLinear Softmax
q, scale, p -> c = QuantizeLinear(b, scale2, p) e = DequantizeLinear(c, scale2, p) y = Softmax(e)\
 -> DequantizeLinear QuantizeLinear DequantizeLinear Softmax
q, s, zero -> c = QuantizeLinear(b, s, zero2) e = DequantizeLinear(c, s, zero2) y = Softmax(e) ->\
 DequantizeLinear QuantizeLinear DequantizeLinear Softmax
q, s, p -> y = QuantizeLinear(b, s, p) -> DequantizeLinear QuantizeLinear
q, s, p -> c = QuantizeLinear(b, s, p) y = Add(c, c) -> Add
q, s, p -> c = QuantizeLinear(b, s, p) e = DequantizeLinear(c, s, p) y = Softmax(e) z = Cast<to =\
 1>(c) -> DequantizeLinear QuantizeLinear Cast DequantizeLinear Softmax
q, s, p -> c = QuantizeLinear(b, s, p) e = DequantizeLinear(c, s, p) y = Softmax(e) z = Softmax(d)\
 -> DequantizeLinear Softmax DequantizeLinear Softmax
"""),
)
def test_pairs_without_an_operator_between_are_removed(
    quantized: str, body: str, expected: str
) -> None:
    assert (
        optimized_ops(
            UNIT_IMAGES,
            f"d = DequantizeLinear({quantized}) a = Last(d) b = First(a) {body}",
        )
        == expected
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
d = DequantizeLinear(c, s, p) a = Last(d) e = First(a) y = QuantizeLinear(e, s, p) -> Sin\
 QuantizeLinear
d = DequantizeLinear(c, s, p) a = Last(d) e = First(a) y = QuantizeLinear(e, s, p) z = Cast<to =\
 1>(c) -> Sin QuantizeLinear Cast DequantizeLinear QuantizeLinear
"""),
)
def test_a_pair_before_a_graph_output_is_removed_if_a_node_produces_its_input(
    body: str, expected: str
) -> None:
    assert optimized_ops(UNIT_IMAGES, f"b = Sin(x) c = QuantizeLinear(b, s, p) {body}") == expected
