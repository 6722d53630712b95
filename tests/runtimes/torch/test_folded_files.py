"""Files as users export them, beside the training files of the same networks.

Of data/training_folded, by tools/training/folded.py; `HELD_OUT` of folded_networks.py are networks
that no rule was worked out on.
"""

import gzip
import json
from functools import cache
from typing import Any

import pytest
from paths import DATA, MODELS

import onnxmem

FOLDED = DATA / "training_folded"
TABLE: dict[str, Any] = json.loads((FOLDED / "table.json").read_text())
ROWS: list[dict[str, Any]] = [row for row in TABLE["rows"] if "file" in row]
MOST_PERCENT = 1
MERGED = {"dla.dynamo.onnx.gz": 1.2}
"""The exporter's CommonSubexpressionEliminationPass makes one of two equal poolings: no file tells
that training runs both. In percent."""


@cache
def trained(file: str, *, assume_batchnorm: bool | None = None) -> onnxmem.Analysis:
    data = gzip.decompress((FOLDED / file).read_bytes())
    batch, recipe = TABLE["versions"]["batch"], onnxmem.Recipe(assume_batchnorm=assume_batchnorm)
    return onnxmem.analyze(data, batch=batch, train=True, recipe=recipe)


def rows(*, has_batchnorm: bool) -> list[Any]:
    found = (row for row in ROWS if row["has_batchnorm"] is has_batchnorm)
    return [pytest.param(row, id=row["file"].removesuffix(".onnx.gz")) for row in found]


@pytest.mark.parametrize("row", rows(has_batchnorm=True))
def test_a_default_export_trains_as_its_training_file(row: dict[str, Any]) -> None:
    """Every normalization is in the file or put back, and nothing is open."""
    found = trained(row["file"])
    assert found.training is not None
    percent = 100 * abs(found.training.peak_bytes / row["training_file_peak_bytes"] - 1)
    assert percent <= MERGED.get(row["file"], MOST_PERCENT)
    kept = [node for node in found.graph.nodes if node.op_type == "BatchNormalization"]
    assert len(found.training.batchnorms.put_back) + len(kept) == row["num_batchnorms"]
    assert found.training_range is None


@pytest.mark.parametrize("row", rows(has_batchnorm=False))
def test_a_network_without_batchnorm_is_left_as_it_is(row: dict[str, Any]) -> None:
    found = trained(row["file"])
    assert found.training is not None
    without = trained(row["file"], assume_batchnorm=False).training
    assert without is not None
    assert found.training.peak_bytes == without.peak_bytes
    assert found.training_range is None
    codes = {finding.code for finding in found.findings}
    assert not codes & {"batchnorm_put_back", "batchnorm_unknown", "folded_batchnorm"}


def test_both_exporters_wrote_networks_of_both_kinds() -> None:
    kinds = [(row["exporter"], row["has_batchnorm"], row["is_held_out"]) for row in ROWS]
    for exporter in ("script", "dynamo"):
        for has_batchnorm in (True, False):
            for is_held_out in (True, False):
                assert kinds.count((exporter, has_batchnorm, is_held_out)) >= 4


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "densenet121"])
def test_a_shipped_model_trains_as_its_training_file(name: str) -> None:
    default, training = (
        onnxmem.analyze(MODELS / f"{name}{kind}.onnx", batch=16, train=True).training
        for kind in ("", ".train")
    )
    assert default is not None
    assert training is not None
    assert default.peak_bytes == training.peak_bytes
