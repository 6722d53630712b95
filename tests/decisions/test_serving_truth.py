"""Arenas of sessions that served requests, measured by ``tools/onnxruntime/serving_truth.py``."""

import csv
import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from runpy import run_path
from typing import Any

import pytest
from paths import DATA, MODELS, ROOT

import onnxmem

FOLDER = DATA / "onnxruntime" / "serving"
TRUTH = json.loads(gzip.decompress((FOLDER / "truth.json.gz").read_bytes()))
FEW = 30
SOME = 120
QUICK = ("lstm_classifier", "gru_tagger", "wav2vec2", "mobilenet_v2.int8")


def path_of(model: str) -> Path:
    own = MODELS / f"{model}.onnx"
    return own if own.exists() else FOLDER / f"{model}.onnx"


def measured(row: Mapping[str, Any]) -> list[int]:
    """Arena reserved after each request; a row has the requests after which it changed."""
    changes, now, found = dict(row["reserved"]), row["loaded_bytes"], []
    for number in range(1, len(row["requests"]) + 1):
        now = changes.get(number, now)
        found.append(now)
    return found


def simulated(row: Mapping[str, Any], count: int | None) -> list[int]:
    requests = [dict(zip(row["dims"], each, strict=True)) for each in row["requests"][:count]]
    found = onnxmem.simulate(
        str(path_of(row["model"])), requests, cpu="avx512", asks_onnxruntime=False
    )
    return [each.reserved_bytes for each in found.timeline]


def name(row: Mapping[str, Any]) -> str:
    return f"{row['model']}-{row['mix']}"


@pytest.mark.parametrize(
    "row", [row for row in TRUTH if row["model"] in QUICK and row["mix"] == "uniform"], ids=name
)
def test_the_arena_after_each_of_the_first_requests_is_exact(row: Mapping[str, Any]) -> None:
    assert simulated(row, FEW) == measured(row)[:FEW]


@pytest.mark.slow
@pytest.mark.parametrize("row", TRUTH, ids=name)
def test_the_arena_after_each_request_is_exact(row: Mapping[str, Any]) -> None:
    """Of uniform requests after all, of other mixes after the first."""
    count = None if row["mix"] == "uniform" else SOME
    assert simulated(row, count) == measured(row)[:count]


def test_the_truth_has_three_mixes_of_each_model_and_half_of_the_models_are_held_out() -> None:
    mixes = {(row["model"], row["mix"]) for row in TRUTH}
    models = {model for model, _ in mixes}
    held_out = {row["model"] for row in TRUTH if row["held_out"]}
    assert len(TRUTH) == len(mixes) == 3 * len(models)
    assert 2 * len(held_out) >= len(models) >= 10
    assert all(row["requests"] and row["onnxruntime"] and row["processor"] for row in TRUTH)


def mixes_of_500() -> list[Mapping[str, str]]:
    rows = csv.DictReader((FOLDER / "grid_500.csv").read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["model"] in ("mlp", "wav2vec2", "distilbert_fp16")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", mixes_of_500(), ids=lambda row: "-".join((row["model"], row["mix"], row["settings"]))
)
def test_the_arena_after_500_requests_is_exact(
    row: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = ROOT / "tools" / "onnxruntime"
    monkeypatch.syspath_prepend(tools)
    tool = run_path(str(tools / "serving_truth.py"))
    options = run_path(str(tools / "serving_grid.py"))["options_named"](row["changes"])
    served = replace(tool["served_by_name"](row["model"]), count=int(row["num_requests"]))
    requests = tool["MIXES"][row["mix"]](served, Random(tool["SEED"]))  # noqa: S311 - reproducible
    found = onnxmem.simulate(
        str(path_of(row["model"])), requests, options=options, cpu="avx512", asks_onnxruntime=False
    )
    assert found.arena_reserved_peak_bytes == int(row["reserved_peak_bytes"])
