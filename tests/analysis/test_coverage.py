"""What the figures rest on, and each remark on a model: its code, its text, its node."""

from collections.abc import Mapping

import onnx
import onnx.parser
import pytest
from graphs import graph_of, model_of

from onnxmem.analysis.analysis import analyze
from onnxmem.analysis.coverage import Coverage, coverage, dequantized_findings, model_findings
from onnxmem.errors import Finding
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import load
from onnxmem.model.graph import Graph
from onnxmem.model.parameters import parameters
from onnxmem.runtimes.ideal.activation_memory import activation_memory
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.settings import TrainingConfig

HEADER = '<ir_version: 10, opset_import: ["": 21, "own": 1, "com.microsoft": 1]>'


def graph(text: str) -> Graph:
    return graph_of(HEADER + text)


def covered(text: str, *, train: bool = False) -> Coverage:
    found = graph(text)
    step = None
    if train:
        step = training_memory(found, TrainingConfig())
    return coverage(found, activation_memory(found), step)


def remarks(
    found: Graph | str, iterations: Mapping[str, int | None] | None = None, *, train: bool = False
) -> list[Finding]:
    known = graph(found) if isinstance(found, str) else found
    return list(model_findings(known, parameters(known), iterations or {}, train=train))


WHOLE = """agraph (float[2,3] x) => (y) <float[3,5] w, float[5] b> {
    [product] p = MatMul(x, w)
    [sum] s = Add(p, b)
    [last] y = Relu(s)
}"""

ODD = """agraph (float[2,3] x) => (z) {
    [first] a = Relu(x)
    [odd] b = own.Odd(a)
    [follows] c = Relu(b)
    [even] d = own.Even(c)
    [odd_again] z = own.Odd(d)
}"""


# What is assumed and what is unknown


@pytest.mark.parametrize("train", [False, True])
def test_a_plain_model_has_no_assumptions(*, train: bool) -> None:
    assert covered(WHOLE, train=train) == Coverage(3, (), ())
    assert remarks(WHOLE, train=train) == []


def test_nodes_without_a_record_are_listed_as_assumed() -> None:
    found = covered(ODD)
    assert (found.nodes, found.assumed_node_names) == (5, ("odd", "even", "odd_again"))
    assert found.unknown_tensor_names == ("b", "c", "d", "z")


def test_nodes_with_only_a_declared_shape_are_listed_as_assumed() -> None:
    text = ODD.replace("=> (z)", "=> (float[7] z) <float[2] c>")
    found = covered(text)
    assert found.assumed_node_names == ("odd", "follows", "even", "odd_again")
    assert found.unknown_tensor_names == ("b", "d")


def test_unknown_inputs_come_first_and_each_tensor_once() -> None:
    text = ODD.replace("(float[2,3] x)", "(float[2,3] x, float unknown)")
    model = model_of(HEADER + text)
    model.graph.input[1].type.tensor_type.ClearField("shape")
    found = build(prepare(load(model)), Request()).graph
    names = coverage(found, activation_memory(found), None).unknown_tensor_names
    assert names == ("unknown", "b", "c", "d", "z")


def test_a_weight_of_unknown_size_is_unknown() -> None:
    model = model_of(HEADER + WHOLE)
    model.graph.initializer[0].data_type = 99
    found = build(prepare(load(model)), Request()).graph
    assert coverage(found, activation_memory(found), None).unknown_tensor_names[0] == "w"


# Findings of the model


def test_each_unknown_operator_is_reported_once() -> None:
    text = "unknown operator own::{}: it is assumed to share and overwrite no buffer"
    odd, even = remarks(ODD)
    assert even == Finding("unknown_operator", text.format("Even"), "even")
    assert (odd.code, odd.message) == ("unknown_operator", text.format("Odd"))
    assert odd.node in {"odd", "odd_again"}


def test_an_unknown_operator_of_onnx_itself_has_no_domain() -> None:
    (finding,) = remarks("agraph (float[2] x) => (y) { [n] y = Nonsense(x) }")
    text = "unknown operator Nonsense: it is assumed to share and overwrite no buffer"
    assert finding == Finding("unknown_operator", text, "n")


def test_unused_initializers_are_reported() -> None:
    text = WHOLE.replace("<float[3,5] w", "<float[9] lost, float[3,5] w")
    message = "unused initializers: 'lost'"
    assert remarks(text) == [Finding("unread_initializers", message)]


def test_only_the_first_of_many_names_are_listed() -> None:
    weights = "".join(f"float[9] lost{i}, " for i in range(7))
    (finding,) = remarks(WHOLE.replace("<", f"<{weights}", 1))
    names = "'lost0', 'lost1', 'lost2' and 4 more"
    assert finding.message == f"unused initializers: {names}"


QUANTIZED = """agraph (float[7,3] x) => (y) <int8[3,5] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6},
    float s = {0.5}, int8 z = {0}> {
    q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
    v = DequantizeLinear(w, s, z)  y = MatMul(d, v)
}"""


def test_dequantized_weights_are_activations() -> None:
    (finding,) = dequantized_findings(graph(QUANTIZED))
    assert finding.code == "dequantized_weights"
    assert finding.message == (
        "60 B of dequantized weights count as activations; onnxruntime does not make them in a "
        "run: --runtime ort-cpu"
    )
    assert list(dequantized_findings(graph(WHOLE))) == []


def test_dequantized_weights_are_not_reported_beside_a_runtime() -> None:
    model = onnx.parser.parse_model(HEADER + QUANTIZED)
    for runtimes, expected in (((), True), (("ort-cpu",), False)):
        found = analyze(model, runtimes=runtimes, asks_onnxruntime=False).findings
        assert any(each.code == "dequantized_weights" for each in found) is expected


def test_an_initializer_that_only_sizes_a_constant_is_not_reported() -> None:
    text = "agraph (float[2] x) => (y) <int64[1] s = {2}> { w = ConstantOfShape(s)  y = Add(x, w) }"
    assert remarks(text) == []


def test_sparse_weights_are_reported() -> None:
    model = model_of(HEADER + WHOLE)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    model.graph.initializer.remove(weight)
    sparse = model.graph.sparse_initializer.add(dims=[3, 5])
    sparse.values.CopyFrom(onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [1], [1.0]))
    sparse.indices.CopyFrom(onnx.helper.make_tensor("i", onnx.TensorProto.INT64, [1], [4]))
    found = build(prepare(load(model)), Request()).graph
    text = "sparse weights count as dense, as runtimes load them: 'w'"
    assert remarks(found) == [Finding("sparse_weights", text)]


LOOP = """agraph (float[2,3] x, int64 n, bool go) => (y) {
    [loop] y = Loop (n, go, x) <body = body
        (int64 i, bool go_in, float[2,3] s) => (bool go_out, float[2,3] s_out) {
            [keep] go_out = Identity(go_in)
            [step] s_out = Relu(s)
        }>
}"""
OPEN = "loops with an unknown number of iterations count once: "


def test_an_unbounded_loop_is_assumed_and_reported() -> None:
    assert covered(LOOP) == Coverage(3, ("loop",), ())
    assert remarks(LOOP) == [Finding("assumed_trip_count", f"{OPEN}'loop'", "loop")]
    assert remarks(LOOP, {"loop": None}) == remarks(LOOP)


def test_of_a_bounded_loop_only_flops_count_one_iteration() -> None:
    (found,) = remarks(LOOP, {"loop": 48})
    assert (
        found.message
        == "FLOPs count 1 of at most 48 iterations of 'loop'; figures at most count all"
    )


def test_a_loop_with_a_constant_trip_count_is_complete() -> None:
    text = LOOP.replace(", int64 n, bool go)", ")").replace("=> (y) {", "=> (y) <int64 n = {5}> {")
    text = text.replace("(n, go, x)", "(n, , x)")
    assert covered(text) == Coverage(3, (), ())
    assert remarks(text) == []


def test_a_training_step_assumes_what_a_loop_body_saves() -> None:
    text = LOOP.replace(", int64 n, bool go)", ")").replace("(n, go, x)", "(n, , x)")
    text = text.replace("(y) {", "(y) <int64 n = {5}, float[3,3] w> {")
    text = text.replace("Relu(s)", "MatMul(s, w)")
    assert covered(text).assumed_node_names == ()
    assert covered(text, train=True).assumed_node_names == ("loop",)


@pytest.mark.parametrize("condition", ["Not(go_in)", "Constant <value = bool {0}> ()"])
def test_a_loop_ended_by_its_body_is_complete(condition: str) -> None:
    text = LOOP.replace(", int64 n, bool go)", ")").replace("=> (y) {", "=> (y) <int64 n = {5}> {")
    text = text.replace("(n, go, x)", "(n, , x)").replace("Identity(go_in)", condition)
    assert remarks(text) == []


def test_a_loop_with_only_a_condition_assumes_its_trip_count() -> None:
    text = LOOP.replace(", int64 n,", ",").replace("=> (y) {", "=> (y) <int64 n = {5}> {")
    assert [finding.code for finding in remarks(text)] == ["assumed_trip_count"]


def test_an_operator_named_loop_in_another_domain_is_not_a_loop() -> None:
    (finding,) = remarks("agraph (float[2] x) => (y) { [n] y = own.Loop(x) }")
    assert finding.code == "unknown_operator"


IF = """agraph (float[2,3] x, bool c) => (y) {
    [if] y = If (c) <
        then_branch = t () => (o) { [then] o = Relu(x) },
        else_branch = e () => (p) { [else] p = own.Odd(x) }>
}"""


def test_nodes_of_subgraphs_are_counted() -> None:
    found = covered(IF)
    assert (found.nodes, found.assumed_node_names) == (3, ("if/else_branch/else",))
    assert [finding.node for finding in remarks(IF)] == ["if/else_branch/else"]


# Findings of training


def training(text: str) -> list[Finding]:
    """The warnings that only training adds."""
    plain = remarks(text)
    found = remarks(text, train=True)
    assert found[: len(plain)] == plain
    return found[len(plain) :]


def test_quantized_weights_are_not_trained() -> None:
    text = """agraph (float[2,3] x) => (y)
    <int8[3,5] q, int8[5,5] r, float s = {1.0}, float[5,7] w> {
        a = DequantizeLinear(q, s)
        b = MatMul(x, a)
        c = DequantizeLinear(r, s)
        d = MatMul(b, c)
        y = MatMul(d, w)
    }"""
    message = "2 quantized weights not trained; the training figures are those of the other weights"
    assert training(text) == [Finding("quantized_training", message)]
    one = text.replace("c = DequantizeLinear(r, s)", "").replace("MatMul(b, c)", "Relu(b)")
    assert "1 quantized weight not trained; " in training(one)[0].message


def test_a_model_without_parameters_has_nothing_to_train() -> None:
    text = "agraph (float[2,3] x) => (y) { y = Relu(x) }"
    message = "the model has no trainable weights"
    assert training(text) == [Finding("nothing_to_train", message)]


def test_a_model_with_only_quantized_weights_has_both_warnings() -> None:
    text = """agraph (float[2,3] x) => (y) <int8[3,5] q, float s = {1.0}> {
        a = DequantizeLinear(q, s)
        y = MatMul(x, a)
    }"""
    codes = [finding.code for finding in training(text)]
    assert codes == ["quantized_training", "nothing_to_train"]


def test_training_through_control_flow_is_reported() -> None:
    text = LOOP.replace("=> (y) {", "=> (y) <float[3,3] w> {").replace("Relu(s)", "MatMul(s, w)")
    message = "the bodies of control flow are assumed to save their tensors once: 'loop'"
    assert training(text) == [Finding("control_flow_training", message, "loop")]
