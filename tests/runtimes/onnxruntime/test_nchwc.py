"""Convolutions and poolings on blocks of channels, where onnxruntime puts them on blocks."""

import pytest
from optimized_graphs import agrees, parsed

from onnxmem.model.building import prepare
from onnxmem.model.files import ModelFile
from onnxmem.runtimes.onnxruntime.cpu import AVX2, AVX512, Cpu
from onnxmem.runtimes.onnxruntime.optimizer.pipeline import optimized

pytestmark = pytest.mark.measure

IMAGES = """agraph (float[2,16,7,11] x, float[2,32,7,11] wide, float[2,3,7,11] colours,
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


def left_of(body: str, opset: int = 21) -> str:
    """What is left of the nodes with AVX-512, whatever this CPU is, on which both agree.

    The order of the nodes varies in onnxruntime from process to process.
    """
    outputs = "y, z" if "z =" in body else "y"
    text = IMAGES.format(outputs=outputs, body=body)
    agrees(text, opset=opset, has_order=False)
    prepared = prepare(ModelFile("<text>", parsed(text, opset), 0)).proto
    return " ".join(node.op_type for node in optimized(prepared, "all", cpu=AVX512).graph.node)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("y = Conv(x, w)", "ReorderInput Conv ReorderOutput"),
        ("y = Conv(wide, w32)", "ReorderInput Conv ReorderOutput"),
        ("y = Conv(x, w17)", "ReorderInput Conv ReorderOutput"),
        ("y = Conv(by_fours, w20)", "ReorderInput Conv ReorderOutput"),
        ("y = Conv(odd, odd_w)", "Conv"),
        ("y = Conv(colours, w3)", "Conv ReorderOutput"),
        ("y = Conv(line, w1d)", "Conv"),
        ("y = Conv(volume, w3d)", "Conv"),
        ("y = Conv(half, half_w)", "Cast ReorderInput Conv ReorderOutput Cast"),
        ("y = Conv(x, fed_filter)", "Conv"),
        ("a = Abs(fed_filter) y = Conv(x, a)", "Abs Conv"),
    ],
)
def test_a_convolution_asks_for_channels_in_fours(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("y = Conv(x, w, b)", "ReorderInput Conv ReorderOutput"),
        ("y = Conv(x, w17, b17)", "ReorderInput Conv ReorderOutput"),
        ("y = Conv(x, w, fed)", "Conv"),
        (
            "y = Conv(x, w17, b17) z = Conv<strides = [2, 2]>(x, w17, b17)",
            "ReorderInput Conv ReorderOutput Conv ReorderOutput",
        ),
    ],
)
def test_a_bias_is_a_constant_and_padded_with_the_channels(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("y = Conv<group = 32>(wide, each)", "ReorderInput Conv ReorderOutput"),
        (
            "a = Concat<axis = 1>(by_fours, x) y = Conv<group = 36>(a, each36)",
            "Concat ReorderInput Conv ReorderOutput",
        ),
        ("a = Concat<axis = 1>(by_fours, odd) y = Conv<group = 37>(a, each37)", "Concat Conv"),
        ("y = Conv<group = 16>(x, twice)", "Conv"),
        ("y = Conv<group = 2>(wide, halves)", "ReorderInput Conv ReorderOutput"),
        ("y = Conv<group = 2>(wide, small_out)", "Conv"),
        ("y = Conv<group = 2>(x, small_in)", "Conv"),
    ],
)
def test_a_convolution_in_groups(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (
            "y = Conv(x, w) z = Conv<strides = [2, 2]>(x, w)",
            "ReorderInput Conv ReorderOutput Conv ReorderOutput",
        ),
        ("a = Conv(x, w) y = Conv(a, one)", "ReorderInput Conv Conv ReorderOutput"),
        ("y = Conv(x, w) z = Conv(x, one)", "ReorderInput Conv ReorderOutput Conv ReorderOutput"),
        ("y = Conv(x, w) z = Softmax(y)", "ReorderInput Conv ReorderOutput Softmax"),
        (
            "a = Conv(x, w) y = MaxPool<kernel_shape = [3, 3]>(a) z = Softmax(a)",
            "ReorderInput Conv MaxPool ReorderOutput ReorderOutput Softmax",
        ),
    ],
)
def test_what_is_reordered_once_is_shared(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "opset", "left"),
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
def test_versions_of_convolutions_and_poolings(body: str, opset: int, left: str) -> None:
    assert left_of(body, opset) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("y = MaxPool<kernel_shape = [3, 3]>(x)", "ReorderInput MaxPool ReorderOutput"),
        (
            "y = MaxPool<kernel_shape = [3, 3], ceil_mode = 1, strides = [2, 2]>(x)",
            "ReorderInput MaxPool ReorderOutput",
        ),
        (
            "y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(wide)",
            "ReorderInput AveragePool ReorderOutput",
        ),
        ("y, z = MaxPool<kernel_shape = [3, 3]>(x)", "MaxPool"),
        ("y = MaxPool<kernel_shape = [3, 3]>(by_fours)", "MaxPool"),
        ("y = MaxPool<kernel_shape = [3]>(line)", "MaxPool"),
        ("y = MaxPool<kernel_shape = [3, 3]>(unknown)", "MaxPool"),
        ("y = MaxPool<kernel_shape = [3, 3]>(half)", "Cast MaxPool Cast"),
        ("y = MaxPool<kernel_shape = [3, 3]>(double)", "MaxPool"),
        ("y = MaxPool<kernel_shape = [3, 3]>(int8)", "MaxPool"),
        (
            "a = Conv(x, w17) y = MaxPool<kernel_shape = [3, 3]>(a)",
            "ReorderInput Conv ReorderOutput MaxPool",
        ),
        ("y = LpPool<kernel_shape = [3, 3]>(x)", "LpPool"),
    ],
)
def test_a_pooling_asks_for_whole_blocks_of_channels(body: str, left: str) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (
            "a = Conv(x, w) y = GlobalAveragePool(a)",
            "ReorderInput Conv GlobalAveragePool ReorderOutput",
        ),
        ("a = Conv(x, w) y = GlobalMaxPool(a)", "ReorderInput Conv GlobalMaxPool ReorderOutput"),
        (
            "a = Conv(x, w17) y = GlobalAveragePool(a)",
            "ReorderInput Conv ReorderOutput GlobalAveragePool",
        ),
        ("y = GlobalAveragePool(x)", "ReorderInput GlobalAveragePool ReorderOutput"),
        ("y = GlobalAveragePool(odd)", "GlobalAveragePool"),
        ("a = Softmax(x) y = GlobalMaxPool(a)", "Softmax GlobalMaxPool"),
        (
            "a = GlobalMaxPool(x) y = GlobalAveragePool(a)",
            "ReorderInput GlobalMaxPool GlobalAveragePool ReorderOutput",
        ),
        (
            "a = Conv(x, w) c = Transpose<perm = [0, 2, 3, 1]>(a) y = GlobalAveragePool(c)",
            "ReorderInput Conv ReorderOutput GlobalAveragePool",
        ),
        (
            "a = Conv(x, w) c = Transpose<perm = [0, 3, 2, 1]>(a) y = GlobalAveragePool(c)",
            "ReorderInput Conv ReorderOutput Transpose GlobalAveragePool",
        ),
        (
            "a = Conv(square, one) c = Transpose<perm = [0, 2, 3, 1]>(a) y = GlobalAveragePool(c)",
            "ReorderInput Conv ReorderOutput ReorderInput GlobalAveragePool ReorderOutput",
        ),
    ],
)
def test_a_global_pooling_follows_blocks_and_takes_graph_inputs_into_them(
    body: str, left: str
) -> None:
    assert left_of(body) == left


@pytest.mark.parametrize(
    "branch",
    [
        "u = Conv(x, one)",
        "u = Conv(x, filter, b)",
        "u = Conv(x, filter)",
        "a = Conv(x, filter) u = Relu(a)",
    ],
)
def test_a_subgraph_has_blocks_where_the_filter_is_its_own(branch: str) -> None:
    filled = "d = Constant<value = int64[4] {16, 16, 1, 1}>() filter = ConstantOfShape(d)"
    then = f"then () => (float[2,16,7,11] u) {{ {filled if 'filter' in branch else ''} {branch} }}"
    other = "other () => (float[2,16,7,11] v) { v = Identity(x) }"
    assert left_of(f"y = If (k) <then_branch = {then}, else_branch = {other}>") == "If"


@pytest.mark.parametrize(("cpu", "padded"), [(AVX2, 24), (AVX512, 32)])
def test_channels_are_padded_to_blocks_of_either_size(cpu: Cpu, padded: int) -> None:
    text = IMAGES.format(outputs="y", body="y = Conv(x, w17, b17)")
    prepared = prepare(ModelFile("<text>", parsed(text, 21), 0))
    graph = optimized(prepared.proto, "all", cpu=cpu).graph
    dims = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    conv = next(node for node in graph.node if node.op_type == "Conv")
    assert [dims[name] for name in conv.input[1:]] == [[padded, 16, 3, 3], [padded]]
