"""Every model of ``models/``, through the command line as a user asks."""

import gc
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from typing import Any

import pytest
from paths import MODELS

from onnxmem import analyze
from onnxmem.cli import main

EXPECTED: dict[str, dict[str, Any]] = json.loads((MODELS / "expected.json").read_text())
NAMES = sorted(path.name for path in MODELS.glob("*.onnx"))
KINDS = {
    *("mlp.onnx", "alexnet.onnx", "lstm_classifier.onnx", "mobilenet_v2.int8.onnx"),
    *("resnet50.train.onnx", "smollm_cached.onnx", "greedy_translator.onnx", "unet.onnx"),
}
"""One of a kind: the default run has the figures of these, and the counts of all."""
SOME = [n if n in KINDS else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]

FIXED_BY_THE_FILE = {"runtime", "measured", "error", "layers", "max_batch", "kv_cache"}
"""Null here: they were not asked for."""
NOT_ASKED_FOR = {
    *("activations.order", "activations.peak_rows", "settings.runtime"),
    *("training.recipe.lora_rank", "training.recipe.assume_batchnorm"),
    *("training.recipe.in_place_activations", "training.recipe.gpu_threads"),
    *("training.batchnorm.low_bytes", "training.batchnorm.high_bytes", "verdict", "devices"),
}
MAY_BE_NULL = {"training.peak_node", "batch_law", "training_law"}
"""Null where the figure is not affine in the batch."""
DATA_DEPENDENT = {"greedy_translator.onnx": {"outputs_bytes"}}
"""The length of what a decoding loop writes is in no file."""
SEEN_AS_PARAMETERS = {
    # Constants of the network that nothing in the file tells from parameters.
    "whisper_tiny_encoder.onnx": 1500 * 384,  # the sinusoidal table of positions
}


@cache
def row_of(name: str, *flags: str) -> dict[str, Any]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(MODELS / name), *flags, "--json"])
    assert (code, err.getvalue()) == (0, "")
    row: dict[str, Any] = json.loads(out.getvalue())["models"][0]
    return row


def nulls(value: object, path: str = "") -> set[str]:
    """The keys of a JSON object whose values are null."""
    if isinstance(value, dict):
        return {key for name, inner in value.items() for key in nulls(inner, f"{path}.{name}")}
    return {path.removeprefix(".")} if value is None else set()


def test_the_collection_has_enough_models() -> None:
    assert len(NAMES) >= 16
    assert sum((MODELS / name).stat().st_size for name in NAMES) < 10_000_000


@pytest.mark.parametrize("name", SOME)
def test_every_figure_of_the_contract_has_a_value(name: str) -> None:
    row = row_of(name, "--train", "--batch", "128")
    unknown = DATA_DEPENDENT.get(name, set())
    is_whole = not unknown and not row["settings"]["guessed_dims"]
    assert row["status"] == ("ok" if is_whole else "partial")
    assert row["settings"]["batch"] == 128
    allowed = FIXED_BY_THE_FILE | NOT_ASKED_FOR | MAY_BE_NULL | unknown
    # One dim of a decoding loop has no upper end.
    given = row | {"kv_cache": None, "data_dependent": None}
    assert nulls(given) - {*allowed, "data_dependent"} == set()


@pytest.mark.parametrize("name", ["mlp.onnx", "lstm_classifier.onnx", "resnet50.train.onnx"])
def test_an_analysis_holds_no_cycle(name: str) -> None:
    """Many models in one process stay small without a collection."""
    model = MODELS / name
    analyze(model).to_dict()
    gc.collect()
    gc.disable()
    try:
        analyze(model).to_dict()
        assert gc.collect() < 20
    finally:
        gc.enable()


@pytest.mark.parametrize("name", SOME)
def test_an_inference_has_a_peak_formula_or_a_reason(name: str) -> None:
    activations = row_of(name)["activations"]
    assert (activations["peak_rows"] is None) == (activations["no_peak_rows"] is not None)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_and_macs_equal_what_the_framework_counts(name: str) -> None:
    """``expected.json`` has PyTorch's own counts, at the sizes of the exported example."""
    expected = EXPECTED[name]
    dims = [f"--dim={key}={value}" for key, value in expected["dims"].items()]
    row = row_of(name, *dims)
    parameters, macs = expected["parameters"], expected["forward_macs_per_sample"]
    if parameters is not None and not is_folded(name):
        assert row["weights"]["parameters"] == parameters + SEEN_AS_PARAMETERS.get(name, 0)
    if macs is not None:
        assert row["compute"]["forward_macs"] == macs * row["settings"]["batch"]


def is_folded(name: str) -> bool:
    """Whether an inference export has folded its BatchNormalization into the convolutions."""
    return not EXPECTED[name]["training"] and EXPECTED[name]["buffer_elements"] != 0


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("mobilenet_v2.int8.onnx", "quantized_training"),
        ("tinyllama.int4.onnx", "quantized_training"),
        ("greedy_translator.onnx", "control_flow_training"),
    ],
)
def test_training_an_unsuitable_model_is_reported(name: str, code: str) -> None:
    row = row_of(name, "--train", "--batch", "128")
    assert code in {finding["code"] for finding in row["findings"]}
