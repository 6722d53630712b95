"""Steps of networks on which no rule was computed, as three exporters write them.

Of data/training_new, by tools/training/new.py. Rows of attention that is run as products are left
out where the network calls the framework's own, which is assumed to be one kernel.
"""

import json
from functools import cache
from statistics import median
from typing import Any

import pytest
from paths import DATA

from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import load
from onnxmem.model.graph import Graph
from onnxmem.runtimes.torch.memory import TrainingMemory
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.settings import TrainingConfig

FOLDER = DATA / "training_new"
ALL: list[dict[str, Any]] = json.loads((FOLDER / "truth.json").read_text())["rows"]
FUSED = {row["model"] for row in ALL if row["attention"] == "fused"}
ROWS = [row for row in ALL if row["attention"] == "fused" or row["model"] not in FUSED]
OPTIMIZERS = ("sgd", "momentum", "adam")
CASES = [(row, exporter) for row in ROWS for exporter in row["files"]]
FIRST = [
    (row, exporter)
    for row, exporter in CASES
    if row["batch"] == min(other["batch"] for other in ROWS if other["model"] == row["model"])
]
MOST_PERCENT = 0.2
"""Of all rows: buffers of an exporter's own tables, a mask computed in the forward pass."""
RECURRENT = frozenset({"gru_classifier", "lstm_lm"})


def name_of(case: dict[str, Any] | str) -> str:
    if isinstance(case, str):
        return case
    return f"{case['model']}-{case['batch']}"


@cache
def network(file: str, batch: int) -> Graph:
    return build(prepare(load(str(FOLDER / file))), Request(batch=batch)).graph


def step(row: dict[str, Any], exporter: str, optimizer: str = "sgd") -> TrainingMemory:
    """A step, with the normalizations that the file bears the trace of."""
    graph = network(row["files"][exporter], row["batch"])
    given: dict[str, Any] = {
        "optimizer": optimizer,
        "loss": row["loss"],
        "recurrent": "cells",
    }
    return training_memory(graph, TrainingConfig(**given))


def error_percent(found_bytes: int | None, measured_bytes: int) -> float:
    assert found_bytes is not None
    return 100 * abs(found_bytes / measured_bytes - 1)


@pytest.mark.parametrize(("row", "exporter"), FIRST, ids=name_of)
def test_the_smaller_batch_equals_the_measurement(row: dict[str, Any], exporter: str) -> None:
    """Each network as each exporter writes it, with SGD."""
    found = step(row, exporter)
    assert error_percent(found.peak_bytes, row["sgd"]["peak_bytes"]) <= MOST_PERCENT
    saved = error_percent(found.saved_activation_bytes, row["saved_activation_bytes"])
    assert saved <= MOST_PERCENT
    assert found.unknown == ()
    assert found.assumed_nodes == ()


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["legacy", "dynamo", "dynamo_plain"])
def test_peaks_of_all_rows_equal_the_measurements(exporter: str) -> None:
    """At both batches, with three optimizers: half of them within 0.1 %, all within 5 %."""
    errors = [
        error_percent(step(row, exporter, optimizer).peak_bytes, row[optimizer]["peak_bytes"])
        for row, each in CASES
        for optimizer in OPTIMIZERS
        if each == exporter
    ]
    assert len(errors) >= 90
    assert median(errors) <= 0.1
    assert max(errors) <= 5


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("row", "exporter"), CASES, ids=name_of)
def test_phases_and_state_equal_the_measurement(
    row: dict[str, Any], exporter: str, optimizer: str
) -> None:
    """Recurrent layers save their steps in other blocks, which shows only off the peak.

    The new exporter holds equal weights of networks that are not yet trained once: less gradients.
    """
    found, measured = step(row, exporter, optimizer), row[optimizer]
    most = 0.5 if row["model"] in RECURRENT else MOST_PERCENT
    assert error_percent(found.backward_peak_bytes, measured["backward_peak_bytes"]) <= most
    assert error_percent(found.optimizer_peak_bytes, measured["optimizer_peak_bytes"]) <= 1
    state_bytes = measured["optimizer_state_bytes"]
    assert abs(found.optimizer_state_bytes - state_bytes) <= 0.01 * state_bytes
    assert error_percent(found.gradient_bytes, row["gradient_bytes"]) <= 1


def test_folded_normalizations_are_found_where_the_exporter_folds_them() -> None:
    """Every one of them, and nowhere else."""
    folded = {
        (row["model"], exporter)
        for row, exporter in FIRST
        if "batchnorm_put_back" in network_findings(row, exporter)
    }
    normalized = {"shufflenet", "resnext", "dcgan_generator", "se_net", "inception", "segmenter"}
    assert folded == {(model, "dynamo") for model in normalized}


def network_findings(row: dict[str, Any], exporter: str) -> set[str]:
    graph = network(row["files"][exporter], row["batch"])
    found = training_memory(
        graph, TrainingConfig(optimizer="sgd", loss=row["loss"], recurrent="cells")
    )
    return {finding.code for finding in found.findings}
