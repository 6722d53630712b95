"""Which Transposes are pushed, and changes of layout, compared with onnxruntime."""

import pytest
from runtimes.onnxruntime.optimized_graphs import cases
from runtimes.onnxruntime.transposed_graphs import optimized_ops

pytestmark = pytest.mark.measure

IMAGES = """agraph (float[2,3,5,7] x, float[2,3,5,7] x2, float[2,4,5,7] even, float[1,3,1,7] slim,
  float[2,3,5] flat, float[3,5] flatter, float[2,5,7,3] last, float[2,7,5,3] turned,
  int64[r] dims, bool k) => ({outputs})
  <int64[1] one = {{1}}, int64[2] matrix = {{2, 105}}>
  {{ {body} }}"""
DYNAMIC = """agraph (float[n,3,h,7] x, float[q] w) => ({outputs})
  {{ a = Last(x) {body} }}"""
BRANCHES = (
    "If (k) <then_branch = t () => (float[2,5,7,3] u) {{ u = Cos({name}) }}, "
    "else_branch = e () => (float[2,5,7,3] v) {{ v = Sin({name}) }}>"
)
OWN = (
    "y = If (k) <then_branch = t () => (float[2,3,5,7] u) {{ {branch} }}, "
    "else_branch = e () => (float[2,3,5,7] v) {{ v = Sin(x) }}>"
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("a = Last(x) y = First(a)", "Identity"),
        ("a = Last(x) y = Last(a)", "Transpose"),
        ("a = Last(x) b = First(a) y = Softmax(b)", "Softmax"),
        ("a = Transpose(flat) y = Transpose(a)", "Transpose Transpose"),
        ("a = Turn(flat) y = Transpose(a)", "Transpose Transpose"),
        ("b = Softmax(x) a = Last(b) y = First(a)", "Softmax"),
        ("z = Softmax(x) a = Last(z) y = First(a)", "Softmax Identity"),
        ("b = Softmax(x) z = Last(b) y = First(z)", "Softmax Transpose"),
        ("b = Softmax(x) a = Last(b) y = First(a) z = Softmax(b)", "Softmax Softmax"),
        ("b, z = Split<axis = 1, num_outputs = 2>(even) a = Last(b) y = First(a)", "Split"),
        ("a = Last(x) b = First(a) y = Softmax(b) z = Softmax(a)", "Transpose Softmax Softmax"),
        ("a = Flip(flatter) b = Unsqueeze(a, one) y = Swap(b)", "Unsqueeze Transpose"),
    ],
)
def test_consecutive_transposes_cancel_or_merge(body: str, expected: str) -> None:
    assert optimized_ops(IMAGES, body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
y = Relu(a) -> Transpose Relu
b = Relu(a) y = First(b) -> Relu
b = Relu(a) y = Other(b) -> Relu Transpose
b = Relu(a) c = Sin(b) d = Exp(c) y = First(d) -> Relu Sin Exp
b = Relu(a) c = Sin(b) y = Other(c) -> Relu Sin Transpose
b = Relu(a) c = LpNormalization(b) y = First(c) -> Transpose Relu LpNormalization Transpose
b = Relu(a) y = First(b) z = Softmax(a) -> Transpose Softmax Relu
b = Relu(a) y = First(b) z = Sin(a) -> Transpose Sin Relu
b = Relu(a) y = First(b) z = First(b) -> Relu Identity
"""),
)
def test_a_transpose_is_pushed_toward_another_transpose(body: str, expected: str) -> None:
    assert optimized_ops(IMAGES, f"a = Last(x) {body}") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
y = First(b) z = Softmax(b) -> Relu Transpose Softmax
y = First(b) z = Sin(b) -> Relu Transpose Sin
y = Other(b) z = Sin(b) -> Transpose Relu Sin Transpose
y = Other(b) z = Other(b) -> Transpose Relu Transpose Transpose
y = First(b) z = Other(b) -> Relu Transpose
c = Sin(b) y = First(c) z = LpNormalization(b) -> Relu Transpose LpNormalization Sin Transpose
c = Sin(b) y = First(c) z = LpNormalization(c) -> Relu Sin Transpose LpNormalization
c = Sin(b) y = Other(c) z = LpNormalization(b) -> Transpose Relu LpNormalization Sin Transpose
c = Sin(b) y = Other(c) z = LpNormalization(c) -> Relu Transpose Sin LpNormalization Transpose
c = ReduceSum(b, one) y = First(c) z = LpNormalization(b) -> Relu Transpose LpNormalization\
 ReduceSum Transpose
c = ReduceSum<keepdims = 0>(b, one) y = Swap(c) z = LpNormalization(b) -> Transpose Relu\
 LpNormalization ReduceSum Transpose
c = Sub(last, b) y = First(c) z = LpNormalization(b) -> Relu Transpose LpNormalization Sub Transpose
y = Shape(b) z = Other(b) -> Relu Transpose
y = Reshape(b, matrix) z = Other(b) -> Transpose Relu Transpose Reshape
"""),
)
def test_a_transpose_of_a_value_with_several_readers_can_cancel_but_not_merge(
    body: str, expected: str
) -> None:
    assert optimized_ops(IMAGES, f"a = Last(x) b = Relu(a) {body}") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
z = Relu(a) y = First(z) -> Transpose Relu Transpose
z = Relu(a) y = Other(z) -> Transpose Relu Transpose
z = Relu(a) b = Sin(z) y = First(b) -> Transpose Relu Sin Transpose
b = Relu(a) z = Sin(b) y = First(z) -> Relu Transpose Sin Transpose
b = Relu(a) z = Sin(b) c = LpNormalization(b) d = Add(c, b) e = First(z) y = Softmax(e) ->\
 Transpose Relu Sin Transpose Softmax LpNormalization Add
"""),
)
def test_a_graph_output_keeps_its_transpose(body: str, expected: str) -> None:
    assert optimized_ops(IMAGES, f"a = Last(x) {body}") == expected


@pytest.mark.parametrize(
    ("name", "body", "expected"),
    cases("""
a -> y = First(b) -> Transpose If Relu Transpose Sin
a -> y = First(c) -> Transpose If Relu Sin Transpose
a -> d = LpNormalization(b) e = First(c) f = First(d) y = Add(e, f) -> Transpose Relu\
 LpNormalization Sin Add Transpose If
b -> y = First(b) -> Transpose Relu If Transpose Sin
b -> y = First(c) -> Transpose Relu If Sin Transpose
b -> d = LpNormalization(b) e = First(c) f = First(d) y = Add(e, f) -> Transpose Relu\
 LpNormalization Sin Add Transpose If
c -> y = First(b) -> Relu Transpose Sin If
c -> y = First(c) -> Relu Transpose Sin If Transpose
c -> d = LpNormalization(b) e = First(c) f = First(d) y = Add(e, f) -> Transpose Relu\
 LpNormalization Sin Add Transpose If
"""),
)
def test_a_value_that_a_subgraph_reads_keeps_its_transpose(
    name: str, body: str, expected: str
) -> None:
    assert (
        optimized_ops(
            IMAGES, f"a = Last(x) b = Relu(a) c = Sin(b) {body} z = {BRANCHES.format(name=name)}"
        )
        == expected
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
b, c = Split<axis = 3, num_outputs = 2>(a) y = First(b) z = First(c) -> Split
b, c = Split<axis = 3, num_outputs = 2>(a) y = First(b) z = LpNormalization(c) -> Split Transpose\
 LpNormalization
b, c = Split<axis = 3, num_outputs = 2>(a) y = Other(b) z = LpNormalization(c) -> Split Transpose\
 LpNormalization Transpose
b, z = Split<axis = 3, num_outputs = 2>(a) y = First(b) -> Split Transpose
y, z = Split<axis = 3, num_outputs = 2>(a) -> Transpose Split
"""),
)
def test_the_outputs_of_a_split_are_considered_together(body: str, expected: str) -> None:
    assert optimized_ops(IMAGES, f"a = Last(even) {body}") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Last(slim) y = Relu(a) -> Transpose Relu
b = Reshape(x, dims) a = Last(b) c = Relu(a) y = First(c) -> Reshape Relu
b = Reshape(x, dims) a = Last(b) y = ReduceSum<keepdims = 0>(a, one) -> Reshape Transpose ReduceSum
a = Last(x) y = ReduceSum<keepdims = 0>(a, one) -> ReduceSum Transpose
b = Reshape(x, dims) a = Last(x) c = Add(a, b) y = First(c) -> Transpose Reshape Add Transpose
a = Last(x) b = Last(x2) y = Add(a, b) -> Add Transpose
a = Last(x) b = Other(turned) c = Mul(a, b) y = First(c) -> Transpose Mul
a = Last(x) y = Mul(a, a) -> Mul Transpose
"""),
)
def test_the_cost_of_dims_of_1_and_of_unknown_ranks(body: str, expected: str) -> None:
    assert optimized_ops(IMAGES, body) == expected


@pytest.mark.parametrize(
    ("branch", "expected"),
    [
        ("a = Last(x) b = Sin(a) u = First(b)", "If"),
        ("a = Last(x) u = First(a)", "If"),
        ("a = Last(x) b = LpNormalization(a) u = First(b)", "If"),
    ],
)
def test_transposes_in_subgraphs(branch: str, expected: str) -> None:
    assert optimized_ops(IMAGES, OWN.format(branch=branch)) == expected


@pytest.mark.parametrize(
    ("body", "opset", "expected"),
    [
        ("y = Shape(a)", 21, "Shape Gather"),
        ("y = Shape<start = 1>(a)", 21, "Shape Gather"),
        ("y = Shape<end = 2>(a)", 21, "Shape Gather"),
        ("y = Shape<start = -2>(a)", 21, "Shape Gather"),
        ("y = Shape<start = -9, end = 9>(a)", 21, "Shape Gather"),
        ("y = Shape<start = 1, end = -1>(a)", 21, "Shape Gather"),
        ("y = Shape<start = 3, end = 1>(a)", 21, "Shape Gather"),
        ("y = Shape(a)", 13, "Shape Gather"),
        ("y = Shape(a) z = Softmax(a)", 21, "Shape Gather Transpose Softmax"),
        ("b = Shape(a) y = Expand(w, b)", 21, "Shape Gather Expand"),
    ],
)
def test_shape_after_a_transpose(body: str, opset: int, expected: str) -> None:
    assert optimized_ops(DYNAMIC, body, opset=opset) == expected


LAYOUT_IMAGES = """agraph (uint8[2,5,7,3] x, int8[2,5,7,3] signed, float[2,5,7,3] real,
  uint8[2,5,3] line,
  float[4] fed, uint8[2,3,5,7] q, uint8[2,3,5,7] q2) => ({outputs})
  <float s = {{0.5}}, uint8 p = {{3}}, uint8[7,3] w, uint8 w0 = {{3}},
   float[4] by_6 = {{1.0, 1.0, 2.0, 3.0}}, float[4] by_8 = {{1.0, 2.0, 4.0, 1.0}},
   float[2] by_2 = {{2.0, 3.0}}, int64[4] sizes = {{2, 3, 15, 21}},
   float[8] region = {{0, 0, 0, 0, 1, 1, 1, 1}}, float[0] none = {{}}>
  {{ {body} }}"""


@pytest.mark.parametrize(
    ("body", "level", "expected"),
    cases("""
a = First(x) b = MaxPool<kernel_shape = [2, 2]>(a) y = Last(b) -> basic -> Transpose MaxPool\
 Transpose
a = First(x) b = MaxPool<kernel_shape = [2, 2]>(a) y = Last(b) -> extended -> NhwcMaxPool
a = First(x) y = MaxPool<kernel_shape = [2, 2], storage_order = 1>(a) -> extended -> NhwcMaxPool\
 Transpose
a = First(signed) y = MaxPool<kernel_shape = [2, 2]>(a) -> extended -> NhwcMaxPool Transpose
a = First(real) y = MaxPool<kernel_shape = [2, 2]>(a) -> extended -> Transpose MaxPool
a = Swap(line) y = MaxPool<kernel_shape = [2]>(a) -> extended -> NhwcMaxPool Transpose
a = Transpose<perm = [0, 3, 2, 1]>(x) y = MaxPool<kernel_shape = [2, 2]>(a) -> extended ->\
 Transpose MaxPool
a = First(x) y, z = MaxPool<kernel_shape = [2, 2]>(a) -> extended -> Transpose MaxPool
a = First(x) y, = MaxPool<kernel_shape = [2, 2]>(a) -> extended -> NhwcMaxPool Transpose
a = First(x) y = MaxPool<kernel_shape = [2, 2]>(a) z = Cast<to = 1>(a) -> extended -> NhwcMaxPool\
 Transpose Transpose Cast
z = First(x) y = MaxPool<kernel_shape = [2, 2]>(z) -> extended -> NhwcMaxPool Transpose Transpose
"""),
)
def test_max_pool_of_bytes_becomes_nhwc_once_it_is_assigned(
    body: str, level: str, expected: str
) -> None:
    assert optimized_ops(LAYOUT_IMAGES, body, level) == expected


@pytest.mark.parametrize(
    ("body", "level", "expected"),
    cases("""
a = First(real) b = Resize(a, , by_6) y = Last(b) -> basic -> Transpose Resize Transpose
a = First(real) b = Resize(a, , by_6) y = Last(b) -> extended -> Resize
a = First(x) y = Resize<mode = "linear">(a, , by_6) -> extended -> Resize Transpose
a = First(signed) y = Resize<mode = "linear">(a, , by_6) -> extended -> Resize Transpose
a = First(x) y = Resize(a, , by_6) -> extended -> Transpose Resize
a = First(real) y = Resize<mode = "linear">(a, , by_6) -> extended -> Transpose Resize
a = First(real) b = Resize<mode = "linear">(a, , by_6) y = Last(b) -> extended -> Resize
a = First(real) b = Resize(a, , fed) y = Last(b) -> extended -> Gather Resize
a = First(real) b = Resize(a, , , sizes) y = Last(b) -> extended -> Resize
a = First(real) b = Resize(a, region, by_6) y = Last(b) -> extended -> Resize
a = First(real) b = Resize(a, none, by_6) y = Last(b) -> extended -> Resize
a = First(real) b = Resize<axes = [2, 3]>(a, , by_2) y = Last(b) -> extended -> Gather Resize
a = Other(real) b = Resize(a, , by_6) y = Other(b) -> extended -> Transpose Resize Transpose
a = Last(real) b = Resize(a, , by_8) y = First(b) -> extended -> Resize
"""),
)
def test_resize_of_images_changes_layout_once_it_is_assigned(
    body: str, level: str, expected: str
) -> None:
    assert optimized_ops(LAYOUT_IMAGES, body, level) == expected


@pytest.mark.parametrize(
    ("body", "opset", "expected"),
    [
        ("Resize(a, by_6)", 10, "Resize"),
        ("Upsample(a, by_6)", 9, "Transpose Upsample Transpose"),
    ],
)
def test_resize_before_version_11(body: str, opset: int, expected: str) -> None:
    assert (
        optimized_ops(
            LAYOUT_IMAGES,
            f"a = First(real) b = {body} y = Last(b)",
            "extended",
            opset,
        )
        == expected
    )


@pytest.mark.parametrize(
    ("operator", "inputs", "expected"),
    [
        ("QLinearAdd", "a, s, p, c, s, p, s, p", "QLinearAdd"),
        ("QLinearMul", "a, s, p, c, s, p, s, p", "QLinearMul"),
        ("QLinearAdd", "a, s, p, w, s, p, s, p", "QLinearAdd Transpose"),
        ("QLinearAdd", "a, s, p, w0, s, p, s, p", "QLinearAdd Transpose"),
        ("QLinearConcat<axis = -1>", "s, p, a, s, p, c, s, p", "QLinearConcat"),
        ("QLinearLeakyRelu<alpha = 0.1>", "a, s, p, s, p", "QLinearLeakyRelu Transpose"),
        ("QLinearSigmoid", "a, s, p, s, p", "QLinearSigmoid Transpose"),
        ("QLinearSoftmax<axis = 3, opset = 13>", "a, s, p, s, p", "QLinearSoftmax Transpose"),
        ("QLinearSoftmax<axis = 1, opset = 9>", "a, s, p, s, p", "QLinearSoftmax Transpose"),
    ],
)
def test_operators_on_quantized_values(operator: str, inputs: str, expected: str) -> None:
    assert (
        optimized_ops(
            LAYOUT_IMAGES,
            f"a = Last(q) c = Last(q2) b = com.microsoft.{operator}({inputs}) y = First(b)",
        )
        == expected
    )


@pytest.mark.parametrize(
    ("there", "pool", "back", "expected"),
    cases("""
First -> QLinearGlobalAveragePool<channels_last = 0> -> Last -> QLinearGlobalAveragePool
First -> QLinearAveragePool<channels_last = 0, kernel_shape = [2, 2]> -> Last -> QLinearAveragePool
First -> QLinearGlobalAveragePool<channels_last = 1> -> Last -> Transpose QLinearGlobalAveragePool\
 Transpose
First -> QLinearAveragePool<channels_last = 1, kernel_shape = [2, 2]> -> Last -> Transpose\
 QLinearAveragePool Transpose
Last -> QLinearGlobalAveragePool<channels_last = 0> -> First -> Transpose QLinearGlobalAveragePool\
 Transpose
Last -> QLinearAveragePool<channels_last = 0, kernel_shape = [2, 2]> -> First -> Transpose\
 QLinearAveragePool Transpose
Last -> QLinearGlobalAveragePool<channels_last = 1> -> First -> QLinearGlobalAveragePool
Last -> QLinearAveragePool<channels_last = 1, kernel_shape = [2, 2]> -> First -> QLinearAveragePool
"""),
)
def test_pools_of_quantized_values(there: str, pool: str, back: str, expected: str) -> None:
    assert (
        optimized_ops(
            LAYOUT_IMAGES,
            f"a = {there}(q) b = com.microsoft.{pool}(a, s, p, s, p) y = {back}(b)",
        )
        == expected
    )
