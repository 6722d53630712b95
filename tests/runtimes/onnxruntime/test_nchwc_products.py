"""Products and activations of values on blocks of channels."""

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
CONV = "a = Conv(x, w)"
POOL = "c = MaxPool<kernel_shape = [1, 1]>(x)"
GATE = "c = HardSigmoid<alpha = 0.16666667, beta = 0.5>(a)"


def left_of(body: str, opset: int = 21) -> str:
    """What is left of the nodes; their order varies in onnxruntime from process to process."""
    outputs = "y, z" if re.search(r"\bz( =|, )", body) else "y"
    text = IMAGES.format(outputs=outputs, body=body)
    return " ".join(agrees(text, opset=opset, has_order=False))


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("y = Mul(c, scale)", "ReorderInput MaxPool Conv ReorderOutput"),
        ("y = Mul(scale, c)", "ReorderInput MaxPool Conv ReorderOutput"),
        ("y = Mul(c, scale3)", "ReorderInput MaxPool Conv ReorderOutput"),
        ("y = Mul(c, one)", "ReorderInput MaxPool ReorderOutput Mul"),
        ("y = Mul(c, ones)", "ReorderInput MaxPool ReorderOutput Mul"),
        ("y = Mul(c, rows)", "ReorderInput MaxPool ReorderOutput Mul"),
        ("y = Mul(c, factors)", "ReorderInput MaxPool ReorderOutput Mul"),
        ("d = Abs(factors) y = Mul(c, d)", "ReorderInput MaxPool ReorderOutput Abs Mul"),
        (
            "a = Conv(x, w17) d = Relu(a) y = Mul(d, scale17)",
            "ReorderInput Conv Conv ReorderOutput MaxPool",
        ),
        ("a = Conv(x, w) y = Mul(a, c)", "ReorderInput MaxPool Conv Mul ReorderOutput"),
    ],
)
def test_a_product_with_a_factor_per_channel_becomes_a_convolution(body: str, left: str) -> None:
    assert left_of(f"{POOL} {body}") == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("d = Mul(a, c) y = Conv(d, w2)", "ReorderInput Conv Conv ReorderOutput"),
        ("d = Mul(c, a) y = Softmax(d)", "ReorderInput Conv ReorderOutput Softmax"),
        ("y = Mul(a, c)", "ReorderInput Conv HardSigmoid Mul ReorderOutput"),
        ("y = Mul(a, c) z = Softmax(y)", "ReorderInput Conv HardSigmoid Mul ReorderOutput Softmax"),
        (
            "d = Mul(a, c) y = Conv(d, w2) z = Conv(c, w2)",
            "ReorderInput Conv HardSigmoid Mul Conv ReorderOutput Conv ReorderOutput",
        ),
        (
            "d = Mul(a, c) y = Conv(d, w2) z = Conv(a, w2)",
            "ReorderInput Conv HardSigmoid Mul Conv ReorderOutput Conv ReorderOutput",
        ),
        (
            "b = Conv(x, w2) d = Mul(b, c) y = Conv(d, w2)",
            "ReorderInput Conv Conv Mul Conv ReorderOutput",
        ),
        ("d = Mul(c, c) y = Conv(d, w2)", "ReorderInput Conv Mul Conv ReorderOutput"),
    ],
)
def test_a_hard_swish_on_a_convolution_becomes_its_activation(body: str, left: str) -> None:
    assert left_of(f"{CONV} {GATE} {body}") == left


@pytest.mark.parametrize(
    ("gate", "left"),
    [
        (
            "c = HardSigmoid<alpha = 0.166667>(a) d = Mul(a, c)",
            "ReorderInput Conv ReorderOutput Softmax",
        ),
        (
            "c = HardSigmoid<alpha = 0.16667>(a) d = Mul(a, c)",
            "ReorderInput Conv HardSigmoid Mul ReorderOutput Softmax",
        ),
        (
            "c = HardSigmoid<alpha = 0.16666667, beta = 0.4>(a) d = Mul(a, c)",
            "ReorderInput Conv HardSigmoid Mul ReorderOutput Softmax",
        ),
        (
            "c = HardSigmoid(a) d = Mul(a, c)",
            "ReorderInput Conv HardSigmoid Mul ReorderOutput Softmax",
        ),
        (
            "b = Relu(a) c = HardSigmoid<alpha = 0.16666667>(b) d = Mul(b, c)",
            "ReorderInput Conv HardSigmoid Mul ReorderOutput Softmax",
        ),
        (
            (
                "b = MaxPool<kernel_shape = [1, 1]>(a) c = HardSigmoid<alpha = 0.16666667>(b) d "
                "= Mul(b, c)"
            ),
            "ReorderInput Conv MaxPool HardSigmoid Mul ReorderOutput Softmax",
        ),
    ],
)
def test_a_gate_of_another_form_stays(gate: str, left: str) -> None:
    assert left_of(f"{CONV} {gate} y = Softmax(d)") == left


@pytest.mark.parametrize(
    ("activation", "left"),
    [
        ("Relu", "ReorderInput Conv Relu ReorderOutput ReorderOutput Softmax"),
        ("Sigmoid", "ReorderInput Conv Sigmoid ReorderOutput ReorderOutput Softmax"),
        ("Tanh", "ReorderInput Conv Tanh ReorderOutput ReorderOutput Softmax"),
        ("HardSigmoid", "ReorderInput Conv HardSigmoid ReorderOutput ReorderOutput Softmax"),
        ("Gelu", "ReorderInput Conv Gelu ReorderOutput ReorderOutput Softmax"),
        ("com.microsoft.Gelu", "ReorderInput Conv Gelu ReorderOutput ReorderOutput Softmax"),
        (
            "com.microsoft.QuickGelu",
            "ReorderInput Conv QuickGelu ReorderOutput ReorderOutput Softmax",
        ),
        ("LeakyRelu", "ReorderInput Conv ReorderOutput Softmax LeakyRelu"),
        ("Clip", "ReorderInput Conv ReorderOutput Softmax Clip"),
        ("Elu", "ReorderInput Conv ReorderOutput Softmax Elu"),
        ("com.microsoft.FastGelu", "ReorderInput Conv ReorderOutput Softmax FastGelu"),
    ],
)
def test_an_activation_works_on_blocks_beside_another_reader(activation: str, left: str) -> None:
    assert left_of(f"{CONV} y = {activation}(a) z = Softmax(a)") == left


@pytest.mark.parametrize(
    ("activation", "left"),
    [
        ("Relu", "ReorderInput MaxPool Conv ReorderOutput"),
        ("Sigmoid", "ReorderInput MaxPool Conv ReorderOutput"),
        ("Tanh", "ReorderInput MaxPool Conv ReorderOutput"),
        ("HardSigmoid<alpha = 0.3, beta = 0.4>", "ReorderInput MaxPool Conv ReorderOutput"),
        ("Gelu", "ReorderInput MaxPool Conv Gelu ReorderOutput"),
        ("LeakyRelu", "ReorderInput MaxPool Conv ReorderOutput LeakyRelu"),
    ],
)
def test_an_activation_goes_into_a_convolution_with_its_sum(activation: str, left: str) -> None:
    assert left_of(f"{CONV} {POOL} d = Add(a, c) y = {activation}(d)") == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (
            "c = MaxPool<kernel_shape = [1, 1]>(x) y = Relu(c)",
            "ReorderInput MaxPool Relu ReorderOutput",
        ),
        ("y = Relu(x)", "Relu"),
    ],
)
def test_an_activation_elsewhere_works_on_blocks_where_there_are_some(body: str, left: str) -> None:
    assert left_of(body) == left
