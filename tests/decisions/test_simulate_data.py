"""Requests whose data decide sizes: of which runs the replayed ones are."""

import json
from pathlib import Path

import pytest
from graphs import model_of
from models_on_disk import write_model

import onnxmem
from onnxmem.cli import main
from onnxmem.decisions.simulate import DataEnd, Simulation
from onnxmem.errors import ShapeError
from onnxmem.model.files import load
from onnxmem.model.observed import GraphRun, Observed, ObservedFileError, digest_of
from onnxmem.report.simulation import verdict

ROWS = """agraph (float[N,70001] x, bool[N] c) => (float[1,70001] y) {
    kept = Compress<axis = 0>(x, c)
    y = ReduceMax<axes = [0]>(kept)
}"""
ALL = """agraph (float[N,70001] x, bool[N] c) => (float[1,70001] y) {
    kept = Neg(x)
    y = ReduceMax<axes = [0]>(kept)
}"""
TILED = """agraph (float[N,7] x, int64[2] times) => (float[a,b] y) {
    tiled = Tile(x, times)
    y = Neg(tiled)
}"""
REQUESTS = [{"N": 2}, {"N": 7}, {"N": 3}]


def simulated(text: str, most: dict[str, int] | None = None) -> Simulation:
    return onnxmem.simulate(model_of(text), REQUESTS, most=most or {}, asks_onnxruntime=False)


def seen(path: str, rows: int, *kept: int) -> Observed:
    """Runs that keep so many rows of ``rows``."""
    return Observed(
        "rows.onnx",
        digest_of(load(path)),
        {"x": (rows, 70001), "c": (rows,)},
        tuple(f"random {index}" for index in range(len(kept))),
        tuple(GraphRun({"kept": (each, 70001)}) for each in kept),
    )


@pytest.fixture
def rows(tmp_path: Path) -> str:
    write_model(tmp_path / "rows.onnx", ROWS)
    return str(tmp_path / "rows.onnx")


def test_each_request_has_the_upper_end_of_every_dim() -> None:
    found, whole = simulated(ROWS), simulated(ALL)
    assert found.is_complete
    assert found.ends == {DataEnd.AT_MOST: 3}
    assert [each.reserved_bytes for each in found.timeline] == [
        each.reserved_bytes for each in whole.timeline
    ]
    assert (whole.is_bounded, found.is_bounded) == (True, None)
    assert "if each run is at its upper end" in verdict(found)


def test_a_limit_lowers_each_request_that_is_beyond_it() -> None:
    found, whole = simulated(ROWS, most={"kept:0": 2}), simulated(ROWS)
    first, second, _ = (each.allocated_peak_bytes for each in found.timeline)
    assert first == whole.timeline[0].allocated_peak_bytes
    assert first == second < whole.timeline[1].allocated_peak_bytes


def test_a_limit_of_no_dim_is_an_error() -> None:
    with pytest.raises(ShapeError, match="--max z:0: no dim of that name"):
        simulated(ROWS, most={"z:0": 2})


def test_without_an_upper_end_the_figures_are_lower_bounds_and_the_limit_is_asked_for() -> None:
    found = simulated(TILED)
    assert (found.is_complete, found.is_bounded) == (False, None)
    assert found.ends == {DataEnd.AT_LEAST: 3}
    assert "reserves at least" in verdict(found)
    (said,) = (each.message for each in found.findings if each.code == "data_dependent")
    assert said.startswith("3 requests of 3 take at least what is counted")
    assert "--max" in said
    assert simulated(TILED, most={"tiled:0": 90, "tiled:1": 90}).ends == {DataEnd.AT_MOST: 3}


def test_requests_at_the_dims_of_observed_runs_take_what_the_largest_took(rows: str) -> None:
    runs = [seen(rows, 7, 1, 3, 2), seen(rows, 3, 1)]
    found = onnxmem.simulate(rows, REQUESTS, observed=runs, asks_onnxruntime=False)
    assert found.ends == {DataEnd.AT_MOST: 1, DataEnd.OBSERVED: 2}
    assert "at its upper end or as it was observed" in verdict(found)


def test_a_request_takes_what_the_largest_observed_run_took(rows: str) -> None:
    """As much as at the most rows of any of them."""
    runs, requests = [seen(rows, 7, 1, 3, 2)], [{"N": 7}]
    found = onnxmem.simulate(rows, requests, observed=runs, asks_onnxruntime=False)
    three, two = (
        onnxmem.simulate(rows, requests, most={"kept:0": most}, asks_onnxruntime=False)
        for most in (3, 2)
    )
    assert found.timeline == three.timeline != two.timeline


def test_dims_of_requests_win_over_those_of_observed_runs(rows: str, tmp_path: Path) -> None:
    """The command takes a file for each shape; a request of other dims is at its upper end."""
    pytest.importorskip("onnxruntime")
    files = []
    for number, kept in ((7, 3), (3, 1)):
        files += ["--observed", str(tmp_path / f"{number}.json")]
        Path(files[-1]).write_text(seen(rows, number, kept).to_json())
    (tmp_path / "log.csv").write_text("N\n2\n7\n3\n")
    report = tmp_path / "found.json"
    asked = ["simulate", rows, "--requests", str(tmp_path / "log.csv"), "--emulate-optimizer"]
    assert main([*asked, *files, "--json", "-o", str(report)]) == 0
    (row,) = json.loads(report.read_text())["models"]
    assert row["simulation"]["ends"] == {"at_most": 1, "observed": 2}
    assert row["status"] == "ok"


def test_an_observed_run_beyond_a_limit_is_an_error(rows: str) -> None:
    with pytest.raises(ObservedFileError, match="--max kept:0=2: an observed run had 3 there"):
        onnxmem.simulate(
            rows, REQUESTS, observed=[seen(rows, 7, 3)], most={"kept:0": 2}, asks_onnxruntime=False
        )


@pytest.mark.parametrize("form", ["k8s", "json", "python"])
def test_what_is_written_from_lower_bounds_says_so(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "tiled.onnx")
    write_model(Path(path), TILED)
    asked = ["simulate", path, "--requests", "N=2..3", "--num-requests", "3", "--emulate-optimizer"]
    limits = ["--max", "tiled:0=9", "--max", "tiled:1=9"]
    assert main([*asked, "--emit", form]) == 3
    written, said = capsys.readouterr()
    assert "lower bound" in written or '"is_complete": false' in written
    assert "is a lower bound" in said
    assert main([*asked, *limits, "--emit", form]) == 0
    written, said = capsys.readouterr()
    assert "lower bound" not in written
    assert not said


def test_observed_runs_of_other_dims_than_all_requests_are_an_error(rows: str) -> None:
    with pytest.raises(ObservedFileError, match="the observed runs had x at 5,70001"):
        onnxmem.simulate(rows, REQUESTS, observed=[seen(rows, 5, 2)], asks_onnxruntime=False)


def test_requests_of_a_model_without_dynamic_dims_are_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = ROWS.replace("N", "7")
    found = onnxmem.simulate(model_of(fixed), [{}, {}], asks_onnxruntime=False)
    assert found.ends == {DataEnd.AT_MOST: 2}
    assert [each.dims for each in found.timeline] == [{}, {}]
    at_7 = onnxmem.simulate(model_of(ROWS), [{"N": 7}, {"N": 7}], asks_onnxruntime=False)
    assert found.process_peak_bytes == pytest.approx(at_7.process_peak_bytes, rel=0.001)
    write_model(tmp_path / "fixed.onnx", fixed)
    words = ["simulate", str(tmp_path / "fixed.onnx"), "--emulate-optimizer"]
    assert main([*words, "--num-requests", "3", "--max", "kept:0=2"]) == 0
    text = capsys.readouterr().out
    assert "3 requests of 1 shape" in text
    assert "Last new maximum            request 1, of" in text
    assert "Requests                    3, all equal" in text
    assert main([*words, "--requests", "N=7"]) == 2
    assert "all requests are the same; leave out --requests" in capsys.readouterr().err


def test_without_requests_each_dim_has_a_number(
    rows: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", rows, "--emulate-optimizer"]) == 2
    hint = "the requests have no numbers for 'N': --requests N=1..8, or --dim N=8"
    assert hint in capsys.readouterr().err
    for given in (["--dim", "N=7"], ["--shape", "x:7,70001"]):
        assert main(["simulate", rows, "--emulate-optimizer", *given, "--num-requests", "2"]) == 0
        assert "2 requests of 1 shape" in capsys.readouterr().out
