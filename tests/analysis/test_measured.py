"""A measurement beside a prediction: the error, the contract's row, the rows of nodes."""

from collections import Counter
from dataclasses import replace

import pytest
from measured_runs import MEASUREMENT
from predicted_runtimes import FIGURES, NODE, runtime_of

from onnxmem.analysis.json_rows import (
    FIGURES as COMPARED,
)
from onnxmem.analysis.json_rows import (
    Predicted,
    error_percent,
    measured_row,
    node_rows,
    predicted_by,
)
from onnxmem.measuring.measurement import Measurement
from onnxmem.runtimes.onnxruntime.allocation.recording import Sample
from onnxmem.runtimes.onnxruntime.process.baselines import BASELINES


@pytest.mark.parametrize(
    ("predicted", "measured", "error"),
    [
        (110, 100, 10.0),
        (50, 100, -50.0),
        (0, 100, -100.0),
        (0, 0, 0.0),
        (3, 0, None),
        (None, 3, None),
        (3, None, None),
        (None, None, None),
    ],
)
def test_an_error_is_relative_to_the_measured_value(
    predicted: int | None, measured: int | None, error: float | None
) -> None:
    found = error_percent(predicted, measured)
    assert found == (None if error is None else pytest.approx(error))


def test_a_measurement_in_json_has_every_figure_and_the_error() -> None:
    row = measured_row(MEASUREMENT, Predicted({"requested_peak_bytes": 2_100_000}))
    assert row["error_percent"] == pytest.approx(5.0)
    assert row["weights_made_up"] == 2
    assert row["seconds_per_run"] == [1.5, 0.25, 0.0000125]
    for name in Measurement.__slots__:
        if name.endswith("_bytes"):
            assert row[name] == getattr(MEASUREMENT, name), name


@pytest.mark.parametrize("predicted", [None, Predicted(), Predicted({"held_bytes": 3})])
def test_without_a_prediction_of_the_requested_peak_there_is_no_error(
    predicted: Predicted | None,
) -> None:
    assert measured_row(MEASUREMENT, predicted)["error_percent"] is None


def test_every_compared_figure_is_a_measured_one() -> None:
    names = [name for name, _, _ in COMPARED]
    assert all(hasattr(MEASUREMENT, name) for name in names)
    assert len(set(names)) == len(names)


def test_every_executed_node_is_listed() -> None:
    first, second = node_rows(MEASUREMENT)
    assert first == {
        "node": "conv",
        "op_type": "Conv",
        "provider": "CPU",
        "output_shapes": [[1, 64], []],
        "requested_bytes": 1_000_000,
        "in_use_bytes": 1,
        "held_bytes": 4_194_304,
        "scratch_bytes": 100_000,
        "predicted_bytes": None,
    }
    assert second["node"] == "re\\x0alu"
    assert second["requested_bytes"] is None


def test_a_prediction_has_the_same_figures_as_a_measurement() -> None:
    samples = (Sample(NODE, 11, 19), Sample(NODE, 23, 37))
    parts = (("before", 55_000_013), ("rest", 15_000_014))
    predicted = predicted_by(runtime_of(arena=replace(FIGURES, nodes=samples), process_parts=parts))
    assert predicted.nodes == (11, 23)
    assert predicted.figures == {
        "requested_peak_bytes": FIGURES.requested_peak_bytes,
        "with_scratch_peak_bytes": FIGURES.with_scratch_peak_bytes,
        "pattern_block_bytes": FIGURES.pattern_block_bytes,
        "base_bytes": FIGURES.base_bytes,
        "in_use_peak_bytes": FIGURES.in_use_peak_bytes,
        "held_bytes": FIGURES.held_bytes,
        "held_steady_bytes": FIGURES.held_steady_bytes,
        "load_peak_bytes": 20_000_003,
        "process_peak_bytes": 55_000_013 + 20_000_003,
        "process_steady_bytes": 70_000_027,
        "process_floor_bytes": BASELINES["1.31"].process_bytes,
        "process_added_bytes": 70_000_027 - BASELINES["1.31"].process_bytes,
    }
    assert set(predicted.figures) <= {name for name, _, _ in COMPARED}


def test_figures_without_a_prediction_are_unknown() -> None:
    predicted = predicted_by(runtime_of(load_peak_bytes=None, process_bytes=None))
    unknown = Counter(size is None for size in predicted.figures.values())
    assert unknown == {True: 3, False: 7}
