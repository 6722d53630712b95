"""Figures of nodes that are laid over a drawing: they add up to those of the report."""

import json

import pytest
from export.small_exports import IF_MODEL, analysis_of, exported, hostile_analysis
from models_on_disk import MYSTERY
from paths import MODELS

import onnxmem
from onnxmem.export.overlays import Overlay, overlays


def by_name(analysis: onnxmem.Analysis) -> dict[str, Overlay]:
    return {each.name: each for each in overlays(analysis)}


def total(overlay: Overlay) -> int:
    return sum(overlay.by_node.values()) + overlay.elsewhere_bytes


def most(overlay: Overlay) -> int:
    return max(overlay.by_node.values()) + overlay.elsewhere_bytes


def test_inference_is_live_bytes_and_what_is_live_at_the_peak() -> None:
    # Batch 5: 5 x 8 x 16 x 16 floats, of which the pool makes a quarter.
    conv, pool, scores = 4 * 5 * 8 * 16 * 16, 4 * 5 * 8 * 8 * 8, 4 * 5 * 10
    peak, live = overlays(analysis_of(batch=5))
    assert (live.name, peak.name) == ("Live activations", "Live at the peak")
    assert live.by_node == {
        "conv": conv,
        "relu": conv,
        "pool": conv + pool,
        "flat": pool,
        "gemm": pool + scores,
    }
    # Relu writes over the output of Conv, whose node has the buffer.
    assert peak.by_node == {"conv": conv, "pool": pool}
    assert peak.elsewhere_bytes == 0


@pytest.mark.parametrize("name", ["resnet50", "efficientnet_b0", "gpt2"])
def test_the_nodes_add_up_to_the_figures(name: str) -> None:
    path = MODELS / f"{name}.onnx"
    inference = onnxmem.analyze(path)
    assert total(by_name(inference)["Live at the peak"]) == (
        inference.activations.in_place_peak_bytes
    )
    analysis = onnxmem.analyze(path, batch=2, train=True)
    step = analysis.training
    assert step is not None
    found = by_name(analysis)
    saved = found["Saved for backward"]
    assert total(saved) == step.saved_activation_bytes
    # A BatchNormalization that the export folded into a Conv counts at the Conv: the rest is loss.
    assert saved.elsewhere_bytes <= 0.14 * total(saved)
    assert total(found["Live at the step's peak"]) == step.peak_bytes
    forward, backward = (found[f"Live in the {phase} phase"] for phase in ("forward", "backward"))
    # The forward phase ends with the loss, which is no node of the graph.
    assert most(forward) <= step.forward_peak_bytes
    assert most(backward) == step.backward_peak_bytes
    always = step.weight_bytes + step.buffer_bytes + step.optimizer_state_bytes
    assert backward.elsewhere_bytes == always + (step.input_bytes or 0)


def test_a_body_counts_at_its_node() -> None:
    analysis = analysis_of(IF_MODEL)
    assert set(by_name(analysis)["Live activations"].by_node) == {"root", "fork", "end"}
    assert total(by_name(analysis)["Live at the peak"]) == analysis.activations.in_place_peak_bytes


def test_what_is_unknown_is_left_out() -> None:
    peak, live = overlays(analysis_of(MYSTERY))
    assert peak.by_node == {"product": 4 * 7}
    assert set(live.by_node) == {"product", "strange"}
    nothing = analysis_of(
        '<ir_version: 10, opset_import: ["" : 21, "acme" : 1]> '
        "agraph (x) => (y) { [strange] y = acme.Mystery(x) }"
    )
    assert [each.by_node for each in overlays(nothing)] == [{}, {}]


def test_colors_are_darker_the_more_bytes() -> None:
    found = Overlay("Live", {"none": 0, "half": 50, "all": 100})
    assert list(found.colors()) == [
        ("none", 0, "#fff4e5"),
        ("half", 50, "#e09a78"),
        ("all", 100, "#c2410c"),
    ]
    assert list(Overlay("Live", {"none": 0}).colors()) == [("none", 0, "#fff4e5")]


def test_the_file_is_node_data_by_the_names_of_nodes() -> None:
    live = json.loads(exported(analysis_of(), "model-explorer"))
    assert live["name"] == "Live activations, bytes"
    assert live["results"]["pool"] == {"value": 4 * 8 * (256 + 64), "bgColor": "#c2410c"}
    saved = json.loads(exported(analysis_of(train=True), "model-explorer"))
    assert saved["name"].startswith("Saved for backward, bytes (+ ")
    assert set(saved["results"]) <= {"conv", "relu", "pool", "flat", "gemm"}


def test_hostile_names_are_ids_as_they_are() -> None:
    hostile = hostile_analysis()
    text = exported(hostile, "model-explorer")
    assert all(char.isprintable() or char == "\n" for char in text)
    assert set(json.loads(text)["results"]) == {node.name for node in hostile.graph.nodes}
