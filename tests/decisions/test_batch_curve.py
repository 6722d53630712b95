"""A model at one batch after another: memory, arithmetic, time per sample and the knee."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from graphs import model_of
from models_on_disk import MYSTERY, write_model
from paths import MODELS

import onnxmem
from onnxmem import analyze
from onnxmem.analysis.fitting.assessing import FitRequest
from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.analysis.fitting.verdicts import Basis, Verdict
from onnxmem.cli import main
from onnxmem.decisions.batch_curve import (
    BatchCurve,
    batch_by_parameters,
    batch_curve,
    batches_between,
)
from onnxmem.decisions.devices import Device, catalog
from onnxmem.errors import UsageError
from onnxmem.report.batch_curve import render_curve
from onnxmem.settings import Settings

Capture = pytest.CaptureFixture[str]
MLP = str(MODELS / "mlp.onnx")
BALANCED = Device(
    name="Balanced",
    kind="cuda",
    memory_bytes=2**30,
    bandwidth_bytes=10**9,
    fp32_flops=20 * 10**9,
)
"""20 FLOPs a byte: a small batch of a perceptron is limited by memory, a large one by compute."""


def curve_of(
    path: str, batches: Sequence[int], device: Device | None = None, *, train: bool = False
) -> BatchCurve:
    request = request_of(path, Settings(batch=batches[0], train=train))
    basis = Basis.TORCH if train else Basis.TOTAL
    memory_bytes = 0 if device is None else device.limit_bytes
    setup = FitRequest(memory_bytes=memory_bytes, basis=basis)
    return batch_curve(request, batches, setup, device, has_limit=device is not None)


def test_each_point_equals_an_analysis_at_that_batch() -> None:
    curve = curve_of(MLP, (1, 7, 64), BALANCED)
    for point in curve.points:
        analysis = analyze(MLP, batch=point.batch)
        assert point.num_bytes == analysis.total_bytes
        assert point.work.flops == analysis.compute.forward_flops
        assert point.verdict is Verdict.FITS
    assert curve.memory_line is not None
    assert [curve.memory_line.at(point.batch) for point in curve.points] == [
        point.num_bytes for point in curve.points
    ]


@pytest.mark.parametrize(("device", "last"), [(BALANCED, 199), (None, 700)])
def test_the_knee_is_the_first_batch_within_a_tenth_of_the_lowest_cost(
    device: Device | None, last: int
) -> None:
    every = curve_of(MLP, tuple(range(1, last + 1)), device)
    costs = [point.cost or 0 for point in every.points]
    assert 0 < min(costs) < costs[0] / 2
    first = next(n for n, cost in enumerate(costs, start=1) if cost <= 1.1 * min(costs))
    assert every.knee is not None
    assert every.knee.batch == first
    few = curve_of(MLP, batches_between(1, last), device)
    assert few.knee is not None
    assert few.knee.batch == first
    assert few.cost_ratio == every.cost_ratio


def test_a_knee_beyond_the_range_is_none() -> None:
    """Half of batch 64 moves 23 KiB a sample, and 64 moves 15 KiB."""
    curve = curve_of(MLP, batches_between(1, 64))
    assert curve.knee is None
    assert "yes, beyond batch 64 too" in render_curve(MLP, curve, None)
    one = curve_of(MLP, (64,))
    assert one.knee is one.points[0]
    assert render_curve(MLP, one, None).count("name more than one batch") == 2


def test_figures_that_leave_something_out_are_lower_bounds() -> None:
    request = request_of(model_of(MYSTERY), Settings())
    curve = batch_curve(request, (1, 2), FitRequest(memory_bytes=0), has_limit=False)
    assert not curve.points[0].is_whole
    assert "warning                     lower bounds" in render_curve("net.onnx", curve, None)


def test_a_sample_in_a_larger_batch_is_limited_by_compute() -> None:
    curve = curve_of(MLP, (1, 256), BALANCED)
    limits = [point.bound.limited_by for point in curve.points if point.bound is not None]
    assert limits == ["memory", "compute"]
    text = render_curve(MLP, curve, None)
    assert "Is a larger batch faster?   yes, up to batch" in text
    assert "Is memory proportional?     no: batch 256 takes" in text


def test_memory_and_largest_batch_of_a_step_equal_those_of_fit() -> None:
    device = replace(catalog().find("RTX 3060"), memory_bytes=2**30, usable_bytes=2**30)
    curve = curve_of(str(MODELS / "resnet50.train.onnx"), (1, 2, 4, 8), device, train=True)
    assert [point.verdict for point in curve.points][-1] is Verdict.OVER
    assert curve.result is not None
    assert curve.result.max_batch is not None
    largest = curve.result.max_batch.number
    assert largest is not None
    for point in curve.points:
        assert (point.verdict is Verdict.OVER) == (point.batch > largest)
        assert point.work.flops is not None
    assert len(curve.added_bytes) == 3


@pytest.mark.parametrize(
    ("parameters", "batch"),
    [
        (0, 64),
        (999_999, 64),
        (10**6, 32),
        (2 * 10**6, 16),
        (10**7, 8),
        (10**8, 8),
        (10**8 + 1, 1),
    ],
)
def test_the_heuristic_by_parameters(parameters: int, batch: int) -> None:
    assert batch_by_parameters(parameters) == batch


def test_the_heuristic_by_free_memory_divides_by_all_elements() -> None:
    curve = curve_of(MLP, (1, 2), BALANCED)
    assert curve.by_free_memory == 2**30 // (4 * (1_410 + 131_410))
    assert curve_of(MLP, (1, 2)).by_free_memory is None


CHOSEN = """agraph (float[N, 7] x) => (float[K, 64] y) {
    [nonzero] i = NonZero(x)
    [transpose] t = Transpose <perm = [1, 0]> (i)
    [gather] g = GatherND(x, t)
    [split] c = Reshape <allowzero = 0> (g, column)
    [tile] y = Tile(c, repeats)
}"""


def test_all_batches_have_lower_bounds_where_data_decide(tmp_path: Path) -> None:
    """A device where the upper end of the first batch fits, and that of the last does not."""
    text = CHOSEN.replace("{", "<int64[2] column = {-1, 1}, int64[2] repeats = {1, 64}> {", 1)
    path = tmp_path / "chosen.onnx"
    write_model(path, text)
    curve = curve_of(str(path), (1, 32), replace(BALANCED, memory_bytes=20_000))
    first, last = curve.points
    assert (first.verdict, last.verdict) == (Verdict.FITS, Verdict.UNKNOWN)
    constants = 2 * 2 * 8
    assert [point.num_bytes for point in curve.points] == [
        constants + 4 * 7,
        constants + 4 * 7 * 32,
    ]


def test_batches_are_the_ends_and_powers_of_two_or_steps() -> None:
    assert batches_between(1, 1) == (1,)
    assert batches_between(2, 16) == (2, 4, 8, 16)
    assert batches_between(5, 30, 10) == (5, 15, 25, 30)


def test_a_model_without_a_batch_has_no_curve() -> None:
    text = "agraph (float[] x) => (float[] y) { y = Relu(x) }"
    request = request_of(model_of(text), Settings())
    with pytest.raises(UsageError, match="no batch to vary"):
        batch_curve(request, (1, 2), FitRequest(memory_bytes=0), has_limit=False)


def test_the_python_function_equals_the_command(capsys: Capture) -> None:
    curve = onnxmem.batch_curve(MLP, [64, 1, 8, 8], device="T4")
    assert main(["sweep", MLP, "--batch", "1..64", "--device", "T4", "--json"]) == 0
    known = {row["batch"]: row for row in json.loads(capsys.readouterr().out)["points"]}
    assert [point.batch for point in curve.points] == [1, 8, 64]
    for point in curve.points:
        row = known[point.batch]
        assert (point.num_bytes, point.seconds_per_sample, point.verdict) == (
            row["bytes"],
            row["seconds_per_sample"],
            row["verdict"],
        )
    assert repr(curve).splitlines()[0] == "<BatchCurve of 3 batches"
    free = onnxmem.batch_curve(onnxmem.analyze(MLP, train=True), [1, 2], device=2**20)
    assert [point.verdict for point in free.points] == [Verdict.OVER] * 2
    assert onnxmem.batch_curve(MLP, [1, 2]).result is None


def test_a_model_of_zero_bytes_has_no_growth() -> None:
    text = "agraph (float[N,0] x) => (float[N,0] y) { y = Relu(x) }"
    request = request_of(model_of(text), Settings())
    curve = batch_curve(request, (1, 2), FitRequest(memory_bytes=0), has_limit=False)
    assert curve.memory_growth is None
    assert "unknown: batch 1 takes 0 B" in render_curve("net.onnx", curve, None)


def test_the_table_is_written_as_csv_by_flag_or_by_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    net = write_model(tmp_path / "net.onnx")
    words = ["sweep", net, "--batch", "1..8", "--device", "T4"]
    assert main([*words, "--csv"]) == 0
    text = capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert main([*words, "-o", "curve.csv"]) == 0
    assert (tmp_path / "curve.csv").read_text(encoding="utf-8") == text
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [int(row["bytes"]) for row in rows] == [point["bytes"] for point in points]
    knees = [row["is_knee"] == "true" for row in rows]
    assert knees == [point["is_knee"] for point in points]
    assert main([*words, "--json", "--csv"]) == 2


@pytest.mark.parametrize(
    "text",
    ["0..4", "4..1", "1...4", "1..2:0", "1..", "1..99999:2", ":3", "1-", "1-2-3", "1:4", "1,,2"],
)
def test_an_invalid_range_is_rejected(text: str, capsys: Capture) -> None:
    assert main(["sweep", MLP, "--batch", text]) == 2
    assert "--batch" in capsys.readouterr().err


def test_an_invalid_range_is_told_the_forms_that_there_are(capsys: Capture) -> None:
    assert main(["sweep", MLP, "--batch", "1:256"]) == 2
    assert "'1:256' is not one of 1..256, 1..256:16 and 1,8,32" in capsys.readouterr().err


def test_a_range_may_have_a_hyphen(capsys: Capture) -> None:
    assert main(["sweep", MLP, "--batch", "1-64", "--csv"]) == 0
    out = capsys.readouterr().out
    assert main(["sweep", MLP, "--batch", "1..64", "--csv"]) == 0
    assert capsys.readouterr().out == out


def test_batches_may_be_a_list_and_several_ranges(capsys: Capture) -> None:
    assert main(["sweep", MLP, "--batch", "11,3, 5..7,11", "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [point["batch"] for point in points] == [3, 5, 7, 11]
