"""Transposes past QuantizeLinear and DequantizeLinear."""

import pytest
from transposed_graphs import left_of

pytestmark = pytest.mark.measure

IMAGES = """agraph (float[2,3,5,7] x, uint8[2,3,5,7] q, float[r] fed_scale, uint8[r] fed_zero,
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
    assert left_of(IMAGES, f"a = {body} y = First(b)", opset=opset) == left


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
    assert left_of(IMAGES, body) == left
