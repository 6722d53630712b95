"""What an export leaves out and a reader says was there: BatchNormalization and Dropout."""

import pytest
from graphs import model_of
from training_steps import network, operators, recipe_of, run_as, step

from onnxmem.model import ModelFile, Request, build, prepare
from onnxmem.training import TrainingMemory, training_memory
from onnxmem.training.network import Network, network_of

CONV = """
    agraph (float[2,3,5,5] x) => (float[2,11,3,3] y)
    <float[7,3,3,3] w, float[7] b, float[11,7,1,1] v> {
        c = Conv(x, w, b)
        r = Relu(c)
        y = Conv(r, v)
    }"""


def renamed(text: str, names: dict[str, str], **given: object) -> tuple[Network, TrainingMemory]:
    """A graph with some tensors called otherwise, and its step."""
    model = model_of(text)
    for weight in model.graph.initializer:
        weight.name = names.get(weight.name, weight.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    graph = build(prepare(ModelFile("<text>", model, 0)), Request()).graph
    recipe = recipe_of(**given)
    return network_of(graph, recipe), training_memory(graph, recipe)


@pytest.mark.parametrize(
    "names",
    [
        {"c": "getitem"},
        {"c": "getitem_12"},
        {"c": "stem/getitem_3"},
        {"w": "onnx::Conv_123"},
        {"w": "stem/onnx::Conv_7"},
    ],
)
def test_a_folded_normalisation_leaves_a_trace(names: dict[str, str]) -> None:
    (finding,) = renamed(CONV, names)[0].findings
    assert finding.code == "folded_batchnorm"
    assert finding.node == "Conv_0"
    assert finding.message.startswith("1 layer with the trace of a BatchNormalization")
    assert "optimize=False" in finding.message
    assert "--assume-batchnorm" in finding.message


@pytest.mark.parametrize(
    "names", [{}, {"c": "getitems"}, {"r": "getitem"}, {"w": "conv.weight"}, {"b": "onnx::Conv_1"}]
)
def test_other_names_are_no_trace(names: dict[str, str]) -> None:
    assert renamed(CONV, names)[0].findings == ()


def test_a_normalisation_is_put_back_where_its_trace_is() -> None:
    """Behind the convolution, whose bias was its shift; readers read what it makes."""
    found, taken = renamed(CONV, {"c": "getitem"}, assume_batchnorm=True)
    assert operators(found.graph) == ["Conv", "BatchNormalization", "Relu", "Conv"]
    assert found.graph.nodes[0].inputs == ("x", "w")
    assert found.graph.nodes[2].inputs == found.graph.nodes[1].outputs
    assert found.findings == ()
    scale_and_bias = ("Conv_0/scale", "Conv_0/bias")
    assert found.parameters.trained == ("w", *scale_and_bias, "v")
    assert "b" not in found.graph.tensors
    assert taken.weight_bytes == 4 * (7 * 27 + 2 * 7 + 77)
    assert taken.buffer_bytes == 4 * 2 * 7 + 8  # running statistics, and the batches counted


def test_the_normalisation_keeps_its_input_and_statistics() -> None:
    """Its input is the convolution's output, 2 x 7 x 3 x 3, beside the ReLU's."""
    _, without = renamed(CONV, {"c": "getitem"})
    _, with_norm = renamed(CONV, {"c": "getitem"}, assume_batchnorm=True)
    assert without.saved_activation_bytes is not None
    more = 4 * 2 * 7 * 9 + 2 * 4 * 7
    assert with_norm.saved_activation_bytes == without.saved_activation_bytes + more


def test_without_traces_every_convolution_with_a_bias_is_normalised() -> None:
    assert run_as(CONV, assume_batchnorm=True) == ["Conv", "BatchNormalization", "Relu", "Conv"]
    plain = CONV.replace("Conv(x, w, b)", "Conv(x, w)").replace(", float[7] b", "")
    assert run_as(plain, assume_batchnorm=True) == ["Conv", "Relu", "Conv"]


def test_an_output_that_is_normalised_is_that_of_the_normalisation() -> None:
    text = """
        agraph (float[2,3,5,5] x) => (float[2,7,7,7] y) <float[3,7,3,3] w, float[7] b> {
            y = ConvTranspose(x, w, b)
        }"""
    found = network(text, assume_batchnorm=True).graph
    assert found.outputs == ("ConvTranspose_0/BatchNormalization_0_output",)
    assert step(text, assume_batchnorm=True, loss="mse").input_bytes == 4 * (150 + 2 * 7 * 49)


def test_a_convolution_of_unknown_shape_is_left_alone() -> None:
    text = """
        agraph (float[2,3,5,5] x, int64[4] s) => (float y) <float[7,3,3,3] w, float[7] b> {
            r = Reshape(x, s)
            y = Conv(r, w, b)
        }"""
    assert run_as(text, assume_batchnorm=True) == ["Reshape", "Conv"]


DROPPED = """
    agraph (float[2,5,7] x, float[2,5,5] scores) => (float y)
    <float[7,7] w, float[7] b, float[7,7] v> {{ {body} }}"""


def dropped(body: str) -> list[str]:
    return run_as(DROPPED.format(body=body), assume_dropout=True)


def test_dropout_stands_between_a_softmax_and_its_product() -> None:
    found = dropped("p = Softmax <axis = -1> (scores)  y = MatMul(p, x)")
    assert found == ["Softmax", "Dropout", "MatMul"]


@pytest.mark.parametrize("op_type", ["Relu", "Gelu", "Tanh"])
def test_dropout_stands_before_a_classifiers_layers(op_type: str) -> None:
    text = f"""
        agraph (float[2,7] x) => (float[2,5] y) <float[7,5] w, float[5] b> {{
            h = {op_type}(x)
            y = Gemm(h, w, b)
        }}"""
    assert run_as(text, assume_dropout=True) == [op_type, "Dropout", "Gemm"]


def test_dropout_stands_between_a_layer_and_its_residual() -> None:
    found = dropped("m = MatMul(x, w)  l = Add(m, b)  y = Add(x, l)")
    assert found == ["linear", "Dropout", "Add"]


@pytest.mark.parametrize(
    "body",
    [
        "p = Softmax <axis = -1> (scores)  y = Exp(p)",
        "m = MatMul(scores, x)  y = Add(x, m)",
        "r = Relu(x)  y = MatMul(r, w)",
        "m = MatMul(x, w)  y = Add(m, b)",
        "e = Exp(x)  y = Add(x, e)",
    ],
)
def test_networks_drop_nowhere_else(body: str) -> None:
    """No product after it, no layer, no classifier, no residual: a bias is none."""
    assert "Dropout" not in dropped(body)


def test_a_supposed_dropout_keeps_a_byte_an_element_and_its_result() -> None:
    text = DROPPED.format(body="m = MatMul(x, w)  r = Add(x, m)  y = MatMul(r, v)")
    without, found = step(text), step(text, assume_dropout=True)
    assert without.saved_activation_bytes is not None
    assert found.saved_activation_bytes == without.saved_activation_bytes + 2 * 5 * 7


def test_both_may_be_supposed() -> None:
    text = """
        agraph (float[2,3,5,5] x) => (float[2,11] y)
        <float[7,3,3,3] w, float[7] b, float[63,11] v, float[11] c> {
            h = Conv(x, w, b)
            f = Flatten(h)
            y = Gemm(f, v, c)
        }"""
    found = run_as(text, assume_batchnorm=True, assume_dropout=True)
    assert found == ["Conv", "BatchNormalization", "Flatten", "Dropout", "Gemm"]
