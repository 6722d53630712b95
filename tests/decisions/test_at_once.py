"""Arenas of four runs at once, repeated by ``tools/onnxruntime/at_once_table.py``."""

import csv
from collections import defaultdict
from random import Random
from runpy import run_path

import pytest
from paths import DATA, MODELS, ROOT

import onnxmem

FOLDER = DATA / "onnxruntime" / "serving"
WIDER_THAN_TWICE = frozenset({"lstm_classifier", "smollm_cached"})
"""Their repeats all ended alike, and the interval has another state."""
CORES = 2
"""Of the machine that measured."""


def repeats() -> dict[str, list[tuple[int, int, int]]]:
    """Of each model: what a repeat reserved at most, and the ends of the interval."""
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    text = (FOLDER / "at_once.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        sizes = (row["reserved_peak_bytes"], row["low_bytes"], row["high_bytes"])
        reserved, low, high = map(int, sizes)
        found[row["model"]].append((reserved, low, high))
    return found


@pytest.mark.parametrize("model", repeats())
def test_nine_of_ten_repeats_are_in_the_interval(model: str) -> None:
    rows = repeats()[model]
    inside = sum(low <= reserved <= high for reserved, low, high in rows)
    assert inside >= 0.9 * len(rows)


def test_the_interval_is_at_most_twice_as_wide_as_the_repeats_are_apart() -> None:
    wider = set()
    for model, rows in repeats().items():
        reserved = [each for each, _, _ in rows]
        (_, low, high) = rows[0]
        if high - low > 2 * (max(reserved) - min(reserved)):
            wider.add(model)
    assert wider == WIDER_THAN_TWICE


def interval(model: str) -> tuple[int, int]:
    tool = run_path(str(ROOT / "tools" / "onnxruntime" / "serving_truth.py"))
    served = next(each for each in tool["SERVED"] if each.name == model)
    own = MODELS / f"{model}.onnx"
    path = own if own.exists() else FOLDER / f"{model}.onnx"
    draw = Random(tool["SEED"])  # noqa: S311 - a reproducible order
    requests = tool["uniform"](served, draw)
    found = onnxmem.simulate(
        str(path),
        requests,
        concurrency=tool["AT_ONCE"],
        cores=CORES,
        cpu="avx512",
        asks_onnxruntime=False,
    ).interval
    assert found is not None
    return found.low_bytes, found.high_bytes


@pytest.mark.slow
@pytest.mark.parametrize("model", repeats())
def test_the_interval_is_the_one_that_was_compared(model: str) -> None:
    _, low, high = repeats()[model][0]
    assert interval(model) == (low, high)
