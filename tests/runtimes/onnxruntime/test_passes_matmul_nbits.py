"""What onnxruntime takes into products with a matrix of few bits."""

import pytest
from optimized_graphs import agrees, cases

pytestmark = pytest.mark.measure

GRAPH = """<ir_version: 10, opset_import: ["" : OPSET, "com.microsoft" : 1]>
  agraph (float[2,3,32] x, float[7] row, float[1,7] wide, float[1] one, float[M] open,
    float[2,3,7] full, bool t) => (OUTPUTS)
  <uint8[7,1,16] w, float[7] s, float[7] b, float[7] c, uint8[7,1] z> { BODY }"""
PRODUCT = "com.microsoft.MatMulNBits <K = 32, N = 7, bits = 4, block_size = 32>"


def left_of(body: str, level: str = "extended", opset: int = 21) -> str:
    body = body.replace("PRODUCT", PRODUCT)
    outputs = ", ".join(f"float[] {name}" for name in ("y", "u") if f"{name} =" in body)
    text = GRAPH.replace("OPSET", str(opset)).replace("OUTPUTS", outputs).replace("BODY", body)
    return " ".join(agrees(text, level, opset=opset))


@pytest.mark.parametrize(
    ("body", "left"),
    cases("""
a = PRODUCT(x, w, s) y = Add(a, b) -> MatMulNBits
a = PRODUCT(x, w, s) y = Add(b, a) -> MatMulNBits
a = PRODUCT(x, w, s, z) y = Add(a, b) -> MatMulNBits
a = PRODUCT(x, w, s) y = Add(a, row) -> MatMulNBits
a = PRODUCT(x, w, s) e = Neg(row) y = Add(a, e) -> Neg MatMulNBits
a = PRODUCT(x, w, s) e = Add(a, b) y = Relu(e) -> MatMulNBits Relu
a = PRODUCT(x, w, s) e = Add(a, b) y = Add(e, c) -> MatMulNBits Add
a = PRODUCT(x, w, s, z, , c) y = Add(a, b) -> MatMulNBits Add
a = PRODUCT(x, w, s) y = Add(a, wide) -> MatMulNBits Add
a = PRODUCT(x, w, s) y = Add(a, one) -> MatMulNBits Add
a = PRODUCT(x, w, s) y = Add(a, open) -> MatMulNBits Add
a = PRODUCT(x, w, s) y = Add(a, full) -> MatMulNBits Add
a = PRODUCT(x, w, s) y = Add(a, a) -> MatMulNBits Add
a = PRODUCT(x, w, s) y = Sub(a, b) -> MatMulNBits Sub
u = PRODUCT(x, w, s) y = Add(u, b) -> MatMulNBits Add
a = PRODUCT(x, w, s) u = Neg(a) y = Add(a, b) -> MatMulNBits Add Neg
a = PRODUCT(x, w, s) y = If(t) <then_branch = n () => (float[2,3,7] p) { p = Add(a, b) }, \
  else_branch = e () => (float[2,3,7] q) { q = Neg(a) }> -> MatMulNBits If
y = If(t) <then_branch = n () => (float[2,3,7] p) { a = PRODUCT(x, w, s) p = Add(a, b) }, \
  else_branch = e () => (float[2,3,7] q) { q = Neg(full) }> -> If
"""),
)
def test_a_row_becomes_the_bias(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("level", "opset", "left"),
    [
        ("basic", 21, "MatMulNBits Add"),
        ("all", 21, "MatMulNBits"),
        ("all", 13, "MatMulNBits"),
        ("all", 7, "MatMulNBits"),
    ],
)
def test_from_the_extended_level_on(level: str, opset: int, left: str) -> None:
    assert left_of("a = PRODUCT(x, w, s) y = Add(a, b)", level, opset) == left
