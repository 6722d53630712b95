"""Steps in float32, under autocast and with checkpointed blocks, of networks of other kinds.

Of data/training_precisions.json.xz, by tools/training/precisions.py. Those of all groups but
``seen`` were measured when the rules were frozen; no rule was derived from ``apart``.
"""

import base64
import json
import lzma
from functools import cache
from typing import Any

import pytest
from paths import DATA

from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import load
from onnxmem.model.graph import Graph
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.settings import TrainingConfig

FILE = DATA / "training_precisions.json.xz"
NETWORKS: dict[str, dict[str, Any]] = {
    each["model"]: each for each in json.loads(lzma.decompress(FILE.read_bytes()))["networks"]
}
KINDS = (
    *(("seen", "fp32", "none", 1, 98), ("seen", "mixed-bf16", "none", 1, 92)),
    ("seen", "fp32", "blocks", 2, 92),
    *(("unseen", "fp32", "none", 1, 83), ("unseen", "mixed-bf16", "none", 1, 85)),
    ("unseen", "fp32", "blocks", 2, 83),
    *(("fresh", "fp32", "none", 1, 78), ("fresh", "mixed-bf16", "none", 1, 74)),
    ("fresh", "fp32", "blocks", 2, 90),
    *(("worked", "fp32", "none", 1, 86), ("worked", "mixed-bf16", "none", 1, 80)),
    ("apart", "fp32", "none", 1, 92),
)
"""Of a group and a kind of step: precision, checkpoints, an error in percent, and the share of rows
within it."""


@cache
def graph(model: str, exporter: str, batch: int) -> Graph:
    file = base64.b64decode(NETWORKS[model]["files"][exporter])
    return build(prepare(load(file)), Request(batch=batch)).graph


def error_percent(model: str, exporter: str, row: dict[str, Any]) -> float:
    recipe = TrainingConfig(
        optimizer="adam",
        loss=NETWORKS[model]["loss"],
        precision=row["precision"],
        checkpoint=row["checkpoint"],
        recurrent="cells",
    )
    found = training_memory(graph(model, exporter, row["batch"]), recipe)
    measured_bytes: int = row["peak_bytes"]
    return 100 * abs(found.peak_bytes / measured_bytes - 1)


@pytest.mark.parametrize(
    ("group", "precision", "checkpoint", "most", "share"),
    [pytest.param(*kind, marks=pytest.mark.slow if kind[0] != "fresh" else ()) for kind in KINDS],
)
def test_most_peaks_are_as_measured(
    group: str, precision: str, checkpoint: str, most: float, share: float
) -> None:
    errors = [
        error_percent(model, exporter, row)
        for model, network in NETWORKS.items()
        if network["group"] == group
        for exporter in network["files"]
        for row in network["rows"]
        if (row["precision"], row["checkpoint"]) == (precision, checkpoint)
    ]
    within = sum(error <= most for error in errors)
    assert len(errors) >= 20
    assert 100 * within / len(errors) >= share


def test_many_of_the_networks_were_unseen() -> None:
    groups = [network["group"] for network in NETWORKS.values()]
    assert len(groups) - groups.count("seen") >= 2 * groups.count("seen")
    assert all(network["files"] for network in NETWORKS.values())
