"""Optimization levels as a whole, and passes on graphs that onnxruntime cannot show."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from graphs import model_of
from onnx.backend.test.loader import load_model_tests
from paths import MODELS

from onnxmem.errors import OnnxmemError
from onnxmem.model.building import prepare
from onnxmem.model.files import load
from onnxmem.model.traversal import input_and_initializer_names, outer_reads, subgraphs
from onnxmem.runtimes.onnxruntime.cpu import ARM64, AVX512, CPUS, Cpu
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, TensorType
from onnxmem.runtimes.onnxruntime.optimizer.pipeline import (
    Pass,
    optimized,
    override_free_dims,
    planner_shapes,
    run_level,
)
from onnxmem.runtimes.onnxruntime.optimizer.qdq_pairs import drop_pairs
from onnxmem.runtimes.onnxruntime.optimizer.reading import read_model, read_node, write_graph
from onnxmem.runtimes.onnxruntime.optimizer.shape_inference import infer_node, resolve
from onnxmem.runtimes.onnxruntime.session_options import Provider

LEVELS = ("off", "basic", "extended", "all")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["mlp", "unet", "lstm_classifier", "alexnet"])
def test_optimized_models_run(name: str, level: str) -> None:
    check_model(MODELS / f"{name}.onnx", level)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda path: path.stem)
def test_optimized_models_of_the_collection_run(path: Path) -> None:
    check_model(path, "all")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the suite computes its cases when it is loaded
@pytest.mark.parametrize(
    ("cpu", "provider"),
    [*((cpu, "cpu") for cpu in CPUS.values()), (AVX512, "cuda")],
    ids=[*CPUS, "cuda"],
)
def test_optimized_models_of_every_operator_run(cpu: Cpu, provider: Provider) -> None:
    cases = load_model_tests(kind="node")
    assert len(cases) > 1000
    broken = []
    for case in cases:
        try:
            prepared = prepare(load(case.model or Path(str(case.model_dir), "model.onnx")))
        except OnnxmemError:
            continue
        result = optimized(prepared.proto, "all", cpu=cpu, provider=provider)
        if not runs_in_order(result.graph, set()):
            broken.append(case.name)
    assert broken == []


def check_model(path: Path, level: str) -> None:
    prepared = prepare(load(path))
    result = optimized(prepared.proto, level)
    assert [value.name for value in result.graph.output] == [
        value.name for value in prepared.proto.graph.output
    ]
    assert runs_in_order(result.graph, set())
    shapes = planner_shapes(result)
    assert all(value.name in shapes for value in result.graph.input)


def runs_in_order(graph: onnx.GraphProto, outer: set[str]) -> bool:
    """Whether each node and its subgraphs read only values that exist before it."""
    there = {*outer, "", *input_and_initializer_names(graph)}
    for node in graph.node:
        reads = {*node.input, *(n for _, body in subgraphs(node) for n in outer_reads(body))}
        if not reads <= there:
            return False
        if not all(runs_in_order(body, there) for _, body in subgraphs(node)):
            return False
        there.update(node.output)
    return {value.name for value in graph.output} <= there


def graph_of(text: str) -> Graph:
    return read_model(model_of(text))


def statements(graph: Graph) -> list[str]:
    return [
        f"{node.output[0]} = {node.op_type}({', '.join(node.input)})"
        for node in write_graph(graph).node
    ]


PAIR = "b = DequantizeLinear(a, s, z) c = QuantizeLinear(b, s, z)"
SCALES = "<float s = {0.5}, uint8 z = {3}>"


def test_the_reader_of_a_removed_pair_reads_its_source() -> None:
    graph = graph_of(
        f"agraph (uint8[2] x) => (uint8[2] y) {SCALES} {{ a = Add(x, x) {PAIR} y = Mul(c, c) }}"
    )
    assert drop_pairs(graph)
    assert statements(graph) == ["a = Add(x, x)", "y = Mul(a, a)"]


def test_the_producer_before_a_removed_pair_writes_the_graph_output() -> None:
    graph = graph_of(f"agraph (uint8[2] x) => (uint8[2] c) {SCALES} {{ a = Add(x, x) {PAIR} }}")
    assert drop_pairs(graph)
    assert statements(graph) == ["c = Add(x, x)"]


def test_scales_with_absent_elements_are_assumed_to_fit() -> None:
    text = """agraph (uint8[1,2,5,5] x, int8[3,2,1,1] v, int32[3] k) => (uint8[1,3,5,5] y)
        <float s, float t, float u, uint8 z = {3}> {
        a = DequantizeLinear(x, s, z) w = DequantizeLinear(v, t) b = DequantizeLinear(k, u)
        c = Conv(a, w, b) y = QuantizeLinear(c, s, z) }"""
    (node,) = optimized(model_of(text), "extended").graph.node
    assert node.op_type == "QLinearConv"


# Levels


def test_a_level_is_repeated_until_nothing_changes_at_most_ten_times() -> None:
    graph = graph_of("agraph (float[2] x) => (float[2] y) { y = Tanh(x) }")
    counts = {"always": 0, "once": 0}

    def always(_: Graph) -> bool:
        counts["always"] += 1
        return True

    def once(_: Graph) -> bool:
        counts["once"] += 1
        return False

    assert run_level(graph, [Pass(always), Pass(once, once=True)])
    assert counts == {"always": 10, "once": 1}
    assert not run_level(graph, [Pass(once)])


def test_override_of_free_dims_sets_the_dims_of_inputs() -> None:
    graph = graph_of("agraph (float[N,M] x, seq(float[N]) q, float[] u) => () { }")
    assert override_free_dims({"N": 3})(graph)
    assert graph.types["x"] == TensorType(1, (3, "M"))
    assert not override_free_dims({"N": 3})(graph)


def test_images_are_blocked_if_the_cpu_has_blocked_kernels() -> None:
    text = "agraph (float[1,3,9,9] x) => (float[1,16,7,7] y) <float[16,3,3,3] w> { y = Conv(x, w) }"
    for cpu, domains in ((ARM64, [""]), (AVX512, ["com.microsoft.nchwc"] * 2)):
        result = optimized(model_of(text), "all", cpu=cpu)
        assert [node.domain for node in result.graph.node] == domains


# Inference


@pytest.mark.parametrize("node", ["y = NoSuch(x)", "y = MatMul(x, x)", "y = no.such.Tanh(x)"])
def test_a_type_that_onnx_cannot_infer_stays_unknown(node: str) -> None:
    graph = graph_of("agraph (float[2,3] x) => () { }")
    infer_node(graph, graph.insert(read_node(onnx.parser.parse_node(node), graph)))
    assert "y" not in graph.types


def test_before_ir_version_4_an_unread_initializer_is_removed_from_the_inputs() -> None:
    model = model_of(
        '<ir_version: 3, opset_import: ["" : 8]>'
        "agraph (float[2] x, float[2] w) => (float[2] y) { y = Tanh(x) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(2, np.float32), "w"))
    graph = read_model(model)
    resolve(graph)
    assert (graph.inputs, list(graph.initializers)) == (["x"], [])


def test_num_scan_inputs_is_limited_to_the_inputs_of_a_scan() -> None:
    """The attribute can be any number in a file."""
    for number in (-(2**62), 2**62):
        graph = graph_of(
            f"agraph (float[3] h, float[7,5] x) => () {{ t, u = Scan <num_scan_inputs = {number},"
            " body = b (float[] a, float[] e) => (float[] f, float[] g)"
            " { f = Tanh(a) g = Tanh(e) }> (h, x) }"
        )
        resolve(graph)
        assert {"t", "u"} <= graph.types.keys()


def test_a_scan_with_a_batch_dim_has_unknown_shapes() -> None:
    graph = graph_of(
        '<ir_version: 4, opset_import: ["" : 8]>'
        "agraph (float[2,3] h, float[2,7,5] x) => () { t, u = Scan <num_scan_inputs = 1,"
        " body = b (float[3] a, float[5] e) => (float[3] f, float[5] g)"
        " { f = Tanh(a) g = Tanh(e) }> ( , h, x) }"
    )
    resolve(graph)
    assert not {"t", "u"} & graph.types.keys()


def test_elements_of_shapes_stay_few_and_wrap_around() -> None:
    """Repeated doubling and squaring must not take memory; numbers wrap around as in C++."""
    doubled = " ".join(f"a{n + 1} = Concat<axis = 0>(a{n}, a{n})" for n in range(40))
    squared = " ".join(f"b{n + 1} = Mul(b{n}, b{n})" for n in range(40))
    graph = graph_of(
        f"agraph (float[3,7] x) => () {{ a0 = Shape(x) {doubled} b0 = Shape(x) {squared} }}"
    )
    resolve(graph)
    values = graph.shape_values
    assert max(len(value.elements) for value in values.values()) == 4096
    assert values["b40"].elements == tuple(
        (pow(n, 2**40, 2**64) + 2**63) % 2**64 - 2**63 for n in (3, 7)
    )
