"""Narrower networks: which dims are halved, which networks are left alone, what it saves."""

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from graphs import model_of
from onnx.reference import ReferenceEvaluator
from paths import MODELS

from onnxmem.analysis.compute import compute
from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.decisions.advise.advising import advised
from onnxmem.decisions.advise.proposals import Objective, Subject, Suggestion
from onnxmem.decisions.advise.widths import is_consistent, width_suggestions
from onnxmem.model.graph import Graph
from onnxmem.settings import Settings

CNN = """agraph (float[N,3,8,8] x) => (float[N,10] y)
    <float[8,3,3,3] w1, float[8] b1, float[8] scale, float[8] shift, float[8] mean, float[8] var,
     float[8,1,3,3] wd, float[16,8,1,1] w2, float[1,16,1,1] gain, float[10,16] w3, float[10] b3> {
    a = Conv <pads = [1,1,1,1]> (x, w1, b1)
    n = BatchNormalization (a, scale, shift, mean, var)
    r = Relu (n)
    d = Conv <group = 8, pads = [1,1,1,1]> (r, wd)
    s = Add (r, d)
    c = Conv (s, w2)
    g = Mul (c, gain)
    p = GlobalAveragePool (g)
    f = Flatten (p)
    y = Gemm <transB = 1> (f, w3, b3)
}"""
MLP = """agraph (float[N,6] x) => (float[N,4] y)
    <float[6,8] w1, float[8] b1, float[8,10] w2, float[10,4] w3> {
    a = MatMul (x, w1)
    b = Add (a, b1)
    h = Relu (b)
    c = MatMul (h, w2)
    y = MatMul (c, w3)
}"""


def subject_of(text: str) -> Subject:
    return Subject(request_of(model_of(text), Settings(batch=2, train=True)))


def found_in(text: str) -> dict[str, Suggestion]:
    return {each.id: each for each in width_suggestions(subject_of(text))}


def changed(text: str, word: str) -> AnalysisRequest:
    suggestion = found_in(text)[word]
    assert suggestion.change is not None
    return suggestion.change(subject_of(text)).request


def weights_of(graph: Graph) -> Mapping[str, tuple[int | None, ...] | None]:
    return {weight.name: weight.shape for weight in graph.weights}


def test_channels_are_halved_from_layer_to_layer() -> None:
    """Three input channels and ten classes stay; the depthwise convolution has four groups."""
    graph = changed(CNN, "half_width").results.bound.graph
    assert weights_of(graph) == {
        "w1": (4, 3, 3, 3),
        **dict.fromkeys(("b1", "scale", "shift", "mean", "var"), (4,)),
        "wd": (4, 1, 3, 3),
        "w2": (8, 4, 1, 1),
        "gain": (1, 8, 1, 1),
        "w3": (10, 8),
        "b3": (10,),
    }
    assert graph.tensors["g"].shape == (2, 8, 8, 8)
    assert graph.tensors["y"].shape == (2, 10)


@pytest.mark.parametrize(("text", "word"), [(CNN, "half_width"), (MLP, "half_width")])
def test_the_narrower_network_runs(text: str, word: str) -> None:
    proto = changed(text, word).source.proto
    random = np.random.default_rng(7)
    filled = onnx.ModelProto()
    filled.CopyFrom(proto)
    for tensor in filled.graph.initializer:
        array = random.random(tuple(tensor.dims)).astype(np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    onnx.checker.check_model(filled)
    (value,) = filled.graph.input
    dims = [dim.dim_value or 2 for dim in value.type.tensor_type.shape.dim]
    (output,) = ReferenceEvaluator(filled).run(None, {value.name: np.ones(dims, np.float32)})
    assert np.asarray(output).shape == (2, 10 if text == CNN else 4)


def test_a_perceptron_s_two_suggestions_are_one() -> None:
    assert set(found_in(MLP)) == {"half_width"}
    graph = changed(MLP, "half_width").results.bound.graph
    assert weights_of(graph) == {"w1": (6, 4), "b1": (4,), "w2": (4, 5), "w3": (5, 4)}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float[8,10] w2, float[10,4] w3", "float[8,9] w2, float[9,4] w3"),
        ("c = MatMul (h, w2)", "i = Softmax (h)\n c = MatMul (i, w2)"),
        ("c = MatMul (h, w2)", "i = LpNormalization (h)\n c = MatMul (i, w2)"),
        ("h = Relu (b)", "z = Constant <value = float[8] {1,2,3,4,5,6,7,8}> ()\n h = Add (b, z)"),
        ("h = Relu (b)", "h = Add (b, wide)"),
    ],
    ids=["odd", "softmax", "norm", "constant", "matrix"],
)
def test_what_has_an_unknown_effect_on_channels_is_left_alone(old: str, new: str) -> None:
    text = MLP.replace(old, new).replace("float[8] b1", "float[8] b1, float[2,8] wide")
    assert "half_width" not in found_in(text)


def test_a_weight_that_two_layers_read_differently_is_left_alone() -> None:
    text = """agraph (float[N,8] x) => (float[N,8] y) <float[8,8] w> {
        a = MatMul (x, w)
        y = MatMul (a, w)
    }"""
    assert found_in(text) == {}


def test_a_convolution_of_no_groups_is_left_alone() -> None:
    assert found_in(CNN.replace("c = Conv (s, w2)", "c = Conv <group = 0> (s, w2)")) == {}


def test_layers_inside_are_read_by_layers_alone() -> None:
    """The first is added to the input again, as in a residual block; the second is inside."""
    text = """agraph (float[N,64] x) => (float[N,64] y)
        <float[64,64] w1, float[64,256] w2, float[256,64] w3> {
        a = MatMul (x, w1)
        b = Add (a, x)
        c = MatMul (b, w2)
        e = Erf (c)
        h = Mul (c, e)
        d = MatMul (h, w3)
        y = Add (d, b)
    }"""
    assert set(found_in(text)) == {"half_linear"}
    graph = changed(text, "half_linear").results.bound.graph
    assert weights_of(graph) == {"w1": (64, 64), "w2": (64, 128), "w3": (128, 64)}


@pytest.mark.parametrize(
    ("name", "word", "parameters"),
    [
        ("mlp", "half_width", 1000 * 50 + 50 + 3 * (50 * 50 + 50) + 50 * 10 + 10),
        (
            "vgg16",
            "half_linear",
            14_714_688 + (25_088 + 1) * 2048 + (2048 + 1) * 2048 + (2048 + 1) * 1000,
        ),
        ("unet", "half_width", None),
        ("mobilenet_v2.train", "half_width", None),
        pytest.param("bert_base", "half_linear", None, marks=pytest.mark.slow),
    ],
)
def test_the_advice_on_a_model_is_that_of_the_narrower_one(
    name: str, word: str, parameters: int | None
) -> None:
    path = str(MODELS / f"{name}.onnx")
    request = request_of(path, Settings(batch=2, train=True, basis="tensors"))
    advice = advised(request)
    (proposal,) = (each for each in advice.proposals if each.suggestion.id == word)
    assert proposal.figure is Objective.STEP
    assert proposal.is_exact
    assert proposal.suggestion.changes_training
    assert "; FLOPs -" in proposal.suggestion.cost
    assert proposal.suggestion.change is not None
    results = proposal.suggestion.change(Subject(request)).results()
    assert results.training_peak_bytes == proposal.after_bytes
    assert is_consistent(results.bound.graph)
    if parameters is not None:
        assert results.parameters.num_parameters == parameters
    before, after = (compute(each.bound.graph) for each in (request.results, results))
    assert (after.forward_flops or 0) < (before.forward_flops or 0)


def test_operands_that_do_not_fit_are_seen() -> None:
    """Shape inference looks at no channels."""
    sound = request_of(model_of(CNN), Settings(batch=2)).results.bound.graph
    assert is_consistent(sound)
    for old, new in (
        ("float[16,8,1,1] w2", "float[16,4,1,1] w2"),
        ("float[10,16] w3", "float[10,8] w3"),
    ):
        text = CNN.replace(old, new)
        assert not is_consistent(request_of(model_of(text), Settings(batch=2)).results.bound.graph)


def test_fewer_samples_have_their_flops() -> None:
    request = request_of(str(MODELS / "mlp.onnx"), Settings(batch=1024, train=True))
    (half,) = (each for each in advised(request).proposals if each.suggestion.id == "batch")
    assert half.suggestion.cost == "2 runs for the same samples; the same FLOPs"
