"""The examples that the field teaches with, computed from real model files."""

from collections import Counter

import pytest
from graphs import model_of
from paths import MODELS

from onnxmem import Analysis, analyze


def analysis_of(name: str, batch: int, *, optimizer: str = "adam") -> Analysis:
    return analyze(MODELS / f"{name}.onnx", batch=batch, train=True, optimizer=optimizer)


def by_operator(analysis: Analysis, key: str) -> Counter[str]:
    """Sum one column of the layer table over the operators."""
    sums: Counter[str] = Counter()
    layers = analysis.to_dict(layers=True)["layers"]
    assert isinstance(layers, list)
    for layer in layers:
        sums[layer["op_type"]] += layer[key] or 0
    return sums


def test_figures_of_an_mlp_at_batch_256() -> None:
    """1000 -> 4 x 100 -> 10: input and activations once, and with the activations' gradients."""
    mlp = analysis_of("mlp", 256)
    assert mlp.num_parameters == 131_410
    assert mlp.to_dict()["elements"] == {
        "inputs": 256_000,
        "activations": 104_960,
        "forward": 360_960,
        "with_gradients": 465_920,
        "forward_per_sample": 1_410,
        "with_gradients_per_sample": 1_820,
    }
    assert mlp.elements.with_gradients_bytes == 1_863_680
    assert mlp.rules_of_thumb.inputs_activations_and_gradients_bytes == 1_863_680


def test_vgg16_has_the_sum_of_the_lecture_table() -> None:
    """The rows sum to 15,237,608 elements per image, including the input, with ReLU in place.

    The file has one more row: an average pool of 7 x 7 x 512 that changes nothing.
    """
    vgg16 = analysis_of("vgg16", 1)
    assert vgg16.num_parameters == 138_357_544
    elements = vgg16.activations.naive_in_place_elements
    assert elements is not None
    assert elements + 3 * 224 * 224 - 7 * 7 * 512 == 15_237_608


def test_alexnet_has_its_parameters_and_its_macs_in_different_layers() -> None:
    alexnet = analysis_of("alexnet", 1)
    parameters, macs = by_operator(alexnet, "parameters"), by_operator(alexnet, "macs")
    assert parameters["Gemm"] == 58_631_144
    assert parameters["Conv"] == 2_469_696
    assert macs["Conv"] == 655_566_528
    assert macs["Gemm"] == 58_621_952


def test_a_depthwise_separable_block_computes_less_and_stores_more() -> None:
    plain = analysis_of("plain_conv_block", 1)
    separable = analysis_of("depthwise_separable_block", 1)
    assert plain.compute.forward_macs is not None
    assert separable.compute.forward_macs is not None
    assert 8 * separable.compute.forward_macs < plain.compute.forward_macs
    for figure in ("naive_bytes", "naive_in_place_bytes"):
        assert getattr(separable.activations, figure) > getattr(plain.activations, figure)


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_optimizer_state_is_a_multiple_of_the_weights(optimizer: str, copies: int) -> None:
    """Adam also counts its steps: 4 bytes for each of the 10 parameter tensors."""
    training = analysis_of("mlp", 1, optimizer=optimizer).training
    assert training is not None
    steps = 4 * 10 if optimizer == "adam" else 0
    assert training.optimizer_state_bytes == copies * training.weight_bytes + steps


def test_batch_128_is_affine_and_not_proportional_to_batch_1() -> None:
    one, many = analysis_of("resnet50", 1), analysis_of("resnet50", 128)
    law = many.batch_law
    assert law is not None
    assert one.total_bytes == law.fixed_bytes + law.slope_bytes
    assert many.total_bytes == law.fixed_bytes + 128 * law.slope_bytes
    assert law.fixed_bytes == many.weight_bytes
    assert many.total_bytes < 128 * one.total_bytes


def test_analyzing_again_at_another_batch_equals_a_first_analysis() -> None:
    again = analysis_of("resnet50.train", 8).at(batch=3)
    assert again.to_dict() == analysis_of("resnet50.train", 3).to_dict()


def test_another_batch_overrides_a_dim_named_batch() -> None:
    text = "agraph (float[batch,5] x) => (float[batch,5] y) { y = Relu(x) }"
    first = analyze(model_of(text), dims={"batch": 7})
    assert (first.settings.batch, first.inputs_bytes) == (7, 7 * 5 * 4)
    assert first.at(batch=11).inputs_bytes == 11 * 5 * 4
