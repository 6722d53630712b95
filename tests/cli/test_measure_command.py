"""``onnxmem measure``: its flags, what it writes and how it ends."""

import json
import re
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from golden_text import assert_golden
from measured_runs import MEASUREMENT
from models_on_disk import write_model
from predicted_runtimes import runtime_of

from onnxmem.analysis.json_rows import Predicted
from onnxmem.cli import main
from onnxmem.cli.measure import measure_parser, run
from onnxmem.errors import Finding, MissingFileError, UsageError
from onnxmem.measuring import measuring
from onnxmem.measuring.measurement import Measurement
from onnxmem.measuring.measuring import STEPS, MeasureSettings
from onnxmem.model.binding import Request
from onnxmem.model.files import ModelFile
from onnxmem.report.measured import render_measured, render_nodes
from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory, SessionRequest
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

Capture = pytest.CaptureFixture[str]


def parsed(line: str) -> Namespace:
    return measure_parser().parse_intermixed_args(line.split())


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
        chosen.progress(STEPS[1])
        return Finding("measure_crash", "it crashed") if path == "bad.onnx" else MEASUREMENT

    monkeypatch.setattr(measuring, "measure", measure)
    return settings


def test_flags_are_settings(asked: list[MeasureSettings]) -> None:
    line = "m.onnx --device cuda --inputs in.npz --runs 7 --timeout 2.5 --memory-limit 4GiB"
    line += " --graph ort-basic --fixed-dims --no-mem-pattern --no-mem-reuse"
    assert run(parsed(line)) == 0
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
    run(parsed("m.onnx"))
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
    with pytest.raises(UsageError, match="argument"):
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
    assert run(parsed(models)) == code
    out, err = capsys.readouterr()
    assert err == errors
    assert ("m.onnx  onnxruntime-cpu 1.31.1, 2 nodes run, 3 runs\n" in out) is ("m.onnx" in models)


@pytest.mark.usefixtures("asked")
def test_json_has_a_row_for_every_model(capsys: Capture) -> None:
    assert run(parsed("m.onnx bad.onnx --json")) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["schema"], report["schema_version"]) == ("onnxmem.measurement", "1.0")
    good, bad = report["models"]
    assert good["status"] == "ok"
    assert good["measured"]["requested_peak_bytes"] == 2_000_000
    assert good["measured"]["load_peak_bytes"] is None
    assert good["layers"] is None
    assert [finding["code"] for finding in good["findings"]] == ["made_up_weights"]
    assert bad["error"] == {"code": "measure_crash", "message": "it crashed"}
    assert bad["predicted"] is None
    assert set(good) == set(bad)


@pytest.mark.usefixtures("asked")
def test_layers_are_rows_of_nodes(capsys: Capture) -> None:
    run(parsed("m.onnx --json --layers"))
    rows = json.loads(capsys.readouterr().out)["models"][0]["layers"]
    assert [row["node"] for row in rows] == ["conv", "re\\x0alu"]
    assert rows[0]["output_shapes"] == [[1, 64], []]
    run(parsed("m.onnx --layers"))
    assert "\nre\\x0alu  Relu" in capsys.readouterr().out


@pytest.mark.usefixtures("asked")
def test_a_result_goes_to_a_file(tmp_path: Path, capsys: Capture) -> None:
    run(parsed(f"m.onnx -o {tmp_path / 'out.txt'}"))
    assert (tmp_path / "out.txt").read_text().startswith("m.onnx  onnxruntime-cpu")
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(("terminal", "shows"), [("xterm", True), ("dumb", False)])
def test_progress_is_one_line_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, terminal: str, *, shows: bool
) -> None:
    monkeypatch.setenv("TERM", terminal)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run(parsed("m.onnx"))
    line = f"\r\x1b[Km.onnx: {STEPS[1]} ...\r\x1b[K"
    assert capsys.readouterr().err == (line if shows else "")


# The report.


def test_a_measurement_as_text() -> None:
    assert_golden(render_measured("m.onnx", MEASUREMENT), "measured.txt")


def test_a_measurement_beside_what_was_predicted() -> None:
    predicted = Predicted(
        {"requested_peak_bytes": 2_100_000, "base_bytes": 0, "load_peak_bytes": 7_000_000}
    )
    text = render_measured("m.onnx", MEASUREMENT, predicted)
    assert_golden(text, "measured_predicted.txt")
    assert max(map(len, text.splitlines())) <= 100


def test_nodes_beside_what_was_predicted() -> None:
    text = render_nodes(MEASUREMENT, Predicted(nodes=(1_100_000, 5, 6)))
    assert text.splitlines() == [
        "node      op_type  output shape  predicted   measured    error  scratch   reserved",
        "conv      Conv     1x64, scalar  1,100,000  1,000,000  +10.0 %  100,000  4,194,304",
        "re\\x0alu  Relu     ?                     5          ?        ?        ?          ?",
    ]


# What was predicted, beside it.


@pytest.fixture
def predicted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, Request, object]]:
    """What is asked of the prediction, which is replaced by a ready answer."""
    questions: list[tuple[str, Request, object]] = []

    def predict(file: ModelFile, request: Request, question: SessionRequest) -> RuntimeMemory:
        questions.append((file.path, request, question))
        return runtime_of()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("onnxmem.runtimes.from_settings.predict", predict)
    write_model(tmp_path / "m.onnx")
    return questions


@pytest.mark.usefixtures("asked")
def test_the_same_session_is_predicted_and_measured(
    predicted: list[tuple[str, Request, object]], capsys: Capture
) -> None:
    line = "m.onnx --graph ort-basic --fixed-dims --no-mem-pattern --no-mem-reuse"
    assert run(parsed(line)) == 0
    options = SessionOptions(
        level="basic", fixed_dims=True, enable_mem_pattern=False, enable_mem_reuse=False
    )
    question = SessionRequest(name="ort-cpu", graph="ort-basic", options=options)
    assert predicted == [("m.onnx", Request(), question)]
    out = capsys.readouterr().out
    assert "peak requested by kernels          2,100,013 B     2,000,000 B    +5.0 %" in out
    assert question.session_options() == options


@pytest.mark.usefixtures("asked")
def test_a_gpu_is_predicted_where_one_is_measured(
    predicted: list[tuple[str, Request, object]],
) -> None:
    run(parsed("m.onnx --device cuda --json"))
    assert [question for _, _, question in predicted] == [SessionRequest(name="ort-cuda")]


def test_a_report_that_measures_predicts_the_same_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "net.onnx")
    assert main("net.onnx --measure cpu --json".split()) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert [each["name"] for each in row["runtimes"]] == ["ort-cpu"]
    measured, predicted = row["measured"], row["runtimes"][0]
    assert measured["requested_peak_bytes"] == predicted["requested_peak_bytes"]
    assert measured["error_percent"] == 0
    assert main("net.onnx --train --measure cpu".split()) == 0
    assert "Measured inference  " in capsys.readouterr().out


@pytest.mark.usefixtures("asked", "predicted")
def test_the_error_is_in_the_row_and_nodes_are_compared(capsys: Capture) -> None:
    run(parsed("m.onnx --json"))
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert row["measured"]["error_percent"] == pytest.approx(5.00065)
    figure = row["predicted"]["requested_peak_bytes"]
    assert figure == {"bytes": 2_100_013, "error_percent": pytest.approx(5.00065)}
    unknown = {"bytes": None, "error_percent": None}
    assert row["predicted"]["process_peak_bytes"] == unknown
    run(parsed("m.onnx --json --layers"))
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert row["layers"][0]["predicted_bytes"] == 1_100_009
    run(parsed("m.onnx --layers"))
    assert "1,100,009  1,000,000  +10.0 %" in capsys.readouterr().out


def test_how_busy_the_gpu_was_is_a_line() -> None:
    busy = replace(MEASUREMENT, device_utilization_percent=61, device_utilization_peak_percent=67)
    words = " ".join(render_measured("m.onnx", busy).split())
    assert "GPU utilization 61 % on average during the runs, 67 % at most" in words
    assert "GPU utilization" not in render_measured("m.onnx", MEASUREMENT)


@pytest.mark.usefixtures("asked")
def test_real_inputs_give_the_prediction_its_shapes(
    predicted: list[tuple[str, Request, object]], tmp_path: Path
) -> None:
    np.savez(tmp_path / "in.npz", image=np.zeros((7, 3, 16, 16), np.float32))
    run(parsed("m.onnx --inputs in.npz"))
    assert [request.shapes for _, request, _ in predicted] == [{"image": (7, 3, 16, 16)}]


def test_values_are_fed_and_the_prediction_is_for_them(
    asked: list[MeasureSettings],
    predicted: list[tuple[str, Request, SessionRequest]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = {"rate": (16_000,), "made_up": (1,)}

    def measure(_: str, __: Request, chosen: MeasureSettings) -> Measurement:
        asked.append(chosen)
        return replace(MEASUREMENT, fed=fed)

    monkeypatch.setattr(measuring, "measure", measure)
    arguments = parsed("m.onnx")
    arguments.values = [("rate", (16_000,))]
    assert run(arguments) == 0
    assert [settings.values for settings in asked] == [{"rate": (16_000,)}]
    assert [question.values for _, _, question in predicted] == [fed]


@pytest.mark.usefixtures("asked")
def test_a_missing_figure_is_a_fault_with_strict(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert run(parsed("m.onnx --strict")) == 0
    partly = replace(MEASUREMENT, held_bytes=None)
    monkeypatch.setattr(measuring, "measure", lambda *_: partly)
    assert run(parsed("m.onnx")) == 0
    assert capsys.readouterr().err == ""
    assert run(parsed("m.onnx --strict")) == 3
    text = "error: m.onnx: partial: figures of the arena could not be measured; see Notes\n"
    assert capsys.readouterr().err == text


@pytest.mark.usefixtures("asked")
def test_the_text_is_colored_and_json_never(capsys: Capture) -> None:
    run(parsed("m.onnx --color never"))
    plain = capsys.readouterr().out
    assert "\x1b[" not in plain
    run(parsed("m.onnx --color always"))
    painted = capsys.readouterr().out
    assert "\x1b[1mMeasured" in painted
    assert re.sub(r"\x1b\[[\d;]*m", "", painted) == plain
    run(parsed("m.onnx --json --color always"))
    assert "\x1b[" not in capsys.readouterr().out


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("line", ["m.onnx", "m.onnx --inputs gone.npz", "gone_model.onnx"])
def test_a_prediction_that_fails_costs_no_measurement(
    line: str,
    predicted: list[tuple[str, Request, object]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    def predict(*_: object) -> RuntimeMemory:
        message = "no rule holds here"
        raise KeyError(message)

    monkeypatch.setattr("onnxmem.runtimes.from_settings.predict", predict)
    assert run(parsed(line)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "predicted" not in out
    assert "peak requested by kernels       1.91 MiB         2,000,000 B" in out
    assert predicted == []


@pytest.mark.usefixtures("asked")
def test_a_dim_is_given_once() -> None:
    arguments = parsed("m.onnx")
    arguments.dims = [("N", 2), ("N", 3)]
    with pytest.raises(UsageError, match="--dim N is given twice: 2 and 3"):
        run(arguments)


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("m.onnx --layers --json", 0),
        ("m.onnx --batch 3 --runtime ort-cpu", 2),
        ("m.onnx --dim N=2 --dim N=3", 2),
        ("m.onnx --value a=b=3 --strict --color never", 0),
        ("m.onnx --value N=2 --value N=3", 2),
        ("m.onnx --value N", 2),
        ("m.onnx --value N=many", 2),
        ("m.onnx --shape", 2),
        ("", 2),
    ],
)
def test_the_command_line_knows_it(line: str, code: int) -> None:
    assert main(["measure", *line.split()]) == code


def test_a_single_run_has_no_median() -> None:
    text = render_measured("m.onnx", replace(MEASUREMENT, runs=1, seconds_per_run=(1.5,)))
    assert re.search(r"(?m)^  time +first run 1,500 ms$", text)
