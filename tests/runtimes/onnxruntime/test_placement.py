"""The graph of a session on CUDA: its passes, the nodes on the CPU, and the values on the host."""

from collections.abc import Iterable

import onnx
import pytest
from graphs import model_of

from onnxmem.model.building import prepare
from onnxmem.model.files import ModelFile
from onnxmem.runtimes.onnxruntime.allocation.planning import plan
from onnxmem.runtimes.onnxruntime.cpu import AVX512
from onnxmem.runtimes.onnxruntime.kernels.cuda import cuda_kernel
from onnxmem.runtimes.onnxruntime.optimizer.pipeline import optimized
from onnxmem.runtimes.onnxruntime.prediction import RecordedSession, planning_of
from onnxmem.runtimes.onnxruntime.providers import CUDA
from onnxmem.runtimes.onnxruntime.session_graph.loaded import SessionGraph, session_graph
from onnxmem.runtimes.onnxruntime.session_graph.optimization import emulated
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions


def made(text: str, level: str = "all") -> onnx.GraphProto:
    return optimized(model_of(text), level, provider="cuda").graph


def operators(nodes: Iterable[onnx.NodeProto]) -> str:
    return " ".join(node.op_type for node in nodes)


def session(text: str, level: str = "all", /, **inputs: tuple[int, ...]) -> SessionGraph:
    prepared = prepare(ModelFile("", model_of(text), 0))
    return session_graph(emulated(prepared, level, {}, AVX512, "cuda"), inputs)


def arena_weights(found: SessionGraph) -> tuple[int, ...]:
    return CUDA.packing(found.graph, SessionOptions(), found.facts).allocated_bytes


# Passes

CONV = "agraph (float[1,3,9,9] x) => (float[1,16,7,7] y) <float[16,3,3,3] w, float l, float h>"


@pytest.mark.parametrize("activation", ["Relu(c)", "Sigmoid(c)", "Clip(c, l, h)"])
def test_a_convolution_keeps_its_activation_and_its_layout_on_cuda(activation: str) -> None:
    text = f"{CONV} {{ c = Conv(x, w)  y = {activation} }}"
    on_cpu = optimized(model_of(text), "all").graph
    assert "Conv" in operators(on_cpu.node)
    assert activation.partition("(")[0] not in operators(on_cpu.node)
    on_cuda = made(text)
    assert operators(on_cuda.node) == f"Conv {activation.partition('(')[0]}"
    assert {node.domain for node in on_cuda.node} == {""}


def test_a_product_and_a_sum_keep_their_activations_on_cuda() -> None:
    text = """agraph (float[5,7] x) => (float[5,3] y) <float[7,3] w, float[3] b> {
        c = Gemm(x, w, b)  y = Relu(c) }"""
    assert operators(optimized(model_of(text), "all").graph.node) == "FusedGemm"
    assert operators(made(text).node) == "Gemm Relu"


def test_quantized_units_run_in_floats_on_cuda() -> None:
    text = """agraph (uint8[1,2,5,5] x, int8[3,2,1,1] v) => (uint8[1,3,5,5] y)
        <float s, float t, uint8 z = {3}> {
        a = DequantizeLinear(x, s, z) w = DequantizeLinear(v, t)
        c = Conv(a, w) y = QuantizeLinear(c, s, z) }"""
    assert operators(optimized(model_of(text), "extended").graph.node) == "QLinearConv"
    kept = operators(made(text).node).split()
    assert sorted(kept) == ["Conv", "DequantizeLinear", "DequantizeLinear", "QuantizeLinear"]


def test_fusions_for_both_providers_happen_on_cuda() -> None:
    text = """agraph (float[5,7] x) => (float[5,7] y) <float[7] b, float[7] g, float[7] o> {
        h = Add(x, b)  n = LayerNormalization(h, g, o)  y = Relu(n) }"""
    assert operators(made(text).node) == operators(optimized(model_of(text), "all").graph.node)


def test_half_floats_need_no_casts_on_cuda() -> None:
    text = "agraph (float16[5,7] x, float16[7,3] w) => (float16[5,3] y) { y = MatMul(x, w) }"
    assert operators(optimized(model_of(text), "all").graph.node) == "Cast Cast MatMul Cast"
    assert operators(made(text).node) == "MatMul"


def test_a_node_with_a_kernel_on_cuda_alone_stays_one() -> None:
    text = "agraph (float[5,7] x) => (float[5,7] y) { y = HardSwish(x) }"
    assert operators(optimized(model_of(text), "all").graph.node) == "HardSigmoid Mul"
    assert operators(made(text).node) == "HardSwish"


@pytest.mark.parametrize(
    ("operator", "version", "elem_type", "runs"),
    [
        ("Conv", 11, 10, True),
        ("Conv", 11, 16, False),
        ("Conv", 22, 16, True),
        ("Clip", 13, 6, False),
        ("Clip", 13, 0, True),  # an unknown type
        ("DequantizeLinear", 13, 22, False),
        ("DequantizeLinear", 21, 22, True),
        ("MatMulInteger", 10, 2, False),
        ("GridSample", 20, 10, False),
    ],
)
def test_kernels_run_some_types(operator: str, version: int, elem_type: int, runs: bool) -> None:
    kernel = cuda_kernel("", operator, version)
    assert kernel is not None
    assert kernel.runs(version, elem_type) is runs


def test_operators_of_the_cpu_have_no_kernel_on_cuda() -> None:
    assert cuda_kernel("", "QLinearConv", 10) is None
    assert cuda_kernel("com.microsoft", "DynamicQuantizeMatMul", 1) is None


# Placement


def test_what_computes_a_shape_runs_on_the_cpu() -> None:
    text = """agraph (float[N,3,4] x) => (float[N,12] y)
        <int64[1] z = {0}, int64 zero = {0}, int64[1] m = {-1}> {
        s = Shape(x)  n = Gather(s, zero)  u = Unsqueeze(n, z)  t = Concat <axis = 0> (u, m)
        y = Reshape(x, t) }"""
    found = session(text, "off", x=(5, 3, 4))
    assert {"s", "n", "u", "t"} <= found.facts.host
    assert not {"x", "y"} & found.facts.host
    assert arena_weights(found) == ()  # shapes, axes and indices are on the host
    assert "Identity" not in {node.op_type for node in found.graph.nodes}


def test_a_value_that_the_cpu_computes_is_copied_to_cuda_once() -> None:
    """Multinomial has a kernel on the CPU alone."""
    text = """agraph (float[5,7] x) => (int32[5,1] y, int32[5,1] w) {
        p = Softmax(x)  q = Multinomial(p)  y = Add(q, q)  w = Mul(q, q) }"""
    nodes = made(text).node
    assert operators(nodes) == "Softmax Identity Multinomial Identity Mul Add"
    assert [n.name for n in nodes if n.op_type == "Identity"] == [
        "MemcpyToHost_p",
        "MemcpyFromHost_q",
    ]
    found = session(text, x=(5, 7))
    planned = plan(found.graph, planning_of(found, SessionOptions(), CUDA))
    # The copies share no buffer, and what is on the host has none in the arena.
    assert [step.allocates for step in planned.steps] == [
        ("p_CUDAExecutionProvider",),
        (),
        (),
        ("q_CUDAExecutionProvider",),
        ("w",),
        ("y",),
    ]
    assert found.facts.host == {"p", "q"}
    assert found.graph.tensors["q_CUDAExecutionProvider"].size_bytes == 20
    reads = {node.op_type: node.inputs for node in found.graph.nodes}
    assert reads["Mul"] == reads["Add"] == ("q_CUDAExecutionProvider",) * 2
    assert reads["Multinomial"] == ("p",)


def test_an_input_that_both_read_is_copied_by_a_node() -> None:
    text = """agraph (float[5,7] x) => (int32[5,1] q, float[5,7] y) {
        q = Multinomial(x)  y = Exp(x) }"""
    assert sorted(operators(made(text).node).split()) == ["Exp", "Identity", "Multinomial"]
    assert session(text, x=(5, 7)).facts.host == {"x", "q"}


def test_weights_that_only_the_host_reads_are_not_in_the_arena() -> None:
    text = """agraph (float[5,7] x) => (float[7,5] y, float[5,7] z)
        <int64[2] s = {7, 5}, float[5,7] w> { y = Reshape(x, s)  z = Add(x, w) }"""
    assert arena_weights(session(text, x=(5, 7))) == (140,)


def test_a_weight_that_both_read_is_in_the_arena_too() -> None:
    text = """agraph (float[5,7] x, int64[2] k) => (float[7,5] y, int64[2] z)
        <int64[2] s = {7, 5}> { y = Reshape(x, s)  z = Add(k, s) }"""
    assert arena_weights(session(text, x=(5, 7), k=(2,))) == (16,)


def test_bounds_of_a_clip_are_in_the_arena() -> None:
    """The kernel of CUDA reads them there: MobileNetV2 requested both."""
    text = """agraph (float[5,7] x) => (float[5,7] y) <float l = {0}, float h = {6}> {
        y = Clip(x, l, h) }"""
    assert arena_weights(session(text, x=(5, 7))) == (4, 4)


# Recurrent networks

LSTM = """agraph (float[11,5,7] x) => (y)
    <float[2,12,7] w, float[2,12,3] r, float[2,24] b> {{
    y = LSTM <hidden_size = 3, direction = "bidirectional"{}> (x, w, r, b) }}"""
WEIGHTS = (672, 288, 192)


def test_weights_of_a_recurrent_node_are_packed_again() -> None:
    found = session(LSTM.format(""), x=(11, 5, 7))
    assert arena_weights(found) == (*WEIGHTS, sum(WEIGHTS))


def test_without_biases_there_is_room_for_them() -> None:
    text = LSTM.format("").replace(", b)", ")")
    assert arena_weights(session(text, x=(11, 5, 7))) == (672, 288, 672 + 288 + 192)


def test_weights_that_are_computed_are_not_packed() -> None:
    text = LSTM.format("").replace("x, w,", "x, v,").replace("y = LSTM", "v = Exp(u)  y = LSTM")
    text = text.replace("x) =>", "x, float[2,12,7] u) =>")
    assert arena_weights(session(text, x=(11, 5, 7), u=(2, 12, 7))) == (288, 192)


@pytest.mark.parametrize(
    "attribute",
    [
        "clip = 3.0",
        "input_forget = 1",
        'activations = ["Relu", "Tanh", "Tanh", "Relu", "Tanh", "Tanh"]',
    ],
)
def test_what_cudnn_cannot_do_runs_on_the_cpu(attribute: str) -> None:
    found = session(LSTM.format(f", {attribute}"), x=(11, 5, 7))
    assert found.facts.host >= {"x", "y", "w", "r", "b"}
    assert arena_weights(found) == ()


def test_usual_activations_stay_on_cuda() -> None:
    usual = 'activations = ["Sigmoid", "Tanh", "Tanh", "Sigmoid", "Tanh", "Tanh"]'
    assert "y" not in session(LSTM.format(f", {usual}"), x=(11, 5, 7)).facts.host


@pytest.mark.parametrize(("attribute", "is_on_host"), [("", False), ("0", True), ("1", False)])
def test_cudnn_resets_after_the_product(attribute: str, is_on_host: bool) -> None:
    flag = f", linear_before_reset = {attribute}" if attribute else ""
    text = f"""agraph (float[11,5,7] x) => (y) <float[1,9,7] w, float[1,9,3] r> {{
        y = GRU <hidden_size = 3{flag}> (x, w, r) }}"""
    assert ("y" in session(text, x=(11, 5, 7)).facts.host) is is_on_host


# Subgraphs


def test_a_weight_that_a_branch_reads_is_in_the_arena() -> None:
    text = """agraph (float[5,7] x, bool c) => (y) <float[5,7] w, float[5,7] v> {
        y = If (c) < then_branch = one () => (float[5,7] a) { a = Add(x, w) },
                     else_branch = two () => (float[5,7] b) { b = Exp(x) } >
        }"""
    found = session(text, x=(5, 7), c=())
    assert 140 in arena_weights(found)
    assert found.facts.host == {"c"}


# Scratch


@pytest.mark.parametrize(
    ("dims", "axes", "scratch_bytes"),
    [
        # Rows of one block: a sum and a counter each, and the padding.
        ((8, 4, 576), "2", 32 * 8 + 15),
        ((8, 4, 576), "-1", 32 * 8 + 15),
        ((8, 16, 2048), "2", 128 * 12 + 15),  # of two blocks
        ((3, 5, 1, 7), "1, 2, 3", 3 * 8 + 15),
        ((3, 5, 1, 7), "1, 3", 3 * 8 + 15),
        ((3, 5, 7), "1", 0),
        ((3, 5, 7), "0, 2", 0),
        ((3, 5, 7), "0", 0),
        ((3, 5, 7), "0, 1, 2", 0),
        ((1, 1), "1", 0),
    ],
)
def test_sums_of_rows_have_a_buffer(dims: tuple[int, ...], axes: str, scratch_bytes: int) -> None:
    """The first and the third were measured: 271 and 1,551 bytes."""
    count = axes.count(",") + 1
    text = f"""agraph (float{list(dims)} x) => (y) <int64[{count}] a = {{{axes}}}> {{
        y = ReduceMean(x, a) }}"""
    assert scratch_bytes == scratch_of(text, x=dims)


def test_a_sum_that_runs_on_the_cpu_has_no_buffer() -> None:
    text = """agraph (float[N,2,1,1,2,1] x) => (y) <int64[2] d = {2, 3}, int64[1] a = {1}> {
        s = Shape(x)  c = Cast <to = 1> (s)  r = Reshape(c, d)  y = ReduceSum(r, a) }"""
    found = session(text, "off", x=(5, 2, 1, 1, 2, 1))
    assert found.facts.host >= {"r", "y"}
    recorded = RecordedSession.of(found, SessionOptions(), CUDA)
    assert sum(recorded.runs.plain.scratch_bytes) == 0


@pytest.mark.parametrize(
    ("rows", "columns", "scratch_bytes"),
    [(1, 16, 0), (16, 16, 0), (17, 16, 2 * 32 * 16), (1, 15, 2 * 32 * 15)],
)
def test_a_matrix_of_blocks_is_dequantized_for_many_rows(
    rows: int, columns: int, scratch_bytes: int
) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    agraph (float16[{rows},32] x) => (float16[{rows},{columns}] y)
        <uint8[{columns},1,16] b, float16[{columns}] s> {{
        y = com.microsoft.MatMulNBits <K = 32, N = {columns}, bits = 4, block_size = 32> (x, b, s)
    }}"""
    assert scratch_bytes == scratch_of(text, x=(rows, 32))


def scratch_of(text: str, **inputs: tuple[int, ...]) -> int:
    recorded = RecordedSession.of(session(text, **inputs), SessionOptions(), CUDA)
    assert not recorded.runs.unknown_scratch
    (scratch_bytes,) = recorded.runs.plain.scratch_bytes
    return scratch_bytes
