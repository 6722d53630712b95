"""Sums and concatenations of values on blocks of channels."""

import re

import pytest
from optimized_graphs import agrees

pytestmark = pytest.mark.measure

IMAGES = """agraph (float[2,16,7,11] x, float[n,16,h,v] sym, float[n,16,h,u] other,
  float[n,16,h,t] third, float[1,16,1,1] factors) => ({outputs})
  <float[16,16,1,1] w, float[16,16,1,1] w2, float[17,16,1,1] w17, float[16,16,3,3] w3,
   float[1,16,1,1] one_channel, float[1,16,1,1] scale, float[16,1,1] scale3, float[17,1,1] scale17,
   float[1,16,7,1] rows, float[1,1,1] ones, float[1] one>
  {{ {body} }}"""
CONVS = "a = Conv(x, w) b = Conv(x, w2)"


def left_of(body: str, opset: int = 21) -> str:
    """What is left of the nodes; their order varies in onnxruntime from process to process."""
    outputs = "y, z" if re.search(r"\bz( =|, )", body) else "y"
    text = IMAGES.format(outputs=outputs, body=body)
    return " ".join(agrees(text, opset=opset, has_order=False))


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("y = Add(a, b)", "ReorderInput Conv Conv ReorderOutput"),
        ("y = Sum(a, b)", "ReorderInput Conv Conv ReorderOutput"),
        ("c = Add(a, b) y = Relu(c)", "ReorderInput Conv Conv ReorderOutput"),
        (
            "y = Add(a, b) z = MaxPool<kernel_shape = [2, 2]>(a)",
            "ReorderInput Conv Conv ReorderOutput MaxPool ReorderOutput",
        ),
        ("y = Add(a, a)", "ReorderInput Conv Add ReorderOutput Conv"),
        ("c = Relu(a) d = Relu(b) y = Add(c, d)", "ReorderInput Conv Conv Add ReorderOutput"),
        ("y = Sum(a)", "ReorderInput Conv Sum ReorderOutput Conv"),
        ("y = Add(a, x)", "ReorderInput Conv Conv ReorderOutput Add"),
        ("y = Sub(a, b)", "ReorderInput Conv ReorderOutput Conv ReorderOutput Sub"),
        (
            "c = Conv(x, one_channel) y = Add(a, c)",
            "ReorderInput Conv Conv ReorderOutput Conv ReorderOutput Add",
        ),
        (
            "c = MaxPool<kernel_shape = [1, 1]>(x) y = Add(c, scale)",
            "ReorderInput Conv Conv MaxPool ReorderOutput Add",
        ),
        (
            "c = Add(a, b) d = MaxPool<kernel_shape = [1, 1]>(x) y = Add(c, d)",
            "ReorderInput Conv Conv MaxPool Add ReorderOutput",
        ),
        (
            "c = MaxPool<kernel_shape = [1, 1]>(x) y = Sum(a, b, c)",
            "ReorderInput Conv Conv MaxPool Sum ReorderOutput",
        ),
    ],
)
def test_a_sum_of_two_goes_into_a_convolution_that_it_alone_reads(body: str, left: str) -> None:
    assert left_of(f"{CONVS} {body}") == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (
            "a = Conv(sym, w) b = Conv(sym, w2) y = Add(a, b)",
            "ReorderInput Conv Reshape Conv Reshape Add Reshape ReorderOutput",
        ),
        (
            "a = Conv(sym, w) b = Conv(other, w) y = Sum(a, b)",
            "ReorderInput Conv Reshape ReorderInput Conv Reshape Sum Reshape ReorderOutput",
        ),
        (
            "a = Conv(sym, w) b = Conv(other, w) y = Mul(a, b)",
            "ReorderInput Conv ReorderOutput ReorderInput Conv ReorderOutput Mul",
        ),
        (
            "a = Conv(sym, w) b = Conv(other, w) c = Add(a, b) y = Conv(c, w)",
            "ReorderInput Conv Reshape ReorderInput Conv Reshape Add Reshape Conv ReorderOutput",
        ),
        (
            "a = Conv(sym, w) b = Conv(other, w) c = Conv(third, w) d = Add(a, b) y = Add(d, c)",
            (
                "ReorderInput Conv Reshape ReorderInput Conv Reshape ReorderInput Conv Reshape "
                "Add Reshape Reshape Add Reshape ReorderOutput"
            ),
        ),
        (
            "a = Conv(sym, w17) b = Conv(other, w17) y = Add(a, b) z = Add(b, a)",
            (
                "ReorderInput Conv Reshape ReorderInput Conv Reshape Add Reshape ReorderOutput "
                "Reshape Reshape Add Reshape ReorderOutput"
            ),
        ),
        (
            "a = Conv(x, w) b = GlobalAveragePool(a) y = Add(a, b)",
            "ReorderInput Conv GlobalAveragePool Reshape Reshape Add Reshape ReorderOutput",
        ),
        (
            "a = Conv(x, w) b = GlobalAveragePool(a) y = Mul(a, b)",
            "ReorderInput Conv GlobalAveragePool ReorderOutput ReorderOutput Mul",
        ),
    ],
)
def test_a_sum_reshapes_blocks_whose_shapes_may_differ(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("conv", "pool", "left"),
    [
        (
            "pads = [1, 1, 1, 1]",
            "kernel_shape = [3, 3], pads = [1, 1, 1, 1]",
            "ReorderInput Conv MaxPool Conv ReorderOutput",
        ),
        (
            "pads = [1, 1, 1, 1]",
            "kernel_shape = [1, 1]",
            "ReorderInput Conv MaxPool Conv ReorderOutput",
        ),
        (
            "strides = [2, 2], pads = [1, 1, 1, 1]",
            "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]",
            "ReorderInput Conv MaxPool Conv ReorderOutput",
        ),
        (
            "strides = [2, 2], pads = [1, 1, 1, 1]",
            "kernel_shape = [3, 3], pads = [1, 1, 1, 1]",
            "ReorderInput Conv Conv Reshape MaxPool Reshape Add Reshape ReorderOutput",
        ),
        (
            "strides = [3, 3], pads = [1, 1, 1, 1]",
            "kernel_shape = [3, 3], strides = [3, 3], pads = [1, 1, 1, 1]",
            "ReorderInput Conv Conv Reshape MaxPool Reshape Add Reshape ReorderOutput",
        ),
        (
            "strides = [1, 1]",
            "kernel_shape = [3, 3]",
            "ReorderInput Conv Conv Reshape MaxPool Reshape Add Reshape ReorderOutput",
        ),
        (
            "dilations = [2, 2], pads = [2, 2, 2, 2]",
            "kernel_shape = [1, 1]",
            "ReorderInput Conv Conv Reshape MaxPool Reshape Add Reshape ReorderOutput",
        ),
        (
            'auto_pad = "SAME_UPPER"',
            'kernel_shape = [3, 3], auto_pad = "SAME_LOWER"',
            "ReorderInput Conv MaxPool Conv ReorderOutput",
        ),
        (
            'auto_pad = "SAME_LOWER"',
            "kernel_shape = [1, 1]",
            "ReorderInput Conv MaxPool Conv ReorderOutput",
        ),
        (
            'auto_pad = "VALID"',
            "kernel_shape = [1, 1]",
            "ReorderInput Conv Conv Reshape MaxPool Reshape Add Reshape ReorderOutput",
        ),
        (
            "pads = [1, 1, 1, 1]",
            'kernel_shape = [1, 1], auto_pad = "VALID"',
            "ReorderInput Conv MaxPool Conv ReorderOutput",
        ),
        (
            "pads = [1, 1, 1, 1]",
            "kernel_shape = [2, 3], pads = [1, 1, 1, 1]",
            "ReorderInput Conv Conv Reshape MaxPool Reshape Add Reshape ReorderOutput",
        ),
    ],
)
def test_windows_keep_halve_or_lose_a_dim(conv: str, pool: str, left: str) -> None:
    assert (
        left_of(f"a = Conv(sym, w) b = Conv<{conv}>(a, w3) c = MaxPool<{pool}>(a) y = Add(c, b)")
        == left
    )


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("y = Concat<axis = 1>(a, b)", "ReorderInput Conv Conv Concat ReorderOutput"),
        (
            "y = Concat<axis = -3>(a, b)",
            "ReorderInput Conv ReorderOutput Conv ReorderOutput Concat",
        ),
        ("y = Concat<axis = 2>(a, b)", "ReorderInput Conv ReorderOutput Conv ReorderOutput Concat"),
        ("y = Concat<axis = 1>(a, x)", "ReorderInput Conv Conv ReorderOutput Concat"),
        ("y = Concat<axis = 1>(a, a)", "ReorderInput Conv Concat ReorderOutput Conv"),
        (
            "c = Concat<axis = 1>(a, b) d = Concat<axis = 1>(b, a) y = Add(c, d)",
            "ReorderInput Conv Conv Concat Concat Add ReorderOutput",
        ),
        (
            "c = Conv(x, w17) y = Concat<axis = 1>(a, c)",
            "ReorderInput Conv Conv ReorderOutput Conv ReorderOutput Concat",
        ),
    ],
)
def test_a_concatenation_takes_whole_blocks_of_channels(body: str, left: str) -> None:
    assert left_of(f"{CONVS} {body}") == left
