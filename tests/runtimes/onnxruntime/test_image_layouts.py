"""The blocked layout of images, compared with onnxruntime."""

import re

import pytest
from runtimes.onnxruntime.optimized_graphs import cases, compare_with_onnxruntime, parsed

from onnxmem.model.building import prepare
from onnxmem.model.files import ModelFile
from onnxmem.runtimes.onnxruntime.cpu import AVX2, AVX512, Cpu
from onnxmem.runtimes.onnxruntime.optimizer.pipeline import optimized

pytestmark = pytest.mark.measure

IMAGES = """agraph (float[2,16,7,11] x, float[2,32,7,11] wide, float[2,3,7,11] colors,
  float[2,16,16,7] square,
  float[2,20,7,11] by_fours, float[2,17,7,11] odd, float[2,16,7] line, float[2,16,5,3,3] volume,
  float[2,c,7,11] unknown, float16[2,16,7,11] half, double[2,16,7,11] double, int8[2,16,7,11] int8,
  float[16] fed, float[16,16,1,1] fed_filter, bool k) => ({outputs})
  <float[16,16,3,3] w, float[16,32,3,3] w32, float[17,16,3,3] w17, float[17,3,3,3] w3,
   float[16,20,3,3] w20, float[16,17,3,3] odd_w, float[16,16,3] w1d, float[16,16,3,3,3] w3d,
   float16[16,16,3,3] half_w, float[32,1,3,3] each, float[36,1,3,3] each36, float[37,1,3,3] each37,
   float[32,1,3,3] twice, float[32,16,3,3] halves, float[16,16,3,3] small_out,
   float[32,8,3,3] small_in, float[16] b, float[17] b17, float[18] b18, float[16,16,1,1] one>
  {{ {body} }}"""


def optimized_ops(body: str, opset: int = 21) -> str:
    """The operators after optimization for AVX-512; for this CPU the graphs are compared.

    The order of nodes in onnxruntime differs between processes.
    """
    outputs = "y, z" if "z =" in body else "y"
    text = IMAGES.format(outputs=outputs, body=body)
    compare_with_onnxruntime(text, opset=opset, has_order=False)
    prepared = prepare(ModelFile("<text>", parsed(text, opset), 0)).proto
    return " ".join(node.op_type for node in optimized(prepared, "all", cpu=AVX512).graph.node)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Conv(x, w)", "ReorderInput Conv ReorderOutput"),
        ("y = Conv(wide, w32)", "ReorderInput Conv ReorderOutput"),
        ("y = Conv(x, w17)", "ReorderInput Conv ReorderOutput"),
        ("y = Conv(by_fours, w20)", "ReorderInput Conv ReorderOutput"),
        ("y = Conv(odd, odd_w)", "Conv"),
        ("y = Conv(colors, w3)", "Conv ReorderOutput"),
        ("y = Conv(line, w1d)", "Conv"),
        ("y = Conv(volume, w3d)", "Conv"),
        ("y = Conv(half, half_w)", "Cast ReorderInput Conv ReorderOutput Cast"),
        ("y = Conv(x, fed_filter)", "Conv"),
        ("a = Abs(fed_filter) y = Conv(x, a)", "Abs Conv"),
    ],
)
def test_a_blocked_convolution_needs_a_multiple_of_four_channels(body: str, expected: str) -> None:
    assert optimized_ops(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
y = Conv(x, w, b) -> ReorderInput Conv ReorderOutput
y = Conv(x, w17, b17) -> ReorderInput Conv ReorderOutput
y = Conv(x, w, fed) -> Conv
y = Conv(x, w17, b17) z = Conv<strides = [2, 2]>(x, w17, b17) -> ReorderInput Conv ReorderOutput\
 Conv ReorderOutput
"""),
)
def test_the_bias_of_a_blocked_convolution_is_constant_and_padded(body: str, expected: str) -> None:
    assert optimized_ops(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
y = Conv<group = 32>(wide, each) -> ReorderInput Conv ReorderOutput
a = Concat<axis = 1>(by_fours, x) y = Conv<group = 36>(a, each36) -> Concat ReorderInput Conv\
 ReorderOutput
a = Concat<axis = 1>(by_fours, odd) y = Conv<group = 37>(a, each37) -> Concat Conv
y = Conv<group = 16>(x, twice) -> Conv
y = Conv<group = 2>(wide, halves) -> ReorderInput Conv ReorderOutput
y = Conv<group = 2>(wide, small_out) -> Conv
y = Conv<group = 2>(x, small_in) -> Conv
"""),
)
def test_grouped_convolutions_are_blocked_where_their_channels_allow_it(
    body: str, expected: str
) -> None:
    assert optimized_ops(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
y = Conv(x, w) z = Conv<strides = [2, 2]>(x, w) -> ReorderInput Conv ReorderOutput Conv\
 ReorderOutput
a = Conv(x, w) y = Conv(a, one) -> ReorderInput Conv Conv ReorderOutput
y = Conv(x, w) z = Conv(x, one) -> ReorderInput Conv ReorderOutput Conv ReorderOutput
y = Conv(x, w) z = Softmax(y) -> ReorderInput Conv ReorderOutput Softmax
a = Conv(x, w) y = MaxPool<kernel_shape = [3, 3]>(a) z = Softmax(a) -> ReorderInput Conv MaxPool\
 ReorderOutput ReorderOutput Softmax
"""),
)
def test_readers_share_a_reorder_input_and_a_reordered_filter(body: str, expected: str) -> None:
    assert optimized_ops(body) == expected


@pytest.mark.parametrize(
    ("body", "opset", "expected"),
    [
        ("y = Conv(x, w)", 7, "ReorderInput Conv ReorderOutput"),
        ("y = MaxPool<kernel_shape = [3, 3]>(x)", 7, "ReorderInput MaxPool ReorderOutput"),
        ("y = AveragePool<kernel_shape = [3, 3]>(x)", 7, "ReorderInput AveragePool ReorderOutput"),
        ("y = Conv(x, w)", 11, "ReorderInput Conv ReorderOutput"),
        ("y = MaxPool<kernel_shape = [3, 3]>(x)", 11, "ReorderInput MaxPool ReorderOutput"),
        ("y = AveragePool<kernel_shape = [3, 3]>(x)", 11, "ReorderInput AveragePool ReorderOutput"),
        ("y = Conv(x, w)", 22, "ReorderInput Conv ReorderOutput"),
        ("y = MaxPool<kernel_shape = [3, 3]>(x)", 22, "ReorderInput MaxPool ReorderOutput"),
        ("y = AveragePool<kernel_shape = [3, 3]>(x)", 22, "ReorderInput AveragePool ReorderOutput"),
    ],
)
def test_versions_of_convolutions_and_pools(body: str, opset: int, expected: str) -> None:
    assert optimized_ops(body, opset) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
y = MaxPool<kernel_shape = [3, 3]>(x) -> ReorderInput MaxPool ReorderOutput
y = MaxPool<kernel_shape = [3, 3], ceil_mode = 1, strides = [2, 2]>(x) -> ReorderInput MaxPool\
 ReorderOutput
y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(wide) -> ReorderInput AveragePool\
 ReorderOutput
y, z = MaxPool<kernel_shape = [3, 3]>(x) -> MaxPool
y = MaxPool<kernel_shape = [3, 3]>(by_fours) -> MaxPool
y = MaxPool<kernel_shape = [3]>(line) -> MaxPool
y = MaxPool<kernel_shape = [3, 3]>(unknown) -> MaxPool
y = MaxPool<kernel_shape = [3, 3]>(half) -> Cast MaxPool Cast
y = MaxPool<kernel_shape = [3, 3]>(double) -> MaxPool
y = MaxPool<kernel_shape = [3, 3]>(int8) -> MaxPool
a = Conv(x, w17) y = MaxPool<kernel_shape = [3, 3]>(a) -> ReorderInput Conv ReorderOutput MaxPool
y = LpPool<kernel_shape = [3, 3]>(x) -> LpPool
"""),
)
def test_a_blocked_pool_needs_whole_blocks_of_channels(body: str, expected: str) -> None:
    assert optimized_ops(body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Conv(x, w) y = GlobalAveragePool(a) -> ReorderInput Conv GlobalAveragePool ReorderOutput
a = Conv(x, w) y = GlobalMaxPool(a) -> ReorderInput Conv GlobalMaxPool ReorderOutput
a = Conv(x, w17) y = GlobalAveragePool(a) -> ReorderInput Conv ReorderOutput GlobalAveragePool
y = GlobalAveragePool(x) -> ReorderInput GlobalAveragePool ReorderOutput
y = GlobalAveragePool(odd) -> GlobalAveragePool
a = Softmax(x) y = GlobalMaxPool(a) -> Softmax GlobalMaxPool
a = GlobalMaxPool(x) y = GlobalAveragePool(a) -> ReorderInput GlobalMaxPool GlobalAveragePool\
 ReorderOutput
a = Conv(x, w) c = Transpose<perm = [0, 2, 3, 1]>(a) y = GlobalAveragePool(c) -> ReorderInput Conv\
 ReorderOutput GlobalAveragePool
a = Conv(x, w) c = Transpose<perm = [0, 3, 2, 1]>(a) y = GlobalAveragePool(c) -> ReorderInput Conv\
 ReorderOutput Transpose GlobalAveragePool
a = Conv(square, one) c = Transpose<perm = [0, 2, 3, 1]>(a) y = GlobalAveragePool(c) ->\
 ReorderInput Conv ReorderOutput ReorderInput GlobalAveragePool ReorderOutput
"""),
)
def test_a_global_pool_reads_blocked_values_and_reorders_graph_inputs(
    body: str, expected: str
) -> None:
    assert optimized_ops(body) == expected


@pytest.mark.parametrize(
    "branch",
    [
        "u = Conv(x, one)",
        "u = Conv(x, filter, b)",
        "u = Conv(x, filter)",
        "a = Conv(x, filter) u = Relu(a)",
    ],
)
def test_a_subgraph_is_blocked_only_if_the_filter_is_its_own(branch: str) -> None:
    filled = "d = Constant<value = int64[4] {16, 16, 1, 1}>() filter = ConstantOfShape(d)"
    then = f"then () => (float[2,16,7,11] u) {{ {filled if 'filter' in branch else ''} {branch} }}"
    other = "other () => (float[2,16,7,11] v) { v = Identity(x) }"
    assert optimized_ops(f"y = If (k) <then_branch = {then}, else_branch = {other}>") == "If"


@pytest.mark.parametrize(("cpu", "padded"), [(AVX2, 24), (AVX512, 32)])
def test_channels_are_padded_to_the_block_size_of_the_cpu(cpu: Cpu, padded: int) -> None:
    text = IMAGES.format(outputs="y", body="y = Conv(x, w17, b17)")
    prepared = prepare(ModelFile("<text>", parsed(text, 21), 0))
    graph = optimized(prepared.proto, "all", cpu=cpu).graph
    dims = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    conv = next(node for node in graph.node if node.op_type == "Conv")
    assert [dims[name] for name in conv.input[1:]] == [[padded, 16, 3, 3], [padded]]


PRODUCT_IMAGES = """agraph (float[2,16,7,11] x, float[n,16,h,v] sym, float[n,16,h,u] other,
  float[n,16,h,t] third, float[1,16,1,1] factors) => ({outputs})
  <float[16,16,1,1] w, float[16,16,1,1] w2, float[17,16,1,1] w17, float[16,16,3,3] w3,
   float[1,16,1,1] one_channel, float[1,16,1,1] scale, float[16,1,1] scale3, float[17,1,1] scale17,
   float[1,16,7,1] rows, float[1,1,1] ones, float[1] one>
  {{ {body} }}"""
CONV = "a = Conv(x, w)"
POOL = "c = MaxPool<kernel_shape = [1, 1]>(x)"
GATE = "c = HardSigmoid<alpha = 0.16666667, beta = 0.5>(a)"


def optimized_products(body: str, opset: int = 21) -> str:
    """The operators after optimization; their order in onnxruntime differs between processes."""
    outputs = "y, z" if re.search(r"\bz( =|, )", body) else "y"
    text = PRODUCT_IMAGES.format(outputs=outputs, body=body)
    return " ".join(compare_with_onnxruntime(text, opset=opset, has_order=False))


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
y = Mul(c, scale) -> ReorderInput MaxPool Conv ReorderOutput
y = Mul(scale, c) -> ReorderInput MaxPool Conv ReorderOutput
y = Mul(c, scale3) -> ReorderInput MaxPool Conv ReorderOutput
y = Mul(c, one) -> ReorderInput MaxPool ReorderOutput Mul
y = Mul(c, ones) -> ReorderInput MaxPool ReorderOutput Mul
y = Mul(c, rows) -> ReorderInput MaxPool ReorderOutput Mul
y = Mul(c, factors) -> ReorderInput MaxPool ReorderOutput Mul
d = Abs(factors) y = Mul(c, d) -> ReorderInput MaxPool ReorderOutput Abs Mul
a = Conv(x, w17) d = Relu(a) y = Mul(d, scale17) -> ReorderInput Conv Conv ReorderOutput MaxPool
a = Conv(x, w) y = Mul(a, c) -> ReorderInput MaxPool Conv Mul ReorderOutput
"""),
)
def test_mul_by_a_factor_per_channel_becomes_a_convolution(body: str, expected: str) -> None:
    assert optimized_products(f"{POOL} {body}") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
d = Mul(a, c) y = Conv(d, w2) -> ReorderInput Conv Conv ReorderOutput
d = Mul(c, a) y = Softmax(d) -> ReorderInput Conv ReorderOutput Softmax
y = Mul(a, c) -> ReorderInput Conv HardSigmoid Mul ReorderOutput
y = Mul(a, c) z = Softmax(y) -> ReorderInput Conv HardSigmoid Mul ReorderOutput Softmax
d = Mul(a, c) y = Conv(d, w2) z = Conv(c, w2) -> ReorderInput Conv HardSigmoid Mul Conv\
 ReorderOutput Conv ReorderOutput
d = Mul(a, c) y = Conv(d, w2) z = Conv(a, w2) -> ReorderInput Conv HardSigmoid Mul Conv\
 ReorderOutput Conv ReorderOutput
b = Conv(x, w2) d = Mul(b, c) y = Conv(d, w2) -> ReorderInput Conv Conv Mul Conv ReorderOutput
d = Mul(c, c) y = Conv(d, w2) -> ReorderInput Conv Mul Conv ReorderOutput
"""),
)
def test_hard_swish_after_a_convolution_becomes_its_activation(body: str, expected: str) -> None:
    assert optimized_products(f"{CONV} {GATE} {body}") == expected


@pytest.mark.parametrize(
    ("gate", "expected"),
    cases("""
c = HardSigmoid<alpha = 0.166667>(a) d = Mul(a, c) -> ReorderInput Conv ReorderOutput Softmax
c = HardSigmoid<alpha = 0.16667>(a) d = Mul(a, c) -> ReorderInput Conv HardSigmoid Mul\
 ReorderOutput Softmax
c = HardSigmoid<alpha = 0.16666667, beta = 0.4>(a) d = Mul(a, c) -> ReorderInput Conv HardSigmoid\
 Mul ReorderOutput Softmax
c = HardSigmoid(a) d = Mul(a, c) -> ReorderInput Conv HardSigmoid Mul ReorderOutput Softmax
b = Relu(a) c = HardSigmoid<alpha = 0.16666667>(b) d = Mul(b, c) -> ReorderInput Conv HardSigmoid\
 Mul ReorderOutput Softmax
b = MaxPool<kernel_shape = [1, 1]>(a) c = HardSigmoid<alpha = 0.16666667>(b) d = Mul(b, c) ->\
 ReorderInput Conv MaxPool HardSigmoid Mul ReorderOutput Softmax
"""),
)
def test_other_gates_than_hard_swish_stay(gate: str, expected: str) -> None:
    assert optimized_products(f"{CONV} {gate} y = Softmax(d)") == expected


@pytest.mark.parametrize(
    ("activation", "expected"),
    cases("""
Relu -> ReorderInput Conv Relu ReorderOutput ReorderOutput Softmax
Sigmoid -> ReorderInput Conv Sigmoid ReorderOutput ReorderOutput Softmax
Tanh -> ReorderInput Conv Tanh ReorderOutput ReorderOutput Softmax
HardSigmoid -> ReorderInput Conv HardSigmoid ReorderOutput ReorderOutput Softmax
Gelu -> ReorderInput Conv Gelu ReorderOutput ReorderOutput Softmax
com.microsoft.Gelu -> ReorderInput Conv Gelu ReorderOutput ReorderOutput Softmax
com.microsoft.QuickGelu -> ReorderInput Conv QuickGelu ReorderOutput ReorderOutput Softmax
LeakyRelu -> ReorderInput Conv ReorderOutput Softmax LeakyRelu
Clip -> ReorderInput Conv ReorderOutput Softmax Clip
Elu -> ReorderInput Conv ReorderOutput Softmax Elu
com.microsoft.FastGelu -> ReorderInput Conv ReorderOutput Softmax FastGelu
"""),
)
def test_an_activation_is_blocked_if_the_convolution_has_another_reader(
    activation: str, expected: str
) -> None:
    assert optimized_products(f"{CONV} y = {activation}(a) z = Softmax(a)") == expected


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        ("Relu", "ReorderInput MaxPool Conv ReorderOutput"),
        ("Sigmoid", "ReorderInput MaxPool Conv ReorderOutput"),
        ("Tanh", "ReorderInput MaxPool Conv ReorderOutput"),
        ("HardSigmoid<alpha = 0.3, beta = 0.4>", "ReorderInput MaxPool Conv ReorderOutput"),
        ("Gelu", "ReorderInput MaxPool Conv Gelu ReorderOutput"),
        ("LeakyRelu", "ReorderInput MaxPool Conv ReorderOutput LeakyRelu"),
    ],
)
def test_an_activation_after_a_fused_add_is_fused_into_the_convolution(
    activation: str, expected: str
) -> None:
    assert optimized_products(f"{CONV} {POOL} d = Add(a, c) y = {activation}(d)") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
c = MaxPool<kernel_shape = [1, 1]>(x) y = Relu(c) -> ReorderInput MaxPool Relu ReorderOutput
y = Relu(x) -> Relu
"""),
)
def test_an_activation_of_another_blocked_value_is_blocked(body: str, expected: str) -> None:
    assert optimized_products(body) == expected


RESIZE_IMAGES = """agraph (float[2,16,7,11] x, float[n,16,h,v] sym, float[2,7,11,16] last,
  float[2,7,11,3] few_last, float[4] fed_scales, int64[4] fed_sizes, float[16] fed) => ({outputs})
  <float[16,16,1,1] w, float[16,16,1,1] w2, float[17,16,1,1] w17, float[16,3,1,1] few,
   float[16] m, float[16] s, float[16] o, float[16] v,
   float[17] m17, float[17] s17, float[17] o17, float[17] v17,
   float[17,1,1] m3, float[17,1,1] s3, float[17,1,1] o3, float[17,1,1] v3, float[8] region,
   float[4] by_6 = {{1.0, 1.0, 2.0, 3.0}}, float[4] by_5 = {{1.0, 1.0, 2.5, 3.0}},
   float[4] by_batch = {{3.0, 1.0, 2.0, 3.0}}, float[4] by_channel = {{1.0, 2.0, 2.0, 3.0}},
   float[4] down = {{1.0, 1.0, 0.5, 0.5}}, float[2] by_2 = {{2.0, 3.0}},
   int64[4] sizes = {{2, 16, 14, 33}}, int64[4] uneven = {{2, 16, 15, 33}},
   int64[4] smaller = {{2, 16, 3, 33}}, int64[2] two_sizes = {{14, 33}}>
  {{ {body} }}"""
FLOOR = 'nearest_mode = "floor", coordinate_transformation_mode'
NEAREST = f'{FLOOR} = "asymmetric"'


def optimized_resizes(body: str, opset: int = 21) -> str:
    """The operators after optimization; their order in onnxruntime differs between processes."""
    outputs = "y, z" if re.search(r"\bz( =|, )", body) else "y"
    text = RESIZE_IMAGES.format(outputs=outputs, body=body)
    return " ".join(compare_with_onnxruntime(text, opset=opset, has_order=False))


@pytest.mark.parametrize(
    ("opset", "body", "expected"),
    cases("""
7 -> y = BatchNormalization(c, s17, o17, m17, v17) -> ReorderInput Conv Conv ReorderOutput
9 -> y = BatchNormalization(c, s17, o17, m17, v17) -> ReorderInput Conv Conv ReorderOutput
15 -> y = BatchNormalization(c, s17, o17, m17, v17) -> ReorderInput Conv Conv ReorderOutput
21 -> b = BatchNormalization(c, s17, o17, m17, v17) y = Relu(b) -> ReorderInput Conv Conv\
 ReorderOutput
21 -> y, z, e = BatchNormalization<training_mode = 1>(c, s17, o17, m17, v17) -> ReorderInput Conv\
 ReorderOutput BatchNormalization
"""),
)
def test_batch_normalization_becomes_a_convolution(opset: str, body: str, expected: str) -> None:
    assert optimized_resizes(f"a = Conv(x, w17) c = Relu(a) {body}", int(opset)) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
c = MaxPool<kernel_shape = [1, 1]>(x) y = BatchNormalization(c, s, o, m, v) -> ReorderInput\
 MaxPool Conv ReorderOutput
c = MaxPool<kernel_shape = [1, 1]>(x) y = BatchNormalization(c, fed, o, m, v) -> ReorderInput\
 MaxPool ReorderOutput BatchNormalization
c = MaxPool<kernel_shape = [1, 1]>(x) b = Abs(fed) y = BatchNormalization(c, b, o, m, v) ->\
 ReorderInput MaxPool ReorderOutput Abs BatchNormalization
y = BatchNormalization(x, s, o, m, v) -> BatchNormalization
"""),
)
def test_batch_normalization_needs_constants(body: str, expected: str) -> None:
    assert optimized_resizes(body) == expected


@pytest.mark.parametrize(
    ("inputs", "opset", "expected"),
    [
        (", by_6", 13, "ReorderInput MaxPool Upsample ReorderOutput"),
        (", by_6", 18, "ReorderInput MaxPool Upsample ReorderOutput"),
        (", by_6", 21, "ReorderInput MaxPool Upsample ReorderOutput"),
        ("region, by_6", 11, "ReorderInput MaxPool Upsample ReorderOutput"),
        (", by_5", 21, "ReorderInput MaxPool ReorderOutput Resize"),
        (", by_batch", 21, "ReorderInput MaxPool ReorderOutput Resize"),
        (", by_channel", 21, "ReorderInput MaxPool ReorderOutput Resize"),
        (", down", 21, "ReorderInput MaxPool ReorderOutput Resize"),
        (", fed_scales", 21, "ReorderInput MaxPool ReorderOutput Resize"),
        (", , sizes", 21, "ReorderInput MaxPool Upsample ReorderOutput"),
        (", , uneven", 21, "ReorderInput MaxPool ReorderOutput Resize"),
        (", , smaller", 21, "ReorderInput MaxPool ReorderOutput Resize"),
        (", , fed_sizes", 21, "ReorderInput MaxPool ReorderOutput Resize"),
    ],
)
def test_a_blocked_resize_needs_integer_scales(inputs: str, opset: int, expected: str) -> None:
    assert optimized_resizes(f"{POOL} y = Resize<{NEAREST}>(c, {inputs})", opset) == expected


@pytest.mark.parametrize(
    ("resize", "expected"),
    cases("""
nearest_mode = "ceil", coordinate_transformation_mode = "asymmetric">(c, , by_6) -> ReorderInput\
 MaxPool ReorderOutput Resize
nearest_mode = "floor", coordinate_transformation_mode = "half_pixel">(c, , by_6) -> ReorderInput\
 MaxPool ReorderOutput Resize
nearest_mode = "floor">(c, , by_6) -> ReorderInput MaxPool ReorderOutput Resize
mode = "linear", coordinate_transformation_mode = "asymmetric">(c, , by_6) -> ReorderInput MaxPool\
 Upsample ReorderOutput
mode = "linear", coordinate_transformation_mode = "align_corners">(c, , by_6) -> ReorderInput\
 MaxPool Upsample ReorderOutput
mode = "linear", coordinate_transformation_mode = "half_pixel">(c, , by_6) -> ReorderInput MaxPool\
 Upsample ReorderOutput
mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel">(c, , by_6) -> ReorderInput\
 MaxPool ReorderOutput Resize
mode = "linear">(c, , , sizes) -> ReorderInput MaxPool Upsample ReorderOutput
mode = "cubic", coordinate_transformation_mode = "asymmetric">(c, , by_6) -> ReorderInput MaxPool\
 ReorderOutput Resize
"""),
)
def test_a_blocked_resize_needs_a_mode_of_the_kernel(resize: str, expected: str) -> None:
    assert optimized_resizes(f"{POOL} y = Resize<{resize}") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
y = Resize<mode = "linear">(x, , by_6) -> Resize
c = MaxPool<kernel_shape = [1, 1]>(x) y = Resize<mode = "linear", axes = [2, 3]>(c, , by_2) ->\
 ReorderInput MaxPool ReorderOutput Resize
c = MaxPool<kernel_shape = [1, 1]>(x) y = Resize<mode = "linear", axes = [2, 3]>(c, , , two_sizes)\
 -> ReorderInput MaxPool ReorderOutput Resize
c = MaxPool<kernel_shape = [1, 1]>(sym) y = Resize<mode = "linear">(c, , , sizes) -> ReorderInput\
 MaxPool ReorderOutput Resize
c = MaxPool<kernel_shape = [1, 1]>(x) b = Abs(region) y = Resize<mode = "linear">(c, b, by_6) ->\
 ReorderInput MaxPool Upsample ReorderOutput
"""),
)
def test_a_resize_by_axes_or_of_a_plain_value_stays(body: str, expected: str) -> None:
    assert optimized_resizes(body) == expected


@pytest.mark.parametrize(
    ("resize", "opset", "expected"),
    [
        ("Resize(c, by_6)", 10, "ReorderInput MaxPool Upsample ReorderOutput"),
        ('Resize<mode = "linear">(c, by_6)', 10, "ReorderInput MaxPool Upsample ReorderOutput"),
        ("Upsample(c, by_6)", 9, "ReorderInput MaxPool Upsample ReorderOutput"),
        ('Upsample<mode = "linear">(c, by_6)', 9, "ReorderInput MaxPool Upsample ReorderOutput"),
        ("Upsample(c, by_5)", 9, "ReorderInput MaxPool ReorderOutput Upsample"),
        (
            "Upsample<scales = [1.0, 1.0, 2.0, 3.0]>(c)",
            7,
            "ReorderInput MaxPool ReorderOutput Upsample",
        ),
    ],
)
def test_a_resize_before_version_11_is_asymmetric(resize: str, opset: int, expected: str) -> None:
    assert optimized_resizes(f"{POOL} y = {resize}", opset) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
y = Transpose<perm = [0, 2, 3, 1]>(a) -> ReorderInput Conv ReorderOutput
y = Transpose<perm = [0, 3, 2, 1]>(a) -> ReorderInput Conv ReorderOutput Transpose
y = Transpose(a) -> ReorderInput Conv ReorderOutput Transpose
y = Transpose<perm = [0, 2, 3, 1]>(a) z = Softmax(a) -> ReorderInput Conv ReorderOutput\
 ReorderOutput Softmax
"""),
)
def test_a_transpose_to_channels_last_becomes_reorder_output(body: str, expected: str) -> None:
    assert optimized_resizes(f"a = Conv(x, w17) {body}") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Transpose<perm = [0, 3, 1, 2]>(last) y = Conv(a, w) -> ReorderInput Conv ReorderOutput
a = Transpose<perm = [0, 3, 1, 2]>(last) y = MaxPool<kernel_shape = [1, 1]>(a) -> ReorderInput\
 MaxPool ReorderOutput
a = Transpose<perm = [0, 3, 1, 2]>(last) y = Conv(a, w) z = Conv(a, w2) -> Transpose ReorderInput\
 Conv ReorderOutput Conv ReorderOutput
a = Transpose<perm = [0, 3, 1, 2]>(last) b = Softmax<axis = 1>(a) y = Conv(b, w) -> Transpose\
 Softmax ReorderInput Conv ReorderOutput
a = Transpose<perm = [0, 3, 1, 2]>(last) y = GlobalAveragePool(a) -> Transpose GlobalAveragePool
z = Transpose<perm = [0, 3, 1, 2]>(last) y = Conv(z, w) -> Transpose ReorderInput Conv ReorderOutput
a = Transpose<perm = [0, 3, 2, 1]>(last) y = Conv(a, w) -> Transpose ReorderInput Conv ReorderOutput
a = Transpose<perm = [0, 3, 1, 2]>(few_last) y = Conv(a, few) -> Transpose Conv ReorderOutput
"""),
)
def test_a_transpose_from_channels_last_is_fused_into_reorder_input(
    body: str, expected: str
) -> None:
    assert optimized_resizes(body) == expected


SUM_IMAGES = """agraph (float[2,16,7,11] x, float[n,16,h,v] sym, float[n,16,h,u] other,
  float[n,16,h,t] third, float[1,16,1,1] factors) => ({outputs})
  <float[16,16,1,1] w, float[16,16,1,1] w2, float[17,16,1,1] w17, float[16,16,3,3] w3,
   float[1,16,1,1] one_channel, float[1,16,1,1] scale, float[16,1,1] scale3, float[17,1,1] scale17,
   float[1,16,7,1] rows, float[1,1,1] ones, float[1] one>
  {{ {body} }}"""
CONVS = "a = Conv(x, w) b = Conv(x, w2)"


def optimized_sums(body: str, opset: int = 21) -> str:
    """The operators after optimization; their order in onnxruntime differs between processes."""
    outputs = "y, z" if re.search(r"\bz( =|, )", body) else "y"
    text = SUM_IMAGES.format(outputs=outputs, body=body)
    return " ".join(compare_with_onnxruntime(text, opset=opset, has_order=False))


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
y = Add(a, b) -> ReorderInput Conv Conv ReorderOutput
y = Sum(a, b) -> ReorderInput Conv Conv ReorderOutput
c = Add(a, b) y = Relu(c) -> ReorderInput Conv Conv ReorderOutput
y = Add(a, b) z = MaxPool<kernel_shape = [2, 2]>(a) -> ReorderInput Conv Conv ReorderOutput\
 MaxPool ReorderOutput
y = Add(a, a) -> ReorderInput Conv Add ReorderOutput Conv
c = Relu(a) d = Relu(b) y = Add(c, d) -> ReorderInput Conv Conv Add ReorderOutput
y = Sum(a) -> ReorderInput Conv Sum ReorderOutput Conv
y = Add(a, x) -> ReorderInput Conv Conv ReorderOutput Add
y = Sub(a, b) -> ReorderInput Conv ReorderOutput Conv ReorderOutput Sub
c = Conv(x, one_channel) y = Add(a, c) -> ReorderInput Conv Conv ReorderOutput Conv ReorderOutput\
 Add
c = MaxPool<kernel_shape = [1, 1]>(x) y = Add(c, scale) -> ReorderInput Conv Conv MaxPool\
 ReorderOutput Add
c = Add(a, b) d = MaxPool<kernel_shape = [1, 1]>(x) y = Add(c, d) -> ReorderInput Conv Conv\
 MaxPool Add ReorderOutput
c = MaxPool<kernel_shape = [1, 1]>(x) y = Sum(a, b, c) -> ReorderInput Conv Conv MaxPool Sum\
 ReorderOutput
"""),
)
def test_an_add_is_fused_into_a_convolution_with_no_other_reader(body: str, expected: str) -> None:
    assert optimized_sums(f"{CONVS} {body}") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
a = Conv(sym, w) b = Conv(sym, w2) y = Add(a, b) -> ReorderInput Conv Reshape Conv Reshape Add\
 Reshape ReorderOutput
a = Conv(sym, w) b = Conv(other, w) y = Sum(a, b) -> ReorderInput Conv Reshape ReorderInput Conv\
 Reshape Sum Reshape ReorderOutput
a = Conv(sym, w) b = Conv(other, w) y = Mul(a, b) -> ReorderInput Conv ReorderOutput ReorderInput\
 Conv ReorderOutput Mul
a = Conv(sym, w) b = Conv(other, w) c = Add(a, b) y = Conv(c, w) -> ReorderInput Conv Reshape\
 ReorderInput Conv Reshape Add Reshape Conv ReorderOutput
a = Conv(sym, w) b = Conv(other, w) c = Conv(third, w) d = Add(a, b) y = Add(d, c) -> ReorderInput\
 Conv Reshape ReorderInput Conv Reshape ReorderInput Conv Reshape Add Reshape Reshape Add Reshape\
 ReorderOutput
a = Conv(sym, w17) b = Conv(other, w17) y = Add(a, b) z = Add(b, a) -> ReorderInput Conv Reshape\
 ReorderInput Conv Reshape Add Reshape ReorderOutput Reshape Reshape Add Reshape ReorderOutput
a = Conv(x, w) b = GlobalAveragePool(a) y = Add(a, b) -> ReorderInput Conv GlobalAveragePool\
 Reshape Reshape Add Reshape ReorderOutput
a = Conv(x, w) b = GlobalAveragePool(a) y = Mul(a, b) -> ReorderInput Conv GlobalAveragePool\
 ReorderOutput ReorderOutput Mul
"""),
)
def test_an_add_of_blocked_values_that_may_broadcast_is_reshaped(body: str, expected: str) -> None:
    assert optimized_sums(body) == expected


@pytest.mark.parametrize(
    ("conv", "pool", "expected"),
    cases("""
pads = [1, 1, 1, 1] -> kernel_shape = [3, 3], pads = [1, 1, 1, 1] -> ReorderInput Conv MaxPool\
 Conv ReorderOutput
pads = [1, 1, 1, 1] -> kernel_shape = [1, 1] -> ReorderInput Conv MaxPool Conv ReorderOutput
strides = [2, 2], pads = [1, 1, 1, 1] -> kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1,\
 1] -> ReorderInput Conv MaxPool Conv ReorderOutput
strides = [2, 2], pads = [1, 1, 1, 1] -> kernel_shape = [3, 3], pads = [1, 1, 1, 1] ->\
 ReorderInput Conv Conv Reshape MaxPool Reshape Add Reshape ReorderOutput
strides = [3, 3], pads = [1, 1, 1, 1] -> kernel_shape = [3, 3], strides = [3, 3], pads = [1, 1, 1,\
 1] -> ReorderInput Conv Conv Reshape MaxPool Reshape Add Reshape ReorderOutput
strides = [1, 1] -> kernel_shape = [3, 3] -> ReorderInput Conv Conv Reshape MaxPool Reshape Add\
 Reshape ReorderOutput
dilations = [2, 2], pads = [2, 2, 2, 2] -> kernel_shape = [1, 1] -> ReorderInput Conv Conv Reshape\
 MaxPool Reshape Add Reshape ReorderOutput
auto_pad = "SAME_UPPER" -> kernel_shape = [3, 3], auto_pad = "SAME_LOWER" -> ReorderInput Conv\
 MaxPool Conv ReorderOutput
auto_pad = "SAME_LOWER" -> kernel_shape = [1, 1] -> ReorderInput Conv MaxPool Conv ReorderOutput
auto_pad = "VALID" -> kernel_shape = [1, 1] -> ReorderInput Conv Conv Reshape MaxPool Reshape Add\
 Reshape ReorderOutput
pads = [1, 1, 1, 1] -> kernel_shape = [1, 1], auto_pad = "VALID" -> ReorderInput Conv MaxPool Conv\
 ReorderOutput
pads = [1, 1, 1, 1] -> kernel_shape = [2, 3], pads = [1, 1, 1, 1] -> ReorderInput Conv Conv\
 Reshape MaxPool Reshape Add Reshape ReorderOutput
"""),
)
def test_windows_keep_halve_or_change_a_dim(conv: str, pool: str, expected: str) -> None:
    assert (
        optimized_sums(
            f"a = Conv(sym, w) b = Conv<{conv}>(a, w3) c = MaxPool<{pool}>(a) y = Add(c, b)"
        )
        == expected
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    cases("""
y = Concat<axis = 1>(a, b) -> ReorderInput Conv Conv Concat ReorderOutput
y = Concat<axis = -3>(a, b) -> ReorderInput Conv ReorderOutput Conv ReorderOutput Concat
y = Concat<axis = 2>(a, b) -> ReorderInput Conv ReorderOutput Conv ReorderOutput Concat
y = Concat<axis = 1>(a, x) -> ReorderInput Conv Conv ReorderOutput Concat
y = Concat<axis = 1>(a, a) -> ReorderInput Conv Concat ReorderOutput Conv
c = Concat<axis = 1>(a, b) d = Concat<axis = 1>(b, a) y = Add(c, d) -> ReorderInput Conv Conv\
 Concat Concat Add ReorderOutput
c = Conv(x, w17) y = Concat<axis = 1>(a, c) -> ReorderInput Conv Conv ReorderOutput Conv\
 ReorderOutput Concat
"""),
)
def test_a_blocked_concat_needs_whole_blocks_of_channels(body: str, expected: str) -> None:
    assert optimized_sums(f"{CONVS} {body}") == expected
