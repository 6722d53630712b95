"""Shapes of onnxruntime's own operators: by a table, in onnxruntime itself, and of odd nodes."""

import onnx
import onnx.compose
import onnx.parser
import pytest
from graphs import graph_of, model_of

from onnxmem.measuring.measurement import Measurement
from onnxmem.measuring.measuring import MeasureSettings, measure
from onnxmem.model.shapes.microsoft import (
    as_onnx,
    blocked_types,
    channel_block,
    microsoft_types,
    with_channel_block,
)
from onnxmem.model.shapes.node_context import InferenceContext, broadcast
from onnxmem.model.shapes.onnx_rules import onnx_rule_types
from onnxmem.model.value_types import dense_type, shape_of
from onnxmem.ops.spec import Dims, Shape
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

MS, NCHWC, ML = "com.microsoft", "com.microsoft.nchwc", "ai.onnx.ml"
HEADER = f'<ir_version: 10, opset_import: ["": 21, "{MS}": 1, "{NCHWC}": 1, "{ML}": 3]>'
FLOAT, UINT8, INT8 = onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8, onnx.TensorProto.INT8

QUANTIZERS = ", float s = {0.5}, uint8 z = {1}, int8 i = {1}"
LSTM = "int8[1,5,44] w, int8[1,11,44] r, float[1] s1, int8[1] i1"
BOTH = "int8[2,5,44] w, int8[2,11,44] r, float[2] s1, int8[2] i1"
BIDIRECTIONAL = 'DynamicQuantizeLSTM <hidden_size = 11, direction = "bidirectional">'
EMBEDDING = "uint8[13,7] w, uint8[17,7] p, uint8[3,7] t, uint8[7] g"
IMAGE, LAST = "uint8[2,3,11,13] x", "uint8[2,11,13,3] x"
WINDOW = "kernel_shape = [3, 2], strides = [2, 2]"
ROWS = "1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0"
MICROSOFT = [
    # inputs | weights, operator, attributes, operands, outputs
    ("float[2,5,7] x, float[7] b", "BiasGelu(x, b)", "float32 2,5,7"),
    ("float[2,5,7] x, float[7] b", "FastGelu(x, b)", "float32 2,5,7"),
    ("float[2,5,7] x", "Gelu(x)", "float32 2,5,7"),
    ("float[2,5,7] x", "QuickGelu(x)", "float32 2,5,7"),
    ("float[2,5,7] x", "Trilu(x)", "float32 2,5,7"),
    ("float[2,5,5] x", "Inverse(x)", "float32 2,5,5"),
    ("float[11,7] a, float[3,7] b", 'CDist <metric = "euclidean"> (a, b)', "float32 11,3"),
    ("float[2,7,5] a, float[2,7,3] b", "FusedMatMul <transA = 1> (a, b)", "float32 2,5,3"),
    ("float[2,5,7] a, float[2,3,7] b", "FusedMatMul <transB = 1> (a, b)", "float32 2,5,3"),
    ("float[5,2,7] a, float[2,7,3] b", "FusedMatMul <transBatchA = 1> (a, b)", "float32 2,5,3"),
    ("float[7] a, float[7,3] b", "FusedMatMul(a, b)", "float32 3"),
    ("float[5,7] a, float[7] b", "FusedMatMul(a, b)", "float32 5"),
    (
        "float[5,7] a, float[7,3] b, float[3] c",
        'FusedGemm <activation = "Relu"> (a, b, c)',
        "float32 5,3",
    ),
    (
        "float[2,3,11,13] x, float[5,3,3,3] w, float[5] b",
        'FusedConv <activation = "Relu"> (x, w, b)',
        "float32 2,5,9,11",
    ),
    ("float[2,5,7] x | int64[3,2] k", "GatherND(x, k)", "float32 3,7"),
    ("float[1,3,11,13] x, float[1,5,7,2] g", "GridSample(x, g)", "float32 1,3,5,7"),
    ("float[2,5,7] x | int64[6] k = {0, 1, 0, 0, 0, 2}", "Pad(x, k)", "float32 2,6,9"),
    (
        "float[2,5,7] x, float[2,5,7] k, float[7] g",
        "SkipLayerNormalization(x, k, g)",
        "float32 2,5,7",
    ),
    (
        "float[2,5,7] x, float[2,5,7] k, float[7] g",
        "SkipSimplifiedLayerNormalization(x, k, g)",
        "float32 2,5,7",
    ),
    (
        "float[5,64] x | uint8[96] b, float[3] m",
        "MatMulBnb4 <K = 64, N = 3, block_size = 64, quant_type = 1> (x, b, m)",
        "float32 5,3",
    ),
    (
        "int64[2,5] k | uint8[13,32] d, float[13,2] m",
        "GatherBlockQuantized <block_size = 32, gather_axis = 0, quantize_axis = 1> (d, k, m)",
        "float32 2,5,64",
    ),
    ("uint8[5,7] a, int8[7,3] b", "QGemm(a, s, z, b, s, i, , s, z)", "uint8 5,3"),
    ("int8[5,7] a, int8[7,3] b", "QGemm(a, s, i, b, s, i, , s, i)", "int8 5,3"),
    ("uint8[5,7] a, int8[7,3] b", "QGemm(a, s, z, b, s, i)", "float32 5,3"),
    (
        "uint8[7,5] a, int8[3,7] b",
        "QGemm <transA = 1, transB = 1> (a, s, z, b, s, i)",
        "float32 5,3",
    ),
    ("uint8[5,7] a, uint8[3,5,7] b", "QLinearAdd(a, s, z, b, s, z, s, z)", "uint8 3,5,7"),
    ("uint8[5,1] a, uint8[7] b", "QLinearMul(a, s, z, b, s, z, s, z)", "uint8 5,7"),
    ("uint8[5,7] a", "QLinearSigmoid(a, s, z, s, z)", "uint8 5,7"),
    ("uint8[5,7] a", "QLinearLeakyRelu(a, s, z, s, z)", "uint8 5,7"),
    ("uint8[5,7] a", "QLinearSoftmax <opset = 13> (a, s, z, s, z)", "uint8 5,7"),
    (
        "uint8[5,7] a, uint8[5,11] b",
        "QLinearConcat <axis = 1> (s, z, a, s, z, b, s, z)",
        "uint8 5,18",
    ),
    ("uint8[2,3,7,7] x, uint8[5,3,3,3] w", "QLinearConv(x, s, z, w, s, z, s, z)", "uint8 2,5,5,5"),
    (
        "uint8[2,7,7,3] x | uint8[5,3,3,3] w",
        "QLinearConv <channels_last = 1> (x, s, z, w, s, z, s, z)",
        "uint8 2,5,5,5",
    ),
    (IMAGE, f"QLinearAveragePool <{WINDOW}> (x, s, z, s, z)", "uint8 2,3,5,6"),
    (
        IMAGE,
        f"QLinearAveragePool <{WINDOW}, pads = [1, 0, 1, 0], ceil_mode = 1> (x, s, z, s, z)",
        "uint8 2,3,6,7",
    ),
    (LAST, f"QLinearAveragePool <{WINDOW}, channels_last = 1> (x, s, z, s, z)", "uint8 2,5,6,3"),
    (IMAGE, "QLinearGlobalAveragePool(x, s, z, s, z)", "uint8 2,3,1,1"),
    (LAST, "QLinearGlobalAveragePool <channels_last = 1> (x, s, z, s, z)", "uint8 2,1,1,3"),
    (LAST, f"NhwcMaxPool <{WINDOW}, pads = [1, 0, 1, 0]> (x)", "uint8 2,6,6,3"),
    (LAST, "NhwcMaxPool <kernel_shape = [3, 2], dilations = [2, 3]> (x)", "uint8 2,7,10,3"),
    (LAST, f'NhwcMaxPool <{WINDOW}, auto_pad = "SAME_UPPER"> (x)', "uint8 2,6,7,3"),
    (LAST, f'NhwcMaxPool <{WINDOW}, auto_pad = "VALID"> (x)', "uint8 2,5,6,3"),
    (
        "float[2,3,11,13] x, int32[2,3,11,13] k",
        f"MaxpoolWithMask <{WINDOW}> (x, k)",
        "float32 2,3,5,6",
    ),
    ("float[5,7] x", "QuantizeLinear(x, s, z)", "uint8 5,7"),
    ("float[5,7] x", "QuantizeLinear(x, s, i)", "int8 5,7"),
    ("uint8[5,7] x", "DequantizeLinear(x, s, z)", "float32 5,7"),
    ("float[2,5,7] x | int8[7,3] b", "DynamicQuantizeMatMul(x, b, s, i)", "float32 2,5,3"),
    ("uint8[5,7] a, int8[7,3] b", "MatMulIntegerToFloat(a, b, s, s, z, i)", "float32 5,3"),
    ("int16[5,7] a, int16[7,3] b", "MatMulInteger16(a, b)", "int32 5,3"),
    (
        "float[7,2,5] x | " + LSTM,
        "DynamicQuantizeLSTM <hidden_size = 11> (x, w, r, , , , , , s1, i1, s1, i1)",
        "float32 7,1,2,11; float32 1,2,11; float32 1,2,11",
    ),
    (
        "float[7,2,5] x | " + BOTH,
        f"{BIDIRECTIONAL} (x, w, r, , , , , , s1, i1, s1, i1)",
        "float32 7,2,2,11; float32 2,2,11; float32 2,2,11",
    ),
    (
        "int32[2,5] k, int32[2,5] t0 | " + EMBEDDING,
        "QEmbedLayerNormalization(k, t0, w, p, t, g, g, , s, s, s, s, s, z, z, z, z, z)",
        "float32 2,5,7; int32 2",
    ),
]
LEARNING = [
    ("float[5,7] x", "Scaler <offset = [0.5], scale = [2.0]> (x)", "float32 5,7"),
    ("int64[5,7] x", "Scaler <offset = [0.5], scale = [2.0]> (x)", "float32 5,7"),
    ("double[5,7] x", 'Normalizer <norm = "L2"> (x)', "float32 5,7"),
    (
        "float[5,7] x",
        "Imputer <imputed_value_floats = [1.0], replaced_value_float = 0.0> (x)",
        "float32 5,7",
    ),
    (
        "float[5,7] x",
        f"LinearRegressor <coefficients = [{ROWS}, {ROWS}], targets = 2> (x)",
        "float32 5,2",
    ),
    ("float[7] x", f"LinearRegressor <coefficients = [{ROWS}]> (x)", "float32 1,1"),
    ("float[5,7] x, int64[3] k", "ArrayFeatureExtractor(x, k)", "float32 5,3"),
    ("float[7] x, int64[3] k", "ArrayFeatureExtractor(x, k)", "float32 1,3"),
    (
        "float[5,7] x, float[5,3] k",
        "FeatureVectorizer <inputdimensions = [7, 3]> (x, k)",
        "float32 5,10",
    ),
]
NORMALIZING = [
    ("float[2,5,7] x, float[7] g", "LayerNormalization(x, g)", "float32 2,5,7; float32 2,5,1"),
    (
        "float[2,5,7] x, float[5,7] g",
        "LayerNormalization <axis = 1> (x, g)",
        "float32 2,5,7; float32 2,1,1; float32 2,1,1",
    ),
    ("float[2,5,7] x, float[7] g", "SimplifiedLayerNormalization(x, g)", "float32 2,5,7"),
]
"""LayerNormalization in ONNX's domain: onnxruntime has it under opsets that do not."""
UNRUN = [
    ("float[2,5,7] x, float[7] b", "BiasSoftmax <axis = 2> (x, b)", "float32 2,5,7"),
    (
        "float16[2,11,13,3] x, float16[5,3,3,3] w",
        "NhwcFusedConv <strides = [2, 2]> (x, w)",
        "float16 2,5,6,5",
    ),
    ("float[2,5,7] x", "SVMRegressor(x)", "float32 2,1"),
]
"""No kernel for a CPU, or none that runs without a trained model."""
Case = tuple[str, str, str]


def text_of(case: Case, domain: str, header: str = HEADER) -> str:
    """One node, whose outputs are the graph's."""
    operands, node, made = case
    inputs, _, weights = operands.partition(" | ")
    outputs = ", ".join(f"y{place}" for place in range(made.count(";") + 1))
    stored = (weights + QUANTIZERS).removeprefix(", ")
    operator = f"{domain}.{node}" if domain else node
    return f"{header} agraph ({inputs}) => ({outputs}) <{stored}> {{ {outputs} = {operator} }}"


def found_of(text: str) -> str:
    """Element types and shapes of a graph's outputs."""
    graph = graph_of(text)
    tensors = (graph.tensors[name] for name in graph.outputs)
    return "; ".join(f"{t.dtype} {','.join(map(str, t.shape or '?'))}" for t in tensors)


@pytest.mark.parametrize("case", MICROSOFT, ids=lambda case: case[1])
def test_shapes_of_operators_that_the_optimizer_adds(case: Case) -> None:
    assert found_of(text_of(case, MS)) == case[2]


@pytest.mark.parametrize("case", LEARNING, ids=lambda case: case[1])
def test_shapes_of_machine_learning_operators(case: Case) -> None:
    assert found_of(text_of(case, ML)) == case[2]


@pytest.mark.parametrize("case", NORMALIZING, ids=lambda case: case[1])
def test_layer_normalization_under_an_opset_without_it(case: Case) -> None:
    header = HEADER.replace('"": 21', '"": 14')
    assert found_of(text_of(case, "", header)) == case[2]


@pytest.mark.parametrize("case", UNRUN, ids=lambda case: case[1])
def test_shapes_of_operators_without_a_cpu_kernel(case: Case) -> None:
    domain = ML if case[1].startswith("SVM") else MS
    assert found_of(text_of(case, domain)) == case[2]


# In onnxruntime


def together(opset: int) -> tuple[onnx.ModelProto, list[list[Dims]]]:
    """All cases of one opset in one model, and their expected shapes."""
    header = HEADER.replace('"": 21', f'"": {opset}')
    groups = [(MICROSOFT, MS), (LEARNING, ML)] if opset > 17 else [(NORMALIZING, "")]
    cases = [(case, domain) for group, domain in groups for case in group]
    whole = model_of(text_of(*cases[0], header))
    del whole.graph.node[:], whole.graph.input[:], whole.graph.output[:], whole.graph.initializer[:]
    for place, (case, domain) in enumerate(cases):
        part = model_of(text_of(case, domain, header))
        part = onnx.compose.add_prefix(part, f"c{place}/")
        whole.graph.MergeFrom(part.graph)
        whole.graph.node[-1].name = f"case{place}"
    said = [
        [tuple(map(int, made.split()[1].split(","))) for made in case[2].split(";")]
        for case, _ in cases
    ]
    return whole, said


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
@pytest.mark.parametrize("opset", [21, 14])
def test_onnxruntime_computes_these_shapes(opset: int) -> None:
    pytest.importorskip("onnxruntime")
    model, said = together(opset)
    settings = MeasureSettings(options=SessionOptions(level="off"), runs=1)
    found = measure(model, settings=settings)
    assert isinstance(found, Measurement)
    made = {node.name: node.output_shapes for node in found.nodes}
    assert [list(made[f"case{place}"]) for place in range(len(said))] == said


# Blocked images


BLOCKED = [
    ("float[2,3,7,7] x", "ReorderInput(x)", "float32 2,16,7,7"),
    ("float[2,7,7,3] x", "ReorderInput <channels_last = 1> (x)", "float32 2,16,7,7"),
    ("float[2,17,7,7] x", "ReorderInput(x)", "float32 2,32,7,7"),
    ("float[2,16,7,5] x", "ReorderOutput <channels = 3> (x)", "float32 2,3,7,5"),
    ("float[2,16,7,5] x", "ReorderOutput <channels = 3, channels_last = 1> (x)", "float32 2,7,5,3"),
    ("float[2,16,7,5] x", "Upsample <scales = [1, 1, 2, 3]> (x)", "float32 2,16,14,15"),
    ("float[2,16,7,5] x", "MaxPool <kernel_shape = [2, 2]> (x)", "float32 2,16,6,4"),
    ("float[2,16,7,5] x", "AveragePool <kernel_shape = [2, 2]> (x)", "float32 2,16,6,4"),
    ("float[2,16,7,5] x", "GlobalMaxPool(x)", "float32 2,16,1,1"),
    ("float[2,16,7,5] x", "GlobalAveragePool(x)", "float32 2,16,1,1"),
    (
        "float[2,16,7,5] x, float[2,32,7,5] k | float[32,16,1,1] w, float[32] b",
        'Conv <activation = "Relu"> (x, w, b, k)',
        "float32 2,32,7,5",
    ),
]


@pytest.mark.parametrize("case", BLOCKED, ids=lambda case: case[1])
def test_shapes_of_blocked_images(case: Case) -> None:
    assert found_of(text_of(case, NCHWC)) == case[2]


@pytest.mark.parametrize(("filters", "block"), [((32, 16), 16), ((32, 24), 8), ((8,), 8), ((), 16)])
def test_filters_determine_the_block_size_of_channels(filters: tuple[int, ...], block: int) -> None:
    model = onnx.ModelProto()
    graph = model.graph
    for place, size in enumerate(filters):
        graph.initializer.add(name=f"w{place}", dims=(size, 16, 1, 1), data_type=FLOAT)
        graph.node.add(op_type="Conv", domain=NCHWC, input=["x", f"w{place}"], output=["y"])
    graph.node.add(op_type="Conv", input=["x", "other"], output=["z"])
    graph.initializer.add(name="other", dims=(3, 3, 1, 1), data_type=FLOAT)
    graph.node.add(op_type="Conv", domain=NCHWC, input=["x"], output=["z"])
    graph.node.add(op_type="Conv", domain=NCHWC, input=["x", "made"], output=["z"])
    assert channel_block(model) == block
    outer = onnx.ModelProto()
    outer.graph.node.add(op_type="If").attribute.add(name="then_branch", type=5).g.CopyFrom(graph)
    assert channel_block(outer) == block


@pytest.mark.parametrize(("channels", "block"), [(48, 16), (24, 8), (13, 8)])
def test_pools_determine_the_block_size_of_channels(channels: int, block: int) -> None:
    """Images of pools are whole blocks; those of convolutions are padded."""
    text = f"""{HEADER} agraph (float[1,48,7,5] x, float[1,3,7,5] k) => (float[?] y, float[?] z) {{
        a = {NCHWC}.ReorderInput(x)  b = {NCHWC}.MaxPool <kernel_shape = [2, 2]> (a)
        c = {NCHWC}.GlobalAveragePool(b)  y = {NCHWC}.ReorderOutput <channels = {channels}> (c)
        e = {NCHWC}.ReorderInput(k)  f = {NCHWC}.Conv(e, k)
        g = {NCHWC}.MaxPool <kernel_shape = [2, 2]> (f)
        z = {NCHWC}.ReorderOutput <channels = 3> (g)
    }}"""
    model = onnx.parser.parse_model(text)
    assert channel_block(model) == block
    with_channel_block(model, 24 - block)
    assert channel_block(model) == 24 - block
    with_channel_block(model, 0)
    assert channel_block(model) == block


def test_a_block_of_eight_channels() -> None:
    case = ("float[2,3,7,7] x, float[24,8,1,1] w", "ReorderInput(x)", "float32 2,8,7,7")
    text = text_of(case, NCHWC).replace("{ y0", f"{{ u = {NCHWC}.Conv(v, m)  y0")
    text = text.replace("float s =", "float[2,8,7,7] v, float[24,8,1,1] m, float s =")
    assert found_of(text) == case[2]


@pytest.mark.parametrize(
    "node",
    [
        "ReorderOutput(x)",
        "Upsample(x)",
        "Upsample <scales = [2, 2]> (x)",
        "Upsample <scales = [1, 1, -2, 2]> (x)",
        "Upsample <scales = [1, 1, 9223372036854775807, 2]> (x)",
        "ReorderOutput <channels = -3> (x)",
        "Conv(x)",
    ],
)
def test_a_partly_known_blocked_image_is_unknown(node: str) -> None:
    types = {"x": dense_type(FLOAT, (2, 16, 7, 5))}
    assert blocked_types(onnx.parser.parse_node(f"y = {NCHWC}.{node}"), types, 16) == {}


def test_other_ranks_and_domains_are_not_blocked_images() -> None:
    node = onnx.parser.parse_node(f"y = {NCHWC}.ReorderInput(x)")
    for types in ({"x": dense_type(FLOAT, (2, 3, 5))}, {"x": onnx.TypeProto()}, {}):
        assert blocked_types(node, types, 16) == {}
    other = onnx.parser.parse_node("y = ReorderInput(x)")
    assert blocked_types(other, {"x": dense_type(FLOAT, (2, 3, 5, 5))}, 16) == {}


# Twins


def test_an_equivalent_node_has_attributes_and_inputs_of_onnxs_schema() -> None:
    node = onnx.parser.parse_node(
        f'y = {NCHWC}.Conv <activation = "Relu", strides = [2, 2]> (x, w, b, sum)'
    )
    twin = as_onnx(node, 21)
    assert (twin.domain, twin.op_type, list(twin.input)) == ("", "Conv", ["x", "w", "b"])
    assert [attribute.name for attribute in twin.attribute] == ["strides"]
    assert as_onnx(twin, 21) is twin


def test_an_equivalent_operator_can_be_missing_in_onnx() -> None:
    node = onnx.parser.parse_node(f"y = {MS}.GridSample(x, g)")
    assert as_onnx(node, 15) is node
    assert as_onnx(node, 16).domain == ""


# Odd nodes


def types_of(node: str, **shapes: Dims) -> dict[str, Shape | None]:
    """The inferred types of a node's outputs; one operand of floats for each letter."""
    types = {name: dense_type(FLOAT, dims) for name, dims in shapes.items()}
    parsed = onnx.parser.parse_node(node)
    found = microsoft_types(parsed, types) | onnx_rule_types(parsed, types)
    return {name: shape_of(proto) for name, proto in found.items()}


@pytest.mark.parametrize(
    "node",
    [
        f"y = {MS}.Gelu()",
        f"y = {MS}.Gelu(u)",
        f"y = {MS}.FusedMatMul(x)",
        f"y = {MS}.FusedMatMul(x, u)",
        f"y = {MS}.FusedMatMul(x, n)",
        f"y = {MS}.FusedMatMul(x, o)",
        f"y = {MS}.CDist(x, o)",
        f"y = {MS}.CDist(u, x)",
        f"y = {MS}.MatMulBnb4(x)",
        f"y = {MS}.MatMulBnb4 <N = 3> (o)",
        f"y = {MS}.MatMulBnb4 <N = -3> (x)",
        f"y = {MS}.GatherBlockQuantized(x, u, x)",
        f"y = {MS}.GatherBlockQuantized(u, x, x)",
        f"y = {MS}.GatherBlockQuantized <gather_axis = 3> (x, x, x)",
        f"y = {MS}.QGemm(x, s, z, u)",
        f"y = {MS}.QGemm(u, s, z, x)",
        f"y = {MS}.QGemm(x, s, z, x)",
        f"y = {MS}.QGemm(m, s, z, x)",
        f"y = {MS}.QLinearAdd(x, s, z, m, s, z)",
        f"y = {MS}.QLinearAdd(x, s, z, u, s, z)",
        f"y = {MS}.QuantizeLinear(x, x, u)",
        f"y = {MS}.DynamicQuantizeLSTM(u, x, x)",
        f"y = {MS}.DynamicQuantizeLSTM(x, x, u)",
        f"y = {MS}.DynamicQuantizeLSTM(m, x, x)",
        f"y = {MS}.DynamicQuantizeLSTM(x, x, m)",
        f"y = {MS}.QEmbedLayerNormalization(u, x, m)",
        f"y = {MS}.QEmbedLayerNormalization(x, x, u)",
        f"y = {MS}.QEmbedLayerNormalization(x, x, x)",
        f"y = {MS}.NhwcMaxPool(u)",
        f"y = {MS}.NhwcMaxPool(m)",
        f"y = {MS}.NhwcMaxPool(x)",
        f"y = {MS}.NhwcMaxPool <kernel_shape = [3, 3]> (x)",
        f"y = {MS}.NhwcMaxPool <kernel_shape = [3], strides = [0]> (x)",
        f"y = {MS}.NhwcMaxPool <kernel_shape = [3], pads = [1]> (x)",
        f"y = {MS}.NhwcMaxPool <kernel_shape = [3], pads = [-1, 0]> (x)",
        f"y = {MS}.NhwcMaxPool <kernel_shape = [9]> (x)",
        f"y = {MS}.QLinearGlobalAveragePool(u)",
        f"y = {MS}.QLinearGlobalAveragePool(m)",
        f"y = {MS}.NhwcFusedConv(x, u)",
        f"y = {MS}.NhwcFusedConv(u, x)",
        f"y = {MS}.NhwcFusedConv(m, x)",
        f"y = {MS}.QLinearConv(x, x, x, u, x, x, x, x)",
        f"y = {MS}.QLinearConv <kernel_shape = [9, 9]> (x, x, x, m, x, x, x, x)",
        f"y = {MS}.NoSuchOperator(x)",
        "y = LayerNormalization <axis = 3> (x, u)",
        "y = LayerNormalization(u, u)",
        "y = Gelu(x)",
        f"y = {ML}.LinearRegressor(u)",
        f"y = {ML}.LinearRegressor(o)",
        f"y = {ML}.SVMRegressor(u)",
        f"y = {ML}.FeatureVectorizer(x)",
        f"y = {ML}.FeatureVectorizer <inputdimensions = [7]> (u)",
        f"y = {ML}.FeatureVectorizer <inputdimensions = [9223372036854775807, 3]> (x)",
        f"y = {ML}.ArrayFeatureExtractor(x, u)",
        f"y = {ML}.ArrayFeatureExtractor(u, x)",
    ],
)
def test_invalid_or_unknown_operands_give_unknown_shapes(node: str) -> None:
    """Operands x: [2,5,7], m: [3,5], n: [9,9,1], o: [], and u, which is unknown."""
    assert types_of(node, x=(2, 5, 7), m=(3, 5), n=(9, 9, 1), o=()) == {}


def test_omitted_outputs_have_no_type() -> None:
    norm = f"y, , , k = {MS}.SkipLayerNormalization(x, x, g)"
    assert types_of(norm, x=(2, 5, 7)) == {"y": (2, 5, 7), "k": (2, 5, 7)}
    assert types_of("y, , d = LayerNormalization(x, g)", x=(2, 7)) == {"y": (2, 7), "d": (2, 1)}


def test_windows_that_begin_beyond_the_image_are_dropped() -> None:
    # Four windows of one place at 0, 4, 8, 12: the last would begin in the padding behind ten.
    node = f"y = {MS}.NhwcMaxPool <kernel_shape = [1], strides = [4], pads = [0, 2], ceil_mode = 1>"
    assert types_of(f"{node} (x)", x=(2, 10, 3)) == {"y": (2, 3, 3)}


def test_tables_of_other_types_are_gathered_unchanged() -> None:
    node = f"y = {MS}.GatherBlockQuantized <gather_axis = -2, bits = 0> (x, k, x)"
    assert types_of(node, x=(13, 32), k=(5,)) == {"y": (5, 32)}


def test_attributes_and_operands_have_defaults() -> None:
    node = onnx.parser.parse_node('y = Op <a = 7, b = [3, 5], c = "SAME"> (x, , u)')
    facts = InferenceContext(node, {"x": dense_type(UINT8, (2, 3))})
    assert (facts.integer("a"), facts.integer("z", 11)) == (7, 11)
    assert (facts.integers("b"), facts.integers("z")) == ((3, 5), ())
    assert (facts.text("c"), facts.text("z")) == ("SAME", "")
    assert [facts.has(place) for place in range(4)] == [True, False, True, False]
    assert [facts.elem_type(place) for place in range(4)] == [UINT8, 0, 0, 0]
    assert [facts.dims(place) for place in range(3)] == [(2, 3), None, None]


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ((5, 1), (7,), (5, 7)),
        ((), (3,), (3,)),
        ((2, 3), (2, 3), (2, 3)),
        ((2, 3), (2, 5), None),
        ((0, 3), (1, 3), (0, 3)),
        (None, (3,), None),
        ((3,), None, None),
    ],
)
def test_shapes_are_broadcast_as_far_as_they_are_known(
    one: Dims | None, other: Dims | None, common: Dims | None
) -> None:
    assert broadcast(one, other) == common


def symbolic(*dims: int | str | None) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(FLOAT, dims)


def dims_as_written(proto: onnx.TypeProto) -> list[int | str | None]:
    dims = proto.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("Gelu(x)", ["n", 5, None]),
        ("FusedMatMul(x, w)", ["n", 5, 7]),
        ("FusedMatMul <transA = 1> (w, x)", ["n", 7, None]),
        ("QLinearAdd(x, s, z, b, s, z, s, z)", ["n", 5, 3]),
        ("QGemm(m, s, z, w, s, z)", ["n", 7]),
        ("DequantizeLinear(x, m)", ["n", 5, None]),
    ],
)
def test_a_session_preserves_symbolic_and_unknown_dims(
    node: str, expected: list[int | str | None]
) -> None:
    types = {
        "x": symbolic("n", 5, None),
        "w": symbolic(3, 7),
        "b": symbolic(1, 3),
        "m": symbolic("n", 3),
    }
    found = microsoft_types(onnx.parser.parse_node(f"y = {MS}.{node}"), types)
    assert dims_as_written(found["y"]) == expected
