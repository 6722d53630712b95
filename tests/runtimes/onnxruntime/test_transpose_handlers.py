"""How Transposes are pushed past each operator, compared with onnxruntime."""

from functools import partial

import pytest
from runtimes.onnxruntime.optimized_graphs import cases
from runtimes.onnxruntime.transposed_graphs import optimized_ops

pytestmark = pytest.mark.measure

IMAGES = """agraph (float[2,3,5,7] x, float[2,3,5,7] x2, bool[2,3,5,7] b, bool[2,3,5,7] b2,
  uint32[2,3,5,7] u, uint32[2,3,5,7] u2, int64 like, int64[2] fed_axes, float[2,4,5,7] even,
  float[2,5,7,11] last, int64[2,3] places, float[7] line, int64 fed_index) => ({outputs})
  <int64[2] axes = {{3, -3}}, int64[0] no_axes = {{}}, int64[2] parts = {{1, 3}}, float[3] bias,
   int64 index = {{1}}, int64[1] indices = {{1}}, float lowest = {{0.0}}>
  {{ {body} }}"""
images = partial(optimized_ops, IMAGES)


@pytest.mark.parametrize(
    ("operation", "expected"),
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
def test_a_transpose_moves_behind_a_unary_operator(operation: str, expected: str) -> None:
    assert images(f"a = Last(x) c = {operation} y = First(c)") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Last(b) c = Not(a) y = First(c)", "Not"),
        ("a = Last(u) c = BitwiseNot(a) y = First(c)", "Transpose BitwiseNot Transpose"),
    ],
)
def test_a_transpose_moves_behind_a_bitwise_operator(body: str, expected: str) -> None:
    assert images(body) == expected


@pytest.mark.parametrize(
    ("given", "operator", "expected"),
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
def test_a_transpose_moves_behind_an_elementwise_operator(
    given: str, operator: str, expected: str
) -> None:
    assert (
        images(f"a = Last({given}) c = Last({given}2) d = {operator}(a, c) y = First(d)")
        == expected
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Last(b) c = Last(x) d = Last(x2) e = Where(a, c, d) y = First(e)", "Where"),
    ],
)
def test_a_transpose_moves_behind_where(body: str, expected: str) -> None:
    assert images(body) == expected


@pytest.mark.parametrize(
    ("operator", "keepdims", "expected"),
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
def test_a_transpose_moves_behind_a_reduction_with_its_axes(
    operator: str, keepdims: int, expected: str
) -> None:
    assert (
        images(f"a = Last(x) y = {operator}<keepdims = {keepdims}>(a, axes)", opset=18) == expected
    )


@pytest.mark.parametrize(
    ("reduction", "opset", "expected"),
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
def test_reductions_without_axes(reduction: str, opset: int, expected: str) -> None:
    assert images(f"a = Last(x) y = {reduction}", opset=opset) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Last(x) c = ReduceSum(a, fed_axes) y = First(c)", "Transpose ReduceSum Transpose"),
    ],
)
def test_reductions_with_unknown_axes(body: str, expected: str) -> None:
    assert images(body) == expected


@pytest.mark.parametrize(
    ("body", "opset", "expected"),
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
def test_concat_and_split(body: str, opset: int, expected: str) -> None:
    assert images(body, opset=opset) == expected


@pytest.mark.parametrize(
    ("operator", "axis", "opset", "expected"),
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
def test_a_transpose_moves_behind_softmax_with_its_axis(
    operator: str, axis: int, opset: int, expected: str
) -> None:
    assert (
        images(f"a = Last(x) c = {operator}<axis = {axis}>(a) y = First(c)", opset=opset)
        == expected
    )


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ("ArgMax<axis = -1, keepdims = 0>", "ArgMax"),
        ("ArgMax<axis = -1, keepdims = 1>", "ArgMax Transpose"),
        ("ArgMin<axis = 1, keepdims = 0>", "ArgMin Transpose"),
        ("ArgMin", "ArgMin Transpose"),
    ],
)
def test_arg_max_and_arg_min(search: str, expected: str) -> None:
    assert images(f"a = Last(x) y = {search}(a)") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Last(x) y = Gather<axis = -1>(a, index)", "Gather"),
        ("a = Last(x) c = Gather<axis = 0>(a, index) y = Turn(c)", "Gather"),
        ("a = Last(x) c = Gather<axis = 1>(a, indices) y = First(c)", "Transpose Gather Transpose"),
        ("a = Last(x) y = Gather<axis = 1>(a, fed_index)", "Transpose Gather"),
        ("a = Flip(places) c = Gather(line, a) y = Flip(c)", "Transpose Gather Transpose"),
    ],
)
def test_gather_with_a_scalar_index(body: str, expected: str) -> None:
    assert images(body) == expected


RANK_IMAGES = """agraph (float[2,3,5,7] x, float[2,5,7,3] fed, float[3] fed1, float number,
  float[q] some, int64[r] dims, float[1,1,1,1,1] deep, float[3,7] lower, float[1,1,7,3] long,
  float[1,7,3,1] ends, bool[5,1,3] choice, bool[2,3,5,7] choices, bool c, float[2,3,5,7] x3,
  int64[2,3] integers) => ({outputs})
  <float[2,5,7,3] w, float[7,3] w2, float[3] w1, float[1] one, float[1,1,1,1] one4,
   float scalar = {{3.0}}, int64[2] front = {{0, 1}}, int64[2] both = {{0, 3}},
   int64[3,2] counts = {{1, 2, 3, 4, 5, 6}}>
  {{ {body} }}"""
ranks = partial(optimized_ops, RANK_IMAGES)


@pytest.mark.parametrize(
    ("sum_of", "opset", "expected"),
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
def test_constant_operands_are_unsqueezed_and_transposed(
    sum_of: str, opset: int, expected: str
) -> None:
    assert ranks(f"a = Last(x) b = {sum_of} y = First(b)", opset=opset) == expected


@pytest.mark.parametrize(
    ("body", "opset", "expected"),
    [
        ("w2) y = First(b) z = Softmax(w2)", 21, "Add"),
        ("w) y = First(b) z = Softmax(w)", 21, "Add"),
        ("w2) y = First(b) c2 = Sub(a, w2) z = First(c2)", 21, "Sub Add"),
        ("w2) y = First(b) z = Softmax<axis = 1>(w2)", 12, "Add"),
    ],
)
def test_other_readers_of_a_changed_constant_read_the_old_layout(
    body: str, opset: int, expected: str
) -> None:
    assert ranks(f"a = Last(x) b = Add(a, {body}", opset=opset) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Last(x) b = Add(a, w2) y = First(b) z = Identity(w2) -> Add
a = Last(x) b = Add(a, w2) y = First(b) z = If (c) <then_branch = t () => (float[7,3] u) { u =\
 Cos(w2) }, else_branch = e () => (float[7,3] v) { v = Sin(w2) }> -> If Add
"""),
)
def test_constants_with_other_uses_stay(body: str, expected: str) -> None:
    assert ranks(body) == expected


@pytest.mark.parametrize(
    ("body", "opset", "expected"),
    cases("""
a = Last(x) b = Add(a, fed) y = First(b) -> 21 -> Transpose Add Transpose
a = Last(x) b = Add(a, fed1) y = First(b) -> 21 -> Unsqueeze Transpose Add
a = Last(x) b = Add(a, fed1) y = First(b) -> 12 -> Unsqueeze Transpose Add
a = Last(x) b = Add(a, number) y = First(b) -> 21 -> Add
a = Last(x) k = Reshape(some, dims) b = Add(a, k) y = First(b) -> 21 -> Reshape Transpose Add\
 Transpose
a = Last(x) b = Add(a, deep) y = Transpose<perm = [0, 1, 4, 2, 3]>(b) -> 21 -> Transpose Add\
 Transpose
a = Last(x) k = Flip(lower) b = Add(a, k) y = First(b) -> 21 -> Unsqueeze Transpose Add
a = Last(x) k = Flip(lower) b = Add(a, k) y = First(b) -> 12 -> Unsqueeze Transpose Add
a = Last(x) k = Squeeze(long, front) b = Add(a, k) y = First(b) -> 21 -> Transpose Add
a = Last(x) k = Squeeze(long, front) b = Add(a, k) y = First(b) z = Softmax(k) -> 21 -> Squeeze\
 Softmax Transpose Add
a = Last(x) k = Squeeze(ends, both) b = Add(a, k) y = First(b) -> 21 -> Squeeze Unsqueeze\
 Transpose Add
a = Last(x) b = Add(a, fed) y = First(b) d = Mul(a, fed) z = First(d) -> 21 -> Transpose Mul\
 Transpose Add Transpose
a = Last(x) b = Where(choice, a, number) y = First(b) -> 21 -> Unsqueeze Transpose Where
a = Last(x) k = Last(choices) b = Where(k, w1, a) y = First(b) -> 21 -> Where
a = Last(x) k = Last(x3) b = Sum(a, k, fed) y = First(b) d = First(fed) z = Softmax(d) -> 21 ->\
 Transpose Softmax Sum
a = Last(x) k = Last(x3) b = Sum(a, k, fed) y = First(b) -> 21 -> Transpose Sum
"""),
)
def test_computed_operands_are_unsqueezed_and_transposed(
    body: str, opset: str, expected: str
) -> None:
    assert ranks(body, opset=int(opset)) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Flip(integers) b = Add(a, counts) y = Flip(b)", "Add"),
        ("a = Flip(integers) b = Add(a, counts) y = Flip(b) z = Cast<to = 1>(counts)", "Add"),
    ],
)
def test_the_elements_of_a_constant_are_transposed(body: str, expected: str) -> None:
    assert ranks(body) == expected


AXIS_IMAGES = """agraph (float[2,3,5,7] x, float[2,3,5,12] x12, float[2,1,5,7] x1,
  float[2,1,5,1] x11, float[2,3,5] flat, float[6,12,5,7] x6, float[1,3,5,7] alone,
  float[n,3,5,12] symbolic, float[n,1,5,7] symbolic1, float[0,3,5,12] empty,
  float[2,12,5,7] wide, int64[1] fed, int64[2] fed2, int64[q] some, int64[4] fed4,
  int64[5] fed5, int64[8] fed8) => ({outputs})
  <int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] three = {{3}}, int64[1] last = {{-1}},
   int64[2] ends = {{-1, 2}}, int64[2] outer = {{-1, 0}}, int64[2] starts = {{1, 0}},
   int64[2] stops = {{2, 3}}, int64[2] axes = {{3, -3}}, int32[2] starts32 = {{1, 0}},
   int32[2] stops32 = {{2, 3}}, int32[2] axes32 = {{3, 1}}, int64[4] times = {{1, 2, 3, 4}},
   int64[8] pads = {{0, 1, 2, 3, 4, 5, 6, 7}}, float value = {{3.0}},
   int64[2] last_pads = {{1, 2}}>
  {{ {body} }}"""
axes = partial(optimized_ops, AXIS_IMAGES)


@pytest.mark.parametrize(
    ("body", "opset", "expected"),
    [
        ("a = Last(x1) y = Squeeze(a, three)", 21, "Transpose Squeeze"),
        ("a = Last(x11) y = Squeeze(a, ends)", 21, "Transpose Squeeze"),
        ("a = Last(x1) b = Squeeze(a, three) y = Swap(b)", 21, "Squeeze Transpose"),
        ("a = Last(x1) b = Squeeze(a) y = Swap(b)", 21, "Transpose Squeeze Transpose"),
        ("a = Last(x1) b = Squeeze(a, fed) y = Swap(b)", 21, "Transpose Squeeze Transpose"),
        ("a = Last(x1) b = Squeeze<axes = [3]>(a) y = Swap(b)", 12, "Squeeze Transpose"),
        ("a = Last(x1) b = Squeeze(a) y = Swap(b)", 12, "Transpose Squeeze Transpose"),
    ],
)
def test_a_transpose_moves_behind_squeeze_with_its_axes(
    body: str, opset: int, expected: str
) -> None:
    assert axes(body, opset=opset) == expected


@pytest.mark.parametrize(
    ("body", "opset", "expected"),
    cases("""
a = Swap(flat) b = Unsqueeze(a, one) y = Transpose<perm = [0, 1, 3, 2]>(b) -> 21 -> Unsqueeze
a = Swap(flat) b = Unsqueeze(a, outer) y = Softmax(b) -> 21 -> Transpose Unsqueeze Softmax
a = Swap(flat) b = Unsqueeze(a, outer) y = Transpose<perm = [0, 1, 3, 2, 4]>(b) -> 21 -> Unsqueeze
a = Swap(flat) b = Unsqueeze<axes = [-1, 0]>(a) y = Transpose<perm = [0, 1, 3, 2, 4]>(b) -> 12 ->\
 Unsqueeze
a = Swap(flat) b = Unsqueeze(a, fed) y = Other(b) -> 21 -> Transpose Unsqueeze Transpose
"""),
)
def test_a_transpose_moves_behind_unsqueeze_with_its_axes(
    body: str, opset: str, expected: str
) -> None:
    assert axes(body, opset=int(opset)) == expected


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ("one, two, last", "Slice"),
        ("one, two, last, two", "Slice"),
        ("one, two", "Slice"),
        ("one, two, , one", "Slice"),
        ("starts, stops, axes", "Slice"),
        ("starts, stops", "Slice"),
        ("starts32, stops32, axes32", "Slice"),
        ("starts32, stops32", "Slice"),
        ("one, two, fed", "Transpose Slice Transpose"),
        ("fed2, fed2", "Slice"),
        ("some, some", "Transpose Slice Transpose"),
    ],
)
def test_a_transpose_moves_behind_slice_with_its_axes(inputs: str, expected: str) -> None:
    assert axes(f"a = Last(x) b = Slice(a, {inputs}) y = First(b)") == expected


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ("starts = [1], ends = [2], axes = [-1]", "Slice"),
        ("starts = [1, 0], ends = [2, 3]", "Slice"),
    ],
)
def test_slice_with_attributes(attributes: str, expected: str) -> None:
    assert (
        axes(
            f"a = Last(x) b = Slice<{attributes}>(a) y = First(b)",
            opset=9,
        )
        == expected
    )


@pytest.mark.parametrize(
    ("operation", "opset", "expected"),
    [
        ("Pad(a, pads)", 21, "Pad"),
        ("Pad(a, pads, value)", 21, "Pad"),
        ("Pad(a, fed8)", 21, "Gather Pad"),
        ("Pad(a, last_pads, , three)", 21, "Gather Pad"),
        ("Pad<pads = [0, 1, 2, 3, 4, 5, 6, 7]>(a)", 10, "Pad"),
        ("Tile(a, times)", 21, "Tile"),
        ("Tile(a, fed4)", 21, "Gather Tile"),
    ],
)
def test_pad_and_tile(operation: str, opset: int, expected: str) -> None:
    assert (
        axes(
            f"a = Last(x) b = {operation} y = First(b)",
            opset=opset,
        )
        == expected
    )


@pytest.mark.parametrize(
    ("given", "order", "target", "expected"),
    [
        ("x1", "Last", "[2, 1, 5, 7]", "Identity"),
        ("x1", "Last", "[2, 5, 1, 7]", "Transpose"),
        ("x1", "Last", "[1, 2, 5, 7]", "Transpose"),
        ("x1", "Last", "[5, 2, 1, 7]", "Transpose Reshape"),
        ("alone", "Last", "[3, 5, 1, 7]", "Transpose Reshape"),
        ("alone", "Transpose<perm = [1, 2, 3, 0]>", "[3, 5, 1, 7]", "Transpose"),
        ("alone", "Last", "[5, 7, 1, 3]", "Transpose"),
        ("symbolic1", "Last", "[-1, 1, 5, 7]", "Transpose Reshape"),
        ("x1", "Last", "[0, -1, 1, 7]", "Transpose"),
        ("x11", "Last", "[1, 1, 2, 5]", "Transpose"),
        ("x11", "Last", "[5, 2, 1, 1]", "Transpose Reshape"),
        ("x12", "First", "[2, 3, 4, 3, 5]", "Reshape Transpose"),
        ("x12", "First", "[2, 3, -1, 3, 5]", "Reshape Transpose"),
        ("x12", "First", "[0, 3, 4, 3, 5]", "Reshape Transpose"),
        ("wide", "Last", "[2, 5, 7, 3, 4]", "Reshape Transpose"),
        ("x6", "Last", "[2, 3, 5, 7, 3, 4]", "Reshape Transpose"),
        ("x12", "First", "[2, 1, 12, 3, 5]", "Reshape Transpose"),
        ("x12", "First", "[2, 12, 3, 5, 1]", "Transpose Reshape"),
        ("x12", "First", "[1, 2, 12, 3, 5]", "Reshape Transpose"),
        ("x", "Last", "[2, 35, 3]", "Transpose Reshape"),
        ("x", "Last", "[210]", "Transpose Reshape"),
        ("x", "Last", "[10, 7, 3]", "Transpose Reshape"),
        ("x12", "First", "[2, 4, 9, 5]", "Transpose Reshape"),
        ("symbolic", "First", "[-1, 3, 4, 3, 5]", "Transpose Reshape"),
        ("empty", "First", "[0, 3, 4, 3, 5]", "Transpose Reshape"),
    ],
)
def test_reshape_that_moves_dims_of_1_or_splits_dims(
    given: str, order: str, target: str, expected: str
) -> None:
    assert (
        axes(
            f"s = Constant<value_ints = {target}>() a = {order}({given}) y = Reshape(a, s)",
        )
        == expected
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Reshape<allowzero = 1>(a, s)", "Reshape Transpose"),
        ("b = Reshape(a, s) y = Transpose<perm = [0, 3, 4, 1, 2]>(b)", "Reshape"),
        ("y = Reshape(a, fed5)", "Transpose Reshape"),
        ("y = Reshape(a, s) z = Softmax(a)", "Reshape Transpose Transpose Softmax"),
        ("y = Reshape(a, s) z = Sin(a)", "Reshape Transpose Transpose Sin"),
        ("b = Relu(a) y = Reshape(b, s)", "Transpose Relu Reshape"),
        ("b = Reshape(a, fed5) c = Add(b, value) y = Softmax(c)", "Transpose Reshape Add Softmax"),
    ],
)
def test_reshape_needs_known_dims(body: str, expected: str) -> None:
    assert (
        axes(
            f"s = Constant<value_ints = [2, 3, 4, 3, 5]>() a = First(x12) {body}",
        )
        == expected
    )
