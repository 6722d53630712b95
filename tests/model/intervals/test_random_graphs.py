"""A thousand random graphs whose data decide dims, run in onnxruntime: no figure beyond its ends.

``pytest -m slow tests/model/intervals/test_random_graphs.py`` takes minutes. Of each run: every dim
against its upper end; the sums and peaks of activations, of the branches and iterations that ran,
and the peak that onnxruntime's kernels requested, each between its own two ends.
"""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest
from data_dependent import (
    contradictions,
    of_run,
    random_input,
    random_model,
    requested_peak_of_run,
    shapes_of_run,
)
from numpy.typing import NDArray
from without_children import work_without_children

import onnxmem
from onnxmem.analysis.json_rows import data_figures
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.intervals.walk import with_upper_dims
from onnxmem.runtimes.ideal.activation_memory import activation_memory
from onnxmem.runtimes.onnxruntime.memory import SessionGraphs, SessionRequest, session_memory
from onnxmem.runtimes.onnxruntime.session_graph.optimization import ModelAt
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.settings import TrainingConfig

pytest.importorskip("onnxruntime")
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    RuntimeException,
)

QUICK = (1_900_000, 20)
SLOW = [(first, 100) for first in range(2_000_000, 3_000_000, 100_000)]
"""Ten times a hundred runs, by the first seed; the hypothesis tests draw others."""


def requested_peaks(model: onnx.ModelProto) -> tuple[int, int | None]:
    """The peak requested by kernels, at least and at most."""
    file = ModelFile("<random>", model, 0)
    prepared = prepare(file)
    at = ModelAt(file, prepared, build(prepared, Request()))
    found = session_memory(SessionGraphs(at, SessionRequest(graph="raw", asks_onnxruntime=False)))
    least_bytes = found.requested_peak_lower_bytes
    if least_bytes is None:
        least_bytes = found.arena.requested_peak_bytes
    return least_bytes, found.requested_peak_upper_bytes


def is_within_ends(model: onnx.ModelProto, seed: int, folder: Path) -> bool:
    """Whether a run has data-dependent dims, after it was compared; a kernel may reject it."""
    prepared = prepare(ModelFile("<random>", model, 0))
    graph = build(prepared, Request()).graph
    upper = with_upper_dims(graph, prepared.proto)
    if upper is None:
        return False
    feeds = random_input(model, seed)
    try:
        shapes = shapes_of_run(model, feeds)
        requested = requested_peak_of_run(model, feeds, folder)
    except (Fail, InvalidArgument, RuntimeException):
        return False
    assert contradictions(upper, shapes) == []
    least, most = requested_peaks(model)
    assert least <= requested
    assert most is None or requested <= most
    if any(node.subgraphs for node in graph.nodes):
        assert_observed_within_ends(model, feeds, folder)
    elif not upper.unbounded:
        found = [activation_memory(each) for each in (graph, of_run(graph, shapes), upper.graph)]
        for figures in (
            [each.naive_bytes for each in found],
            [each.peak_bytes for each in found],
            [each.in_place_peak_bytes for each in found],
        ):
            # Unknown counts as nothing: the lower end may be unknown where a run is not.
            known = [figure or 0 for figure in figures]
            assert known == sorted(known)
    return True


RECIPES = (
    TrainingConfig(),
    TrainingConfig(precision="mixed-bf16", optimizer="sgd"),
    TrainingConfig(in_place_activations=True, loss="mse"),
    TrainingConfig(checkpoint="sqrt"),
    TrainingConfig(checkpoint="best", precision="mixed-fp16"),
)


def trained(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a weight before all else, so that all that follows has gradients."""
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = "weighted" if name == "x" else name
    weight = onnx.numpy_helper.from_array(np.ones(1, np.float32), "weight")
    model.graph.initializer.append(weight)
    model.graph.node.insert(0, onnx.helper.make_node("Mul", ["x", "weight"], ["weighted"]))
    return model


def is_trained_within_ends(model: onnx.ModelProto, seed: int) -> bool:
    """Whether the training step of a run was compared: not with bodies, which have no figure, or
    sequences, of which autocast decides the widths.
    """
    names = {node.op_type for node in model.graph.node}
    if not names.isdisjoint({"If", "Loop"}) or any("Sequence" in name for name in names):
        return False
    prepared = prepare(ModelFile("<random>", trained(model), 0))
    graph = build(prepared, Request()).graph
    upper = with_upper_dims(graph, prepared.proto)
    if upper is None or upper.unbounded:
        return False
    try:
        shapes = shapes_of_run(model, random_input(model, seed))
    except (Fail, InvalidArgument, RuntimeException):
        return False
    for recipe in RECIPES:
        graphs = (graph, of_run(graph, shapes), upper.graph)
        peaks = [training_memory(each, recipe).peak_bytes for each in graphs]
        assert peaks == sorted(peaks), recipe
    return True


@pytest.mark.parametrize(
    ("first", "num_runs"), [(3_000_000, 10), pytest.param(3_100_000, 300, marks=pytest.mark.slow)]
)
def test_no_training_step_is_beyond_its_ends(first: int, num_runs: int) -> None:
    compared = 0
    for seed in count(first):
        compared += is_trained_within_ends(random_model(seed), seed)
        if compared == num_runs:
            break


def assert_observed_within_ends(
    model: onnx.ModelProto, feeds: Mapping[str, NDArray[Any]], folder: Path
) -> None:
    """The figures of the branches and iterations that ran."""
    fed: dict[str, Any] = {**feeds}
    np.savez(folder / "run.npz", **fed)
    analysis = onnxmem.analyze(
        model, observed=onnxmem.observe(model, inputs=[str(folder / "run.npz")])
    )
    if not analysis.request.observed_runs:
        # A known number of iterations may settle what inference of shapes left open.
        assert (analysis.status, analysis.doubts) == ("ok", ())
        return
    (run,) = analysis.request.observed_runs
    found, results = data_figures(run.at_least), analysis.results
    least, most = data_figures(results.at_least), data_figures(results.at_most)
    for name in ("total", "naive", "naive_in_place", "peak", "in_place_peak"):
        size_bytes, most_bytes = found[name] or 0, most[name]
        assert (least[name] or 0) <= size_bytes, name
        assert most_bytes is None or size_bytes <= most_bytes, name


@pytest.mark.parametrize(
    ("first", "num_runs"), [QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)]
)
def test_no_run_is_beyond_its_ends(
    first: int, num_runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_without_children(monkeypatch, tmp_path)
    compared = 0
    for seed in count(first):
        compared += is_within_ends(random_model(seed), seed, tmp_path)
        if compared == num_runs:
            break
