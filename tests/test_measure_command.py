"""``onnxmem measure``: its flags, what it writes and how it ends."""

import json
import sys
from argparse import ArgumentError, ArgumentParser, Namespace
from pathlib import Path

import pytest

from onnxmem.commands import measure as command
from onnxmem.commands.measure_options import add_measure_options
from onnxmem.errors import MissingFileError
from onnxmem.findings import Finding
from onnxmem.measure.measurement import MeasuredNode, Measurement
from onnxmem.measure.options import SessionOptions
from onnxmem.measure.settings import STEPS, MeasureSettings
from onnxmem.model import Request
from onnxmem.report.measured import (
    Predicted,
    error_percent,
    measured_row,
    render_measured,
    render_nodes,
)

Capture = pytest.CaptureFixture[str]

MEASUREMENT = Measurement(
    backend="onnxruntime-cpu",
    requested_peak_bytes=2_000_000,
    with_scratch_peak_bytes=2_100_000,
    pattern_block_bytes=2_200_000,
    base_bytes=0,
    in_use_peak_bytes=2_400_000,
    held_bytes=4_194_304,
    held_steady_bytes=8_388_608,
    load_peak_bytes=None,
    process_baseline_bytes=50_000_000,
    process_peak_bytes=60_000_000,
    process_steady_bytes=59_000_000,
    device_baseline_bytes=None,
    device_peak_bytes=None,
    device_steady_bytes=None,
    runs=3,
    seconds_per_run=(1.5, 0.25, 0.0000125),
    onnxruntime_version="1.31.1",
    num_filled=2,
    nodes=(
        MeasuredNode("conv", "Conv", "CPU", ((1, 64), ()), 1_000_000, 1, 1, 4_194_304, 100_000),
        MeasuredNode("re\nlu", "Relu", "CPU", (), None, None, None, None, None),
    ),
    findings=(Finding("made_up_weights", "2 weights not in the model's file: made up"),),
)


def parsed(line: str) -> Namespace:
    """The flags of the command with those of the other rooms, as the command line joins them."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("models", nargs="*")
    parser.set_defaults(batch=None, dims=[], shapes=[], output=None, force=False, quiet=False)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("-o", "--output")
    add_measure_options(parser)
    return parser.parse_args(line.split())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[MeasureSettings]:
    """What is asked of the measuring, which is replaced by a name's own ending."""
    settings: list[MeasureSettings] = []

    def measure(path: str, request: Request, chosen: MeasureSettings) -> Measurement | Finding:
        assert request == Request()
        settings.append(chosen)
        if path == "gone.onnx":
            message = "no such file; check the path"
            raise MissingFileError(message)
        chosen.tell(STEPS[1])
        return Finding("measure_crash", "it crashed") if path == "bad.onnx" else MEASUREMENT

    monkeypatch.setattr(command, "measure", measure)
    return settings


def test_flags_are_settings(asked: list[MeasureSettings]) -> None:
    line = "m.onnx --device cuda --inputs in.npz --runs 7 --timeout 2.5 --memory-limit 4GiB"
    line += " --graph ort-basic --fixed-dims --no-mem-pattern --no-mem-reuse"
    assert command.run(parsed(line)) == 0
    (settings,) = asked
    options = SessionOptions(
        level="basic", fixed_dims=True, enable_mem_pattern=False, enable_mem_reuse=False
    )
    assert settings == MeasureSettings(
        provider="cuda",
        runs=7,
        options=options,
        inputs_npz="in.npz",
        seconds=2.5,
        memory_bytes=4 * 2**30,
    )


@pytest.mark.usefixtures("asked")
def test_defaults_are_those_of_a_session(asked: list[MeasureSettings]) -> None:
    command.run(parsed("m.onnx"))
    assert asked == [MeasureSettings()]


@pytest.mark.parametrize(
    "flags",
    [
        *("--runs 0", "--runs x", "--runs 10000000", "--runs ٣"),
        *("--timeout 0", "--timeout -1", "--timeout nan", "--timeout x", "--timeout 1e9"),
        *("--memory-limit 4G", "--memory-limit x", "--graph best", "--device tpu"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags: str) -> None:
    with pytest.raises(ArgumentError):
        parsed(f"m.onnx {flags}")


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("models", "code", "errors"),
    [
        ("m.onnx", 0, ""),
        ("bad.onnx m.onnx", 3, "error: bad.onnx: measure_crash: it crashed\n"),
        ("m.onnx gone.onnx", 2, "error: gone.onnx: missing_file: no such file; check the path\n"),
    ],
)
def test_a_model_that_fails_costs_no_other_its_row(
    capsys: Capture, models: str, code: int, errors: str
) -> None:
    assert command.run(parsed(models)) == code
    out, err = capsys.readouterr()
    assert err == errors
    assert ("m.onnx  onnxruntime-cpu 1.31.1, 2 nodes run, 3 runs\n" in out) is ("m.onnx" in models)


@pytest.mark.usefixtures("asked")
def test_json_has_a_row_for_every_model(capsys: Capture) -> None:
    assert command.run(parsed("m.onnx bad.onnx --json")) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["schema"], report["schema_version"]) == ("onnxmem.measurement", "1.0")
    good, bad = report["models"]
    assert good["status"] == "ok"
    assert good["measured"]["requested_peak_bytes"] == 2_000_000
    assert good["measured"]["load_peak_bytes"] is None
    assert good["layers"] is None
    assert [finding["code"] for finding in good["findings"]] == ["made_up_weights"]
    assert bad["error"] == {"code": "measure_crash", "message": "it crashed"}
    assert set(good) == set(bad)


@pytest.mark.usefixtures("asked")
def test_layers_are_rows_of_nodes(capsys: Capture) -> None:
    command.run(parsed("m.onnx --json --layers"))
    rows = json.loads(capsys.readouterr().out)["models"][0]["layers"]
    assert [row["node"] for row in rows] == ["conv", "re\\x0alu"]
    assert rows[0]["output_shapes"] == [[1, 64], []]
    command.run(parsed("m.onnx --layers"))
    assert "\nre\\x0alu  Relu" in capsys.readouterr().out


@pytest.mark.usefixtures("asked")
def test_a_result_goes_to_a_file(tmp_path: Path, capsys: Capture) -> None:
    command.run(parsed(f"m.onnx -o {tmp_path / 'out.txt'}"))
    assert (tmp_path / "out.txt").read_text().startswith("m.onnx  onnxruntime-cpu")
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(("terminal", "shows"), [("xterm", True), ("dumb", False)])
def test_progress_is_one_line_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, terminal: str, *, shows: bool
) -> None:
    monkeypatch.setenv("TERM", terminal)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    command.run(parsed("m.onnx"))
    line = f"\r\x1b[Km.onnx: {STEPS[1]} ...\r\x1b[K"
    assert capsys.readouterr().err == (line if shows else "")


# The report.


def test_a_measurement_as_text() -> None:
    assert render_measured("m.onnx", MEASUREMENT) == (
        """m.onnx  onnxruntime-cpu 1.31.1, 2 nodes run, 3 runs

MEASURED
  requested peak          1.91 MiB            2,000,000 B   asked for by the nodes at once
  with scratch            2.00 MiB            2,100,000 B   with the kernels' own blocks
  pattern block           2.10 MiB            2,200,000 B   one block for it, from run 2 on
  base                         0 B                    0 B   before the first node
  in use, peak            2.29 MiB            2,400,000 B   chunks given out, base included
  held                    4.00 MiB            4,194,304 B   by the arena after run 1
  held, steady            8.00 MiB            8,388,608 B   by the arena after the last run
  process, peak           57.2 MiB           60,000,000 B   the whole process at most
  process, steady         56.3 MiB           59,000,000 B   the whole process after the runs
  time                    first run 1,500 ms, then 125 ms (median of 2)

FINDINGS
  made_up_weights: 2 weights not in the model's file: made up
"""
    )


def test_a_measurement_beside_what_was_predicted() -> None:
    predicted = Predicted(
        {"requested_peak_bytes": 2_100_000, "base_bytes": 0, "load_peak_bytes": 7_000_000}
    )
    text = render_measured("m.onnx", MEASUREMENT, predicted)
    assert "".join(text.splitlines(keepends=True)[2:6]) == (
        """\
MEASURED                    predicted         measured     error
  requested peak          2,100,000 B      2,000,000 B    +5.0 %   asked for by the nodes at once
  with scratch                unknown      2,100,000 B             with the kernels' own blocks
  pattern block               unknown      2,200,000 B             one block for it, from run 2 on
"""
    )
    lines = [line.split() for line in text.splitlines()]
    assert ["base", "0", "B", "0", "B", "+0.0", "%", *"before the first node".split()] in lines
    assert max(map(len, text.splitlines())) <= 100
    row = measured_row(MEASUREMENT, predicted)
    assert row["error_percent"] == pytest.approx(5.0)
    assert measured_row(MEASUREMENT)["error_percent"] is None


def test_nodes_beside_what_was_predicted() -> None:
    text = render_nodes(MEASUREMENT, Predicted(nodes=(1_100_000, 5, 6)))
    assert text.splitlines() == [
        "node      op_type  output shape  predicted   measured    error  scratch       held",
        "conv      Conv     1x64, scalar  1,100,000  1,000,000  +10.0 %  100,000  4,194,304",
        "re\\x0alu  Relu     ?                     5          ?        ?        ?          ?",
    ]


@pytest.mark.parametrize(
    ("predicted", "measured", "error"),
    [
        (110, 100, 10.0),
        (50, 100, -50.0),
        (0, 0, 0.0),
        (3, 0, None),
        (None, 3, None),
        (3, None, None),
    ],
)
def test_an_error_is_a_share_of_what_was_measured(
    predicted: int | None, measured: int | None, error: float | None
) -> None:
    found = error_percent(predicted, measured)
    assert found == (None if error is None else pytest.approx(error))
