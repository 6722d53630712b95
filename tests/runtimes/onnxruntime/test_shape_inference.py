"""Types and shapes that a session knows at load, compared with onnxruntime."""

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from graphs import model_of
from installed_runtime import require_since
from runtimes.onnxruntime.graph_cases import Case, cases, title
from runtimes.onnxruntime.shapes_at_load import by_onnxmem, by_onnxruntime, written

from onnxmem.runtimes.onnxruntime.cpu import AVX2, AVX512
from onnxmem.runtimes.onnxruntime.kernels.registry import WITHOUT_KERNEL
from onnxmem.runtimes.onnxruntime.optimizer.constants import MAX_ELEMENTS, evaluated
from onnxmem.runtimes.onnxruntime.optimizer.graph import (
    Dims,
    Graph,
    Node,
    TensorType,
    ValueType,
    common_dims,
    merged_dims,
    merged_type,
    read_type,
    write_type,
)
from onnxmem.runtimes.onnxruntime.optimizer.matching import has_kernel, is_deterministic
from onnxmem.runtimes.onnxruntime.optimizer.pipeline import planner_shapes
from onnxmem.runtimes.onnxruntime.optimizer.reading import (
    read_model,
    read_node,
    since_version,
    write_model,
)
from onnxmem.runtimes.onnxruntime.optimizer.shape_inference import infer_node

CONTROL_FLOW = cases("control_flow")
ELEMENTS = cases("elements_of_shapes")
OWN_OPERATORS = cases("own_operators")
BLOCKED_IMAGES = cases("blocked_images")
STATED = cases("stated_shapes")


def check(case: Case) -> None:
    assert written(by_onnxmem(case.text, case.level, cpu=AVX512)) == case.expected
    require_since(case.since)
    known = by_onnxmem(case.text, case.level)
    truth = by_onnxruntime(case.text, case.level)
    assert known == {name: truth[name] for name in known}


@pytest.mark.measure
@pytest.mark.parametrize("case", CONTROL_FLOW, ids=title)
def test_types_of_control_flow(case: Case) -> None:
    check(case)


@pytest.mark.measure
@pytest.mark.parametrize("case", ELEMENTS, ids=title)
def test_shapes_follow_from_elements_of_shapes(case: Case) -> None:
    check(case)


@pytest.mark.measure
@pytest.mark.parametrize("case", OWN_OPERATORS, ids=title)
def test_shapes_of_onnxruntime_operators(case: Case) -> None:
    check(case)


@pytest.mark.measure
@pytest.mark.parametrize("case", BLOCKED_IMAGES, ids=title)
def test_shapes_of_blocked_images(case: Case) -> None:
    check(case)


@pytest.mark.measure
@pytest.mark.parametrize("case", STATED, ids=title)
def test_declared_shapes_stay_and_their_gaps_are_filled(case: Case) -> None:
    check(case)


@pytest.mark.measure
def test_overrides_of_free_dims_reach_undeclared_shapes() -> None:
    text = "agraph (float[N, M] x) => (float[N, M] y) <float[N, 7] a> { a = Tanh(x) y = Sin(a) }"
    for dims in ({}, {"N": 3}, {"N": 3, "M": 7}, {"K": 5}):
        known, truth = by_onnxmem(text, "off", dims), by_onnxruntime(text, "off", dims)
        assert known == {name: truth[name] for name in known}


FLOAT, INT64 = 1, 7


def proto(text: str) -> onnx.TypeProto:
    (value,) = onnx.parser.parse_graph(f"g ({text} x) => () {{}}").input
    return value.type


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("float[2,N,?]", TensorType(FLOAT, (2, "N", None))),
        ("float", TensorType(FLOAT, ())),
        ("float[]", TensorType(FLOAT, None)),
        ("int64[3]", TensorType(INT64, (3,))),
    ],
)
def test_dense_types_are_read_and_written(text: str, known: TensorType) -> None:
    assert read_type(proto(text)) == known
    assert write_type(known) == proto(text)


def test_types_other_than_tensors_are_not_converted() -> None:
    sequence = proto("seq(float[2,3])")
    assert read_type(sequence) is sequence
    assert write_type(sequence) is sequence
    assert read_type(onnx.TypeProto()) is None


def test_a_negative_dim_is_unknown() -> None:
    odd = proto("float[2,3]")
    odd.tensor_type.shape.dim[0].dim_value = -1
    assert read_type(odd) == TensorType(FLOAT, (None, 3))


@pytest.mark.parametrize(
    ("inferred", "known", "merged", "common"),
    [
        ((2, 3), (2, 3), (2, 3), (2, 3)),
        ((2,), ("N",), (2,), (None,)),
        (("N",), (2,), (2,), (None,)),
        (("M",), ("N",), ("N",), (None,)),
        (("N",), ("N",), ("N",), ("N",)),
        (("N",), (None,), ("N",), (None,)),
        ((None,), (None,), (None,), (None,)),
        ((2, 3), (2, 5), None, (2, None)),
        ((2,), (2, 3), None, None),
    ],
)
def test_dims_are_merged(
    inferred: Dims, known: Dims, merged: Dims | None, common: Dims | None
) -> None:
    assert merged_dims(inferred, known) == merged
    assert common_dims(inferred, known) == common


SEQUENCE, BARE = proto("seq(float[2,3])"), proto("seq(float[])")


@pytest.mark.parametrize(
    ("inferred", "known", "merged"),
    [
        (None, None, None),
        (None, TensorType(FLOAT, (2,)), TensorType(FLOAT, (2,))),
        (TensorType(FLOAT, (2,)), None, TensorType(FLOAT, (2,))),
        (TensorType(0, (2,)), TensorType(FLOAT, None), TensorType(FLOAT, (2,))),
        (TensorType(INT64, None), TensorType(0, (2,)), TensorType(INT64, (2,))),
        (TensorType(FLOAT, (2, 3)), TensorType(FLOAT, (5, 3)), TensorType(FLOAT, (None, 3))),
        (TensorType(FLOAT, (2, 3)), TensorType(FLOAT, (2,)), TensorType(FLOAT, None)),
        (SEQUENCE, SEQUENCE, SEQUENCE),
        (TensorType(FLOAT, (2,)), SEQUENCE, SEQUENCE),
        (SEQUENCE, None, BARE),
        (proto("optional(seq(float[2]))"), None, proto("optional(seq(float[]))")),
        (proto("map(int64, float[2])"), None, proto("map(int64, float[])")),
        (proto("sparse_tensor(float[2])"), None, proto("sparse_tensor(float[2])")),
    ],
)
def test_types_are_merged(
    inferred: ValueType | None, known: ValueType | None, merged: ValueType | None
) -> None:
    assert merged_type(inferred, known) == merged


# Operators


@pytest.mark.parametrize(
    ("domain", "op_type", "is_sure"),
    [
        ("", "Add", True),
        ("", "RandomNormal", False),
        ("", "Dropout", False),
        ("com.microsoft", "QuantizeLinear", True),
        ("com.microsoft", "Gelu", False),
        ("ai.onnx.ml", "Scaler", False),
    ],
)
def test_which_operators_are_deterministic(
    domain: str,
    op_type: str,
    is_sure: bool,
) -> None:
    assert is_deterministic(domain, op_type) is is_sure


@pytest.mark.parametrize(
    ("op_type", "domain", "opset", "version"),
    [
        ("Add", "", 21, 14),
        ("Add", "", 13, 13),
        ("LayerNormalization", "", 21, 17),
        ("LayerNormalization", "", 16, 1),
        ("SimplifiedLayerNormalization", "", 21, 1),
        ("Gelu", "", 13, 0),
        ("Gelu", "com.microsoft", 21, 1),
    ],
)
def test_versions_of_operators(op_type: str, domain: str, opset: int, version: int) -> None:
    assert since_version(op_type, domain, {"": opset}) == version


def graph_of(text: str, opset: int = 21) -> Graph:
    header = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    return read_model(model_of(header + text))


@pytest.mark.parametrize(
    ("node", "opset", "runs"),
    [
        ("y = Add(f, f)", 21, True),
        ("y = Add(h, h)", 21, False),
        ("y = Add(b, b)", 21, False),
        ("y = Reshape(h, s)", 21, True),
        ("y = Reshape(b, s)", 21, True),
        ("y = Round(h)", 21, True),
        ("y = Round(b)", 21, False),
        ("y = Clip(h)", 13, True),
        ("y = Clip(h)", 11, False),
        ("y = IsNaN(b)", 20, True),
        ("y = IsNaN(b)", 13, False),
        ("y = IsInf(h)", 20, True),
        ("y = Dropout(h)", 10, True),
        ("y = Dropout(h)", 13, False),
        ("y = HardSwish(f)", 21, False),
        ("y = com.microsoft.SkipLayerNormalization(b, b, b)", 21, True),
        ("y = com.microsoft.MatMulNBits(h, h, h)", 21, True),
        ("y = com.microsoft.MatMulNBits(b, b, b)", 21, False),
        ("y = com.microsoft.Gelu(h)", 21, False),
        ("y = ai.onnx.ml.Scaler(h)", 21, False),
    ],
)
def test_a_node_has_a_kernel_for_its_types_and_version(node: str, opset: int, runs: bool) -> None:
    inputs = "float[2] f, float16[2] h, bfloat16[2] b, int64[1] s"
    graph = graph_of(f"g ({inputs}) => () {{ {node} }}", opset)
    (found,) = graph.nodes.values()
    assert has_kernel(graph, found) is runs
    found.is_unassigned = True
    assert not has_kernel(graph, found)


@pytest.mark.measure
def test_the_float16_kernels_are_those_of_onnxruntime() -> None:
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    known = {
        definition.op_name
        for definition in state.get_all_opkernel_def()
        if definition.provider == "CPUExecutionProvider" and not definition.domain
    }
    assert not WITHOUT_KERNEL & known


# Reading and writing


def test_a_graph_is_written_as_it_was_read() -> None:
    model = model_of(
        "agraph (float[2,3] x, bool k) => (float[2,3] y) <float[3] w> {"
        " c = Constant<value_float = 2.0>() a = Mul(x, c)"
        " y = If(k) <then_branch = t () => (float[2,3] p) { p = Add(a, w) },"
        " else_branch = e () => (float[2,3] q) { q = Tanh(x) }> }"
    )
    written_model = write_model(read_model(model), model)
    assert [node.op_type for node in written_model.graph.node] == ["Mul", "If"]
    assert [tensor.name for tensor in written_model.graph.initializer] == ["w", "c"]
    again = write_model(read_model(written_model), written_model)
    assert again == written_model


def test_outer_values_that_subgraphs_read_are_implicit_inputs() -> None:
    text = (
        "agraph (float[2] x, bool k) => (float[2] y) { a = Tanh(x) y = If(k) <then_branch ="
        " t () => (float[2] p) { p = Add(a, a) }, else_branch = e () => (float[2] q)"
        " { q = Mul(a, x) }> }"
    )
    *_, branch = read_model(model_of(text)).nodes.values()
    assert branch.implicit == ["a", "x"]


def test_a_domain_that_a_pass_adds_is_imported() -> None:
    model = model_of("agraph (float[2] x) => (float[2] y) { y = Tanh(x) }")
    graph = read_model(model)
    graph.insert(read_node(onnx.parser.parse_node("z = com.microsoft.Gelu(x)"), graph))
    written_model = write_model(graph, model)
    assert {entry.domain: entry.version for entry in written_model.opset_import} == {
        "": 21,
        "com.microsoft": 1,
    }


def test_an_input_that_is_an_initializer_keeps_its_declared_type() -> None:
    text = '<ir_version: 3, opset_import: ["" : 8]> g (float[N] x) => (float[N] y) { y = Tanh(x) }'
    model = model_of(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(2, np.float32), "x"))
    assert read_model(model).types["x"] == TensorType(FLOAT, ("N",))


def test_an_omitted_value_has_no_type() -> None:
    graph = graph_of("g (float[2] x) => (y) { z = NoSuch(x) y = Tanh(z) }")
    written_model = write_model(graph, model_of("g (float[2] x) => (float[2] y) { y = Tanh(x) }"))
    assert [value.name for value in written_model.graph.value_info] == []


# Evaluating


def node_in(text: str) -> tuple[Graph, Node]:
    graph = graph_of(f"g (float[2] x) => () {{ {text} }}")
    (node,) = graph.nodes.values()
    infer_node(graph, node)
    return graph, node


def test_a_node_is_evaluated() -> None:
    values: dict[str, Any] = {"x": np.array([3.0, 5.0], np.float32)}
    arrays = evaluated(*node_in("y = Add(x, x)"), values)
    assert arrays is not None
    assert [array.tolist() for array in arrays] == [[6.0, 10.0]]


@pytest.mark.parametrize(
    "text",
    [
        'y = RegexFullMatch <pattern = "(a+)+b"> (x)',  # may take for ever
        "y = Tile(x, x)",  # of unknown size
        "y = com.microsoft.Gelu(x)",
    ],
)
def test_operators_that_may_take_long_are_not_evaluated(text: str) -> None:
    values: dict[str, Any] = {"x": np.array([3.0, 5.0], np.float32)}
    assert evaluated(*node_in(text), values) is None


def test_an_index_out_of_range_has_no_value() -> None:
    graph = graph_of("g (float[2] x, int64[1] k) => () { y = GatherElements(x, k) }")
    (node,) = graph.nodes.values()
    infer_node(graph, node)
    values: dict[str, Any] = {"x": np.array([3.0, 5.0], np.float32)}
    found = evaluated(graph, node, values | {"k": np.array([-1])})
    assert found is not None
    assert found[0].tolist() == [5.0]
    assert evaluated(graph, node, values | {"k": np.array([2**62])}) is None


@pytest.mark.parametrize("text", ["y = NoSuch(x)", "y = Concat(x)"])
def test_values_that_the_reference_cannot_compute_stay_unknown(text: str) -> None:
    assert evaluated(*node_in(text), {"x": np.zeros(2, np.float32)}) is None


def test_values_that_are_too_large_stay_unknown() -> None:
    values: dict[str, Any] = {"x": np.array([MAX_ELEMENTS, 2])}
    assert evaluated(*node_in("y = ConstantOfShape(x)"), values) is None


# The shapes of a file that onnxruntime has optimized


def test_shapes_of_blocked_images_depend_on_the_block_size() -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 21, "com.microsoft.nchwc" : 1]>'
        " g (float[2,37,5,5] x, seq(float[2]) q) => (float[] y, int64 n)"
        " { y = com.microsoft.nchwc.ReorderInput(x) n = SequenceLength(q) }"
    )
    model = model_of(text)
    assert planner_shapes(model)["y"] == (2, 48, 5, 5)
    assert planner_shapes(model, cpu=AVX2)["y"] == (2, 40, 5, 5)
    assert planner_shapes(model)["q"] is None
