"""How a Transpose passes elementwise operators, reductions and operators with one axis."""

import pytest
from transposed_graphs import left_of

pytestmark = pytest.mark.measure

IMAGES = """agraph (float[2,3,5,7] x, float[2,3,5,7] x2, bool[2,3,5,7] b, bool[2,3,5,7] b2,
  uint32[2,3,5,7] u, uint32[2,3,5,7] u2, int64 like, int64[2] fed_axes, float[2,4,5,7] even,
  float[2,5,7,11] last, int64[2,3] places, float[7] line, int64 fed_index) => ({outputs})
  <int64[2] axes = {{3, -3}}, int64[0] no_axes = {{}}, int64[2] parts = {{1, 3}}, float[3] bias,
   int64 index = {{1}}, int64[1] indices = {{1}}, float lowest = {{0.0}}>
  {{ {body} }}"""


@pytest.mark.parametrize(
    ("operation", "left"),
    [
        ("Abs(a)", "Abs"),
        ("Acos(a)", "Acos"),
        ("Acosh(a)", "Acosh"),
        ("Asin(a)", "Asin"),
        ("Asinh(a)", "Asinh"),
        ("Atan(a)", "Atan"),
        ("Atanh(a)", "Atanh"),
        ("CastLike(a, like)", "Cast"),
        ("Ceil(a)", "Ceil"),
        ("Celu(a)", "Celu"),
        ("Clip(a)", "Clip"),
        ("Cos(a)", "Cos"),
        ("Cosh(a)", "Cosh"),
        ("Elu(a)", "Elu"),
        ("Erf(a)", "Erf"),
        ("Exp(a)", "Exp"),
        ("Floor(a)", "Floor"),
        ("Gelu(a)", "Gelu"),
        ("HardSigmoid(a)", "HardSigmoid"),
        ("HardSwish(a)", "HardSigmoid Mul"),
        ("Identity(a)", "Identity"),
        ("LeakyRelu(a)", "LeakyRelu"),
        ("Log(a)", "Log"),
        ("Neg(a)", "Neg"),
        ("Reciprocal(a)", "Reciprocal"),
        ("Relu(a)", "Relu"),
        ("Round(a)", "Round"),
        ("Selu(a)", "Selu"),
        ("Shrink(a)", "Shrink"),
        ("Sigmoid(a)", "Sigmoid"),
        ("Sign(a)", "Sign"),
        ("Sin(a)", "Sin"),
        ("Sinh(a)", "Sinh"),
        ("Softplus(a)", "Softplus"),
        ("Softsign(a)", "Softsign"),
        ("Sqrt(a)", "Sqrt"),
        ("Tan(a)", "Tan"),
        ("Tanh(a)", "Tanh"),
        ("ThresholdedRelu(a)", "ThresholdedRelu"),
        ("com.microsoft.Gelu(a)", "Gelu"),
        ("com.microsoft.FastGelu(a)", "FastGelu"),
        ("com.microsoft.QuickGelu(a)", "QuickGelu"),
        ("Cast<to = 7>(a)", "Cast"),
        ("Clip(a, lowest)", "Clip"),
        ("com.microsoft.FastGelu(a, bias)", "Transpose FastGelu Transpose"),
        ("IsNaN(a)", "IsNaN"),
        ("IsInf(a)", "IsInf"),
        ("com.microsoft.BiasGelu(a, bias)", "Transpose BiasGelu Transpose"),
        ("Mish(a)", "Transpose Softplus Tanh Mul Transpose"),
        ("LpNormalization(a)", "Transpose LpNormalization Transpose"),
        ("Dropout(a)", "Identity"),
    ],
)
def test_an_operator_with_one_input_lets_a_transpose_pass(operation: str, left: str) -> None:
    assert left_of(IMAGES, f"a = Last(x) c = {operation} y = First(c)") == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Last(b) c = Not(a) y = First(c)", "Not"),
        ("a = Last(u) c = BitwiseNot(a) y = First(c)", "Transpose BitwiseNot Transpose"),
    ],
)
def test_an_operator_on_bits_lets_a_transpose_pass(body: str, left: str) -> None:
    assert left_of(IMAGES, body) == left


@pytest.mark.parametrize(
    ("given", "operator", "left"),
    [
        ("x", "Add", "Add"),
        ("x", "Div", "Div"),
        ("x", "Equal", "Equal"),
        ("x", "Greater", "Greater"),
        ("x", "GreaterOrEqual", "GreaterOrEqual"),
        ("x", "Less", "Less"),
        ("x", "LessOrEqual", "LessOrEqual"),
        ("x", "Max", "Max"),
        ("x", "Mean", "Mean"),
        ("x", "Min", "Min"),
        ("x", "Mod<fmod=1>", "Mod"),
        ("x", "Mul", "Mul"),
        ("x", "PRelu", "PRelu"),
        ("x", "Pow", "Pow"),
        ("x", "Sub", "Sub"),
        ("x", "Sum", "Sum"),
        ("b", "And", "And"),
        ("b", "Or", "Or"),
        ("b", "Xor", "Xor"),
        ("u", 'BitShift<direction = "LEFT">', "BitShift"),
        ("u", "BitwiseAnd", "Transpose Transpose BitwiseAnd Transpose"),
    ],
)
def test_an_elementwise_operator_lets_transposes_pass(given: str, operator: str, left: str) -> None:
    assert (
        left_of(IMAGES, f"a = Last({given}) c = Last({given}2) d = {operator}(a, c) y = First(d)")
        == left
    )


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Last(b) c = Last(x) d = Last(x2) e = Where(a, c, d) y = First(e)", "Where"),
    ],
)
def test_a_choice_lets_transposes_pass(body: str, left: str) -> None:
    assert left_of(IMAGES, body) == left


@pytest.mark.parametrize(
    ("operator", "keepdims", "left"),
    [
        ("ReduceL1", 0, "ReduceL1"),
        ("ReduceL1", 1, "ReduceL1 Transpose"),
        ("ReduceL2", 0, "ReduceL2"),
        ("ReduceL2", 1, "ReduceL2 Transpose"),
        ("ReduceLogSum", 0, "ReduceLogSum"),
        ("ReduceLogSum", 1, "ReduceLogSum Transpose"),
        ("ReduceLogSumExp", 0, "ReduceLogSumExp"),
        ("ReduceLogSumExp", 1, "ReduceLogSumExp Transpose"),
        ("ReduceMax", 0, "ReduceMax"),
        ("ReduceMax", 1, "ReduceMax Transpose"),
        ("ReduceMean", 0, "ReduceMean"),
        ("ReduceMean", 1, "ReduceMean Transpose"),
        ("ReduceMin", 0, "ReduceMin"),
        ("ReduceMin", 1, "ReduceMin Transpose"),
        ("ReduceProd", 0, "ReduceProd"),
        ("ReduceProd", 1, "ReduceProd Transpose"),
        ("ReduceSum", 0, "ReduceSum"),
        ("ReduceSum", 1, "ReduceSum Transpose"),
        ("ReduceSumSquare", 0, "ReduceSumSquare"),
        ("ReduceSumSquare", 1, "ReduceSumSquare Transpose"),
    ],
)
def test_a_reduction_lets_a_transpose_pass(operator: str, keepdims: int, left: str) -> None:
    assert (
        left_of(IMAGES, f"a = Last(x) y = {operator}<keepdims = {keepdims}>(a, axes)", opset=18)
        == left
    )


@pytest.mark.parametrize(
    ("reduction", "opset", "left"),
    [
        ("ReduceSum<keepdims = 0>(a)", 21, "ReduceSum"),
        ("ReduceSum<keepdims = 1>(a)", 21, "ReduceSum Transpose"),
        ("ReduceMax<keepdims = 0>(a, no_axes)", 21, "ReduceMax"),
        ("ReduceMax<keepdims = 1>(a, no_axes)", 21, "ReduceMax Transpose"),
        ("ReduceMax<keepdims = 0, noop_with_empty_axes = 1>(a)", 21, "Transpose ReduceMax"),
        ("ReduceMax<keepdims = 1, noop_with_empty_axes = 1>(a)", 21, "Transpose ReduceMax"),
        ("ReduceMax<keepdims = 0, axes = [3, -3]>(a)", 12, "ReduceMax"),
        ("ReduceMax<keepdims = 1, axes = [3, -3]>(a)", 12, "ReduceMax Transpose"),
        ("ReduceMax<keepdims = 0>(a)", 12, "ReduceMax"),
        ("ReduceMax<keepdims = 1>(a)", 12, "ReduceMax Transpose"),
        ("ReduceSum(a, fed_axes)", 21, "Transpose ReduceSum"),
    ],
)
def test_a_reduction_of_all_dims_or_none(reduction: str, opset: int, left: str) -> None:
    assert left_of(IMAGES, f"a = Last(x) y = {reduction}", opset=opset) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Last(x) c = ReduceSum(a, fed_axes) y = First(c)", "Transpose ReduceSum Transpose"),
    ],
)
def test_a_reduction_over_axes_that_are_not_known(body: str, left: str) -> None:
    assert left_of(IMAGES, body) == left


@pytest.mark.parametrize(
    ("body", "opset", "left"),
    [
        ("a = Last(x) c = Last(x2) y = Concat<axis = -1>(a, c)", 21, "Concat Transpose"),
        (
            "a = Last(x) c = Concat<axis = 3>(a, last) y = First(c)",
            21,
            "Transpose Concat Transpose",
        ),
        ("a = Last(even) c, d = Split<axis = -1>(a, parts) y = First(c) z = First(d)", 21, "Split"),
        (
            "a = Last(even) c, d = Split<axis = 3, split = [1, 3]>(a) y = First(c) z = First(d)",
            12,
            "Split",
        ),
        ("a = Last(even) c = Split<num_outputs = 1>(a) y = First(c)", 21, "Split"),
    ],
)
def test_a_concatenation_or_a_split_moves_its_axis(body: str, opset: int, left: str) -> None:
    assert left_of(IMAGES, body, opset=opset) == left


@pytest.mark.parametrize(
    ("operator", "axis", "opset", "left"),
    [
        ("Softmax", -1, 12, "Transpose Softmax Transpose"),
        ("Softmax", 1, 12, "Softmax"),
        ("Softmax", -1, 13, "Softmax"),
        ("Softmax", 1, 13, "Softmax"),
        ("LogSoftmax", 3, 21, "LogSoftmax"),
        ("Hardmax", 2, 21, "Hardmax"),
        ("Softmax", 0, 12, "Softmax"),
        ("Softmax", 2, 12, "Transpose Softmax Transpose"),
    ],
)
def test_a_softmax_moves_its_axis(operator: str, axis: int, opset: int, left: str) -> None:
    assert (
        left_of(IMAGES, f"a = Last(x) c = {operator}<axis = {axis}>(a) y = First(c)", opset=opset)
        == left
    )


@pytest.mark.parametrize(
    ("search", "left"),
    [
        ("ArgMax<axis = -1, keepdims = 0>", "ArgMax"),
        ("ArgMax<axis = -1, keepdims = 1>", "ArgMax Transpose"),
        ("ArgMin<axis = 1, keepdims = 0>", "ArgMin Transpose"),
        ("ArgMin", "ArgMin Transpose"),
    ],
)
def test_a_search_for_an_extreme_moves_its_axis(search: str, left: str) -> None:
    assert left_of(IMAGES, f"a = Last(x) y = {search}(a)") == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Last(x) y = Gather<axis = -1>(a, index)", "Gather"),
        ("a = Last(x) c = Gather<axis = 0>(a, index) y = Turn(c)", "Gather"),
        ("a = Last(x) c = Gather<axis = 1>(a, indices) y = First(c)", "Transpose Gather Transpose"),
        ("a = Last(x) y = Gather<axis = 1>(a, fed_index)", "Transpose Gather"),
        ("a = Flip(places) c = Gather(line, a) y = Flip(c)", "Transpose Gather Transpose"),
    ],
)
def test_one_element_along_an_axis_takes_the_axis_away(body: str, left: str) -> None:
    assert left_of(IMAGES, body) == left
