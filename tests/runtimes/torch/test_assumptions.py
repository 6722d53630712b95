"""BatchNormalization and Dropout that an export left out and a setting puts back."""

from argparse import ArgumentParser
from typing import Any

import onnx
import pytest
from graphs import model_of
from runtimes.torch.training_steps import network, operators, recipe_of, run_as, step

import onnxmem
from onnxmem.cli.chosen import recipe_from
from onnxmem.cli.options import add_training_options
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.report.terminal import render
from onnxmem.runtimes.torch.folded import BatchNorms
from onnxmem.runtimes.torch.memory import PeakRange, TrainingMemory
from onnxmem.runtimes.torch.network import Network, network_of
from onnxmem.runtimes.torch.step import training_memory

CONV = """
    agraph (float[2,3,5,5] x) => (float[2,11,3,3] y)
    <float[7,3,3,3] w, float[7] b, float[11,7,1,1] v> {
        c = Conv(x, w, b)
        r = Relu(c)
        y = Conv(r, v)
    }"""


def with_names(text: str, names: dict[str, str]) -> onnx.ModelProto:
    """A model with some tensors called otherwise."""
    model = model_of(text)
    for weight in model.graph.initializer:
        weight.name = names.get(weight.name, weight.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    return model


def renamed(text: str, names: dict[str, str], **given: object) -> tuple[Network, TrainingMemory]:
    """A graph with some tensors called otherwise, and its step."""
    model = with_names(text, names)
    graph = build(prepare(ModelFile("<text>", model, 0)), Request()).graph
    recipe = recipe_of(**given)
    return network_of(graph, recipe), training_memory(graph, recipe)


def test_a_normalization_is_put_back_where_the_file_shows_it() -> None:
    """After the convolution, whose bias was its own; readers read its output."""
    found, taken = renamed(CONV, {"c": "getitem", "b": "w_bias"})
    assert operators(found.graph) == ["Conv", "BatchNormalization", "Relu", "Conv"]
    assert found.graph.nodes[0].inputs == ("x", "w")
    assert found.graph.nodes[2].inputs == found.graph.nodes[1].outputs
    assert found.batchnorms == BatchNorms(put_back=("Conv_0",))
    (finding,) = found.findings
    assert (finding.code, finding.node) == ("batchnorm_put_back", "Conv_0")
    assert finding.message.startswith("1 BatchNormalization put back")
    scale_and_bias = ("Conv_0/scale", "Conv_0/bias")
    assert found.parameters.trained == ("w", *scale_and_bias, "v")
    assert "w_bias" not in found.graph.tensors
    assert taken.weight_bytes == 4 * (7 * 27 + 2 * 7 + 77)
    assert taken.buffer_bytes == 4 * 2 * 7 + 8  # running statistics, and the batches counted


def test_a_layers_own_bias_stays() -> None:
    """The exporter does not rename it; the normalization has a bias of its own."""
    found, taken = renamed(CONV, {"c": "getitem", "w": "conv.weight", "b": "conv.bias"})
    assert found.graph.nodes[0].inputs == ("x", "conv.weight", "conv.bias")
    assert taken.weight_bytes == 4 * (7 * 27 + 7 + 2 * 7 + 77)


def test_a_bias_that_a_plain_layer_shares_stays() -> None:
    text = """
        agraph (float[2,3,5,5] x) => (float[2,7,3,3] y)
        <float[7,3,3,3] w, float[7] w_bias, float[7,7,1,1] v> {
            getitem = Conv(x, w, w_bias)
            r = Relu(getitem)
            y = Conv(r, v, w_bias)
        }"""
    found = network(text)
    assert [node.inputs[1:] for node in found.graph.nodes if node.op_type == "Conv"] == [
        ("w",),
        ("v", "w_bias"),
    ]
    assert "w_bias" in found.graph.tensors


def test_normalizations_that_the_file_shows_are_left_out_on_request() -> None:
    found, _ = renamed(CONV, {"c": "getitem"}, assume_batchnorm=False)
    assert operators(found.graph) == ["Conv", "Relu", "Conv"]
    assert found.batchnorms == BatchNorms(left_out=("Conv_0",))
    assert found.findings == ()


def test_normalizations_that_the_file_does_not_show_are_put_back_on_request() -> None:
    """With uninformative names: by default, with one, and without."""
    names = {"w": "v353", "b": "v354"}
    found, _ = renamed(CONV, names)
    assert operators(found.graph) == ["Conv", "Relu", "Conv"]
    assert found.batchnorms == BatchNorms(unknown=("Conv_0",))
    assert found.findings == ()
    found, _ = renamed(CONV, names, assume_batchnorm=True)
    assert operators(found.graph) == ["Conv", "BatchNormalization", "Relu", "Conv"]
    assert found.batchnorms == BatchNorms(put_back=("Conv_0",))
    assert [finding.code for finding in found.findings] == ["batchnorm_assumed"]
    found, _ = renamed(CONV, names, assume_batchnorm=False)
    assert (found.batchnorms, found.findings) == (BatchNorms(), ())


def test_a_network_without_normalizations_gets_none_on_request() -> None:
    found, _ = renamed(CONV, {}, assume_batchnorm=True)
    assert operators(found.graph) == ["Conv", "Relu", "Conv"]
    assert [finding.code for finding in found.findings] == ["no_batchnorm"]


def analyzed(names: dict[str, str], **given: object) -> onnxmem.Analysis:
    model = with_names(CONV, names)
    return onnxmem.analyze(model, train=True, recipe=recipe_of(**given))


def test_a_range_is_the_peak_without_and_with_possible_normalizations() -> None:
    names = {"w": "v353", "b": "v354"}
    found = analyzed(names)
    assert found.training is not None
    without, full = (analyzed(names, assume_batchnorm=given).training for given in (False, True))
    assert without is not None
    assert full is not None
    assert found.training.peak_bytes == without.peak_bytes < full.peak_bytes
    assert found.training_range == PeakRange(without.peak_bytes, full.peak_bytes)
    (finding,) = (each for each in found.findings if each.code == "batchnorm_unknown")
    assert f"{full.peak_bytes / without.peak_bytes:.2f} times" in finding.message
    row: Any = found.to_dict()["training"]
    assert row["batchnorm"] == {
        "put_back": 0,
        "left_out": 0,
        "unknown": 1,
        "low_bytes": without.peak_bytes,
        "high_bytes": full.peak_bytes,
    }
    text = render(found)
    assert "1 BatchNormalization possibly folded, not put back" in text
    assert "or up to" in text


def test_a_peak_without_normalizations_reports_them() -> None:
    """The factor is that of this model; nothing is open, so there is no range."""
    names = {"c": "getitem"}
    found, full = analyzed(names, assume_batchnorm=False), analyzed(names)
    assert found.training is not None
    assert full.training is not None
    assert (found.training_range, full.training_range) == (None, None)
    factor = full.training.peak_bytes / found.training.peak_bytes
    (finding,) = (each for each in found.findings if each.code == "folded_batchnorm")
    assert f"{factor:.2f} times" in finding.message
    lines = render(full).split("RUN")[0]
    assert "1 BatchNormalization put back that the export folded" in " ".join(lines.split())
    assert "left out that the export folded" in " ".join(render(found).split())


@pytest.mark.parametrize(
    ("flags", "assumed", "said"),
    [
        ([], None, ""),
        (["--assume-batchnorm"], True, "assume batchnorm"),
        (["--no-assume-batchnorm"], False, "no assume batchnorm"),
    ],
)
def test_a_flag_decides_which_are_put_back(flags: list[str], assumed: object, said: str) -> None:
    parser = ArgumentParser()
    add_training_options(parser)
    recipe = recipe_from(parser.parse_args(flags))
    assert recipe.assume_batchnorm is assumed
    text = render(onnxmem.analyze(with_names(CONV, {}), train=True, recipe=recipe))
    assert said in " ".join(text.split("RUN")[0].split())


def test_a_network_without_open_layers_has_no_range() -> None:
    found = analyzed({})
    assert found.training_range is None
    assert not {"batchnorm_unknown", "folded_batchnorm"} & {each.code for each in found.findings}


def test_the_normalization_saves_its_input_and_statistics() -> None:
    """Its input is the convolution's output, 2 x 7 x 3 x 3, beside the ReLU's."""
    _, without = renamed(CONV, {"c": "getitem"}, assume_batchnorm=False)
    _, with_norm = renamed(CONV, {"c": "getitem"})
    assert without.saved_activation_bytes is not None
    more = 4 * 2 * 7 * 9 + 2 * 4 * 7
    assert with_norm.saved_activation_bytes == without.saved_activation_bytes + more


def test_the_graph_output_becomes_that_of_the_normalization() -> None:
    text = """
        agraph (float[2,3,5,5] x) => (float[2,7,7,7] getitem)
        <float[3,7,3,3] w, float[7] w_bias> { getitem = ConvTranspose(x, w, w_bias) }"""
    assert network(text).graph.outputs == ("ConvTranspose_0/BatchNormalization_0_output",)
    assert step(text, loss="mse").input_bytes == 4 * (150 + 2 * 7 * 49)


def test_a_convolution_of_unknown_shape_is_not_changed() -> None:
    text = """
        agraph (float[2,3,5,5] x, int64[4] s) => (float y) <float[7,3,3,3] w, float[7] w_bias> {
            r = Reshape(x, s)
            y = Conv(r, w, w_bias)
        }"""
    assert run_as(text) == ["Reshape", "Conv"]
    assert network(text).batchnorms == BatchNorms()


DROPPED = """
    agraph (float[2,5,7] x, float[2,5,5] scores) => (float y)
    <float[7,7] w, float[7] b, float[7,7] v> {{ {body} }}"""


def dropped(body: str) -> list[str]:
    return run_as(DROPPED.format(body=body), assume_dropout=True)


def test_dropout_is_between_a_softmax_and_its_matmul() -> None:
    found = dropped("p = Softmax <axis = -1> (scores)  y = MatMul(p, x)")
    assert found == ["Softmax", "Dropout", "MatMul"]


@pytest.mark.parametrize("op_type", ["Relu", "Gelu", "Tanh"])
def test_dropout_is_before_the_layers_of_a_classifier(op_type: str) -> None:
    text = f"""
        agraph (float[2,7] x) => (float[2,5] y) <float[7,5] w, float[5] b> {{
            h = {op_type}(x)
            y = Gemm(h, w, b)
        }}"""
    assert run_as(text, assume_dropout=True) == [op_type, "Dropout", "Gemm"]


def test_dropout_is_between_a_layer_and_its_residual_sum() -> None:
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
def test_no_other_operators_have_dropout_between_them(body: str) -> None:
    """No matmul after it, no layer, no classifier, no residual: a bias is not one."""
    assert "Dropout" not in dropped(body)


def test_an_assumed_dropout_saves_a_byte_per_element_and_its_result() -> None:
    text = DROPPED.format(body="m = MatMul(x, w)  r = Add(x, m)  y = MatMul(r, v)")
    without, found = step(text), step(text, assume_dropout=True)
    assert without.saved_activation_bytes is not None
    assert found.saved_activation_bytes == without.saved_activation_bytes + 2 * 5 * 7


def test_both_may_be_assumed() -> None:
    text = """
        agraph (float[2,3,5,5] x) => (float[2,11] y)
        <float[7,3,3,3] w, float[7] w_bias, float[63,11] v, float[11] c> {
            h = Conv(x, w, w_bias)
            f = Flatten(h)
            y = Gemm(f, v, c)
        }"""
    found = run_as(text, assume_dropout=True)
    assert found == ["Conv", "BatchNormalization", "Flatten", "Dropout", "Gemm"]


def test_an_assumed_dropout_is_reported_and_so_is_one_without_effect() -> None:
    found = network(
        DROPPED.format(body="p = Softmax(scores)  y = MatMul(p, x)"), assume_dropout=True
    )
    (finding,) = found.findings
    assert (finding.code, finding.node) == ("dropout_assumed", "Softmax_0")
    assert finding.message.startswith("1 Dropout assumed")
    for body in ("y = Exp(x)", "d = Dropout(scores)  p = Softmax(d)  y = MatMul(p, x)"):
        (finding,) = network(DROPPED.format(body=body), assume_dropout=True).findings
        assert (finding.code, finding.node) == ("no_dropout", None)


def test_dropout_is_where_torch_export_left_its_module() -> None:
    """At the Identity of a Dropout module, and then not after a softmax."""
    model = model_of(
        DROPPED.format(body="p = Softmax(scores)  m = MatMul(p, x)  i = Identity(m)  y = Exp(i)")
    )
    module = "['Net', 'torch.nn.modules.dropout.Dropout', 'aten.clone.default']"
    model.graph.node[2].metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=module)
    graph = build(prepare(ModelFile("<text>", model, 0)), Request()).graph
    found = operators(network_of(graph, recipe_of(assume_dropout=True)).graph)
    assert found == ["Softmax", "MatMul", "Identity", "Dropout", "Exp"]


BLOCK: str = """
    agraph (float[2,3,5,7] q) => (float[2,3,5,7] y) <float[7] scale, float[7] bias> {{
        k = Transpose <perm = [0, 1, 3, 2]> (q)
        scores = MatMul (q, k)
        weights = Softmax <axis = -1> (scores)
        values = MatMul (weights, q)
        {end}
    }}"""
NORMALIZED: str = "y = LayerNormalization (values, scale, bias)"


@pytest.mark.parametrize(
    ("text", "given", "is_noted"),
    [
        (BLOCK.format(end=NORMALIZED), {}, True),
        (BLOCK.format(end=NORMALIZED), {"assume_dropout": True}, False),
        (BLOCK.format(end=NORMALIZED.replace("values", "d") + "\nd = Dropout (values)"), {}, False),
        (BLOCK.format(end="y = RMSNormalization (values, scale)"), {}, False),
        (CONV, {}, False),
    ],
)
def test_an_export_of_attention_without_dropout_is_noted(
    text: str, given: dict[str, bool], is_noted: bool
) -> None:
    codes = [each.code for each in network(text, **given).findings]
    assert ("dropout_left_out" in codes) is is_noted
