"""Upper ends of whole models, compared with many runs: docs/accuracy.md has the table."""

from math import prod
from statistics import median

import numpy as np
import pytest
from data_dependent import contradictions, shapes_of_run, upper_of
from data_dependent_models import MODELS
from paths import ROOT

from onnxmem.model.intervals.walk import UpperGraph

pytest.importorskip("onnxruntime")
TABLE = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")


def most_elements(upper: UpperGraph, names: list[str]) -> int:
    """Elements of tensors of which the data decide a dim, at most."""
    sizes = [upper.graph.tensors[name].num_elements for name in names]
    return sum(size for size in sizes if size is not None)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("num_runs", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_no_run_of_a_model_is_beyond_its_upper_ends(name: str, num_runs: int) -> None:
    model = MODELS[name].proto()
    upper = upper_of(model)
    assert upper.unbounded == ()
    observed, names = [], []
    for seed in range(num_runs):
        shapes = shapes_of_run(model, MODELS[name].feeds(np.random.default_rng(seed)))
        assert contradictions(upper, shapes) == []
        names = [each for each in shapes if upper.graph.tensors[each].dynamic]
        observed.append(sum(prod(shapes[each]) for each in names))
    at_most = most_elements(upper, names)
    assert at_most >= max(observed)
    row = next(line for line in TABLE.splitlines() if line.startswith(f"| {name} |"))
    assert f"{at_most:,}" in row
    if num_runs > 3:
        assert f"| {at_most / max(observed):.2f} |" in row


def test_upper_ends_are_close_to_what_runs_reach() -> None:
    rows = [line.split("|") for line in TABLE.splitlines() if line.split(" |")[0][2:] in MODELS]
    assert len(rows) == len(MODELS) == 12
    assert median(float(row[5]) for row in rows) <= 1.1
