"""``onnxmem MODEL...`` of many models: forms, flags, streams and ends."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from models_on_disk import MYSTERY, write_model
from paths import environment

import onnxmem
from onnxmem.cli import main, results
from onnxmem.cli.results import Progress

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo of 12 models, one that is a lower bound, and one that is none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoo").mkdir()
    write_model(tmp_path / "zoo" / "m00.onnx")
    for number in range(1, 10):
        os.link("zoo/m00.onnx", f"zoo/m{number:02}.onnx")
    write_model(tmp_path / "zoo" / "mystery.onnx", MYSTERY)
    (tmp_path / "zoo" / "page.onnx").write_text("<!DOCTYPE html><html></html>")
    return tmp_path


def output_of(capsys: Capture, line: str, code: int = 3) -> str:
    assert main(line.split()) == code
    return capsys.readouterr().out


def test_many_models_are_a_table_and_few_are_reports(capsys: Capture) -> None:
    text = output_of(capsys, "zoo")
    assert text.count("zoo/m0") == 10 + 5 + 1  # and five are the heaviest, one is of the notes
    assert "  zoo/m00.onnx and 10 more: unbound_dims: dynamic dims without a value" in text
    assert "Total of 12 models: 10 ok, 1 partial, 1 failed" in text
    assert "\nFits" not in text  # nobody named a device
    assert "Next                        --device 24GiB" in text
    assert "Total" not in output_of(capsys, "zoo/m0?.onnx", 0)
    assert "Total of 1 " not in output_of(capsys, "zoo/m00.onnx --summary", 0)
    assert "Total of 10 models: 10 ok\n" in output_of(capsys, "zoo/m0?.onnx --summary", 0)
    assert "Total" not in output_of(capsys, "zoo --no-summary")
    assert "Total" not in output_of(capsys, "zoo --layers")
    assert "   TRAINING   MODEL" in output_of(capsys, "zoo --train")


def test_devices_are_counted(capsys: Capture) -> None:
    text = output_of(capsys, "zoo --device 1KiB --device H100")
    assert "0 of 12 fit, 10 too large, 2 unknown" in text
    assert "10 of 12 fit, 0 too large, 2 unknown" in text
    assert main(["zoo", "--device", "H1000"]) == 2
    assert main(["zoo/m00.onnx", "--device", "H1000"]) == 2


def test_a_quiet_run_of_many_is_one_line_and_of_few_a_line_each(capsys: Capture) -> None:
    (line,) = output_of(capsys, "zoo -q").splitlines()
    assert line.startswith("12 models: 10 ok, 1 partial, 1 failed; inference at least ")
    budgeted = output_of(capsys, "zoo -q --budget 1GiB")
    assert budgeted.startswith("12 models: 10 fit, 1 unknown, 1 failed; ")
    few = output_of(capsys, "zoo/m0[01].onnx -q", 0).splitlines()
    assert [each.partition(": ")[0] for each in few] == ["zoo/m00.onnx", "zoo/m01.onnx"]


@pytest.mark.parametrize("line", ["zoo/m00.onnx", "zoo/m0[01].onnx", "zoo --format csv"])
def test_devices_are_refused_where_no_output_has_them(line: str, capsys: Capture) -> None:
    assert main([*line.split(), "--device", "H100"]) == 2
    assert "--device: compares a collection" in capsys.readouterr().err
    assert main([*line.split(), "--device", "H100", "--html", "page.html"]) in (
        {2} if line == "zoo/m00.onnx" else {0, 3}
    )


def test_json_of_many_ends_with_a_summary(capsys: Capture) -> None:
    one = output_of(capsys, "zoo/m00.onnx --json", 0)
    assert "summary" not in json.loads(one)
    many = output_of(capsys, "zoo --format json")
    document = json.loads(many)
    assert list(document) == ["schema", "schema_version", "tool", "models", "summary"]
    assert many == json.dumps(document, indent=1) + "\n"
    first = document["models"][0]
    assert [each["verdict"] for each in first["devices"]] == ["fits"] * 8
    # A model alone is compared with nothing that nobody names.
    assert first | {"devices": None} == json.loads(one)["models"][0]
    schema = files("onnxmem.report") / "schema" / "report-1.0.schema.json"
    Draft202012Validator(json.loads(schema.read_text(encoding="utf-8"))).validate(document)
    assert document["summary"]["statuses"] == {"ok": 10, "partial": 1, "error": 1}


def test_lines_of_json_and_of_csv(capsys: Capture) -> None:
    rows = json.loads(output_of(capsys, "zoo --json --layers"))["models"]
    lines = output_of(capsys, "zoo --format jsonl --layers").splitlines()
    # Only what ends with a summary is compared with the sizes of GPUs.
    assert [json.loads(line) for line in lines] == [row | {"devices": None} for row in rows]
    assert rows[0]["layers"]
    table = output_of(capsys, "zoo --format csv").splitlines()
    assert [line.split(",")[0] for line in table] == ["path", *(row["path"] for row in rows)]


def test_two_forms_are_refused() -> None:
    assert main(["zoo", "--json", "--format", "csv"]) == 2
    assert main(["zoo", "--json", "--format", "json"]) == 3


@pytest.mark.parametrize("form", [pytest.param("text", marks=pytest.mark.slow), "json"])
def test_any_number_of_workers_writes_the_same(form: str, capsys: Capture) -> None:
    outputs = []
    for flags in ("--jobs 1", "--jobs 2", "--timeout 600", "--cache rows", "--cache rows"):
        assert main(f"zoo --format {form} --train {flags}".split()) == 3
        outputs.append(capsys.readouterr())
    assert len(set(outputs)) == 1
    assert outputs[0].err.count("\n") == 1


def test_reports_of_workers_and_of_the_cache_are_the_same(capsys: Capture) -> None:
    models = "zoo/m00.onnx zoo/mystery.onnx zoo/page.onnx --strict --layers"
    outputs = []
    for flags in ("", "--jobs 3", "--cache rows", "--cache rows"):
        assert main(f"{models} {flags}".split()) == 3
        outputs.append(capsys.readouterr())
    assert len(set(outputs)) == 1
    assert [line.split(": ")[2] for line in outputs[0].err.splitlines()] == [
        "partial",
        "model_file",
    ]


def test_strict_reports_partial_figures(capsys: Capture) -> None:
    Path("zoo/page.onnx").unlink()
    assert main(["zoo", "--strict"]) == 3
    assert "zoo/mystery.onnx: partial: 1 tensor of unknown size" in capsys.readouterr().err


def test_a_cache_that_is_none_is_refused() -> None:
    assert main(["zoo", "--cache", "zoo/m00.onnx"]) == 2


def test_a_cluster_has_its_own_workers(capsys: Capture) -> None:
    for flag in ("--jobs", "--timeout"):
        assert main(f"zoo --dask tcp://127.0.0.1:1 {flag} 2".split()) == 2
        assert f"{flag} is for this machine" in capsys.readouterr().err


def test_a_model_on_stdin() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onnxmem", "-", "--json", "--jobs", "2", "zoo/m00.onnx"],
        input=Path("zoo/m00.onnx").read_bytes(),
        env=environment(),
        capture_output=True,
        check=True,
    )
    piped, named = json.loads(done.stdout)["models"]
    assert piped == named | {"path": "-"}


def test_a_file_is_written_as_rows_come(capsys: Capture) -> None:
    assert main("zoo --format jsonl -o rows.jsonl".split()) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("Wrote rows.jsonl\n")
    assert len(Path("rows.jsonl").read_text().splitlines()) == 12
    assert main("zoo -o zoo/m00.onnx --force".split()) == 2


def test_a_list_and_a_folder_without_models(capsys: Capture) -> None:
    Path("empty").mkdir()
    Path("list").write_text("zoo/m00.onnx\n# none\nempty\n")
    rows = json.loads(output_of(capsys, "@list --json"))["models"]
    assert [(row["path"], row["status"]) for row in rows] == [
        ("zoo/m00.onnx", "ok"),
        ("empty", "error"),
    ]
    assert main(["@gone"]) == 2


def test_a_reader_that_goes_away_ends_the_work() -> None:
    program = """
import os, sys
from onnxmem.cli import main
reading, writing = os.pipe()
os.close(reading)
os.dup2(writing, 1)
sys.exit(main(["zoo", "--format", "jsonl", "--jobs", "2"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_counter_for_a_terminal_alone(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def err_of(line: str) -> str:
        main(line.split())
        return capsys.readouterr().err

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(results, "_REFRESH_SECONDS", 0.0)
    quiet = "error: zoo/page.onnx: model_file: "
    assert err_of("zoo").startswith(quiet)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = err_of("zoo")
    assert (
        "\r\x1b[K11 of 12 models\r\x1b[K\r\x1b[K12 of 12 models, 1 failed\r\x1b[Kerror: " in shown
    )
    assert shown.count("\r\x1b[K") == 24
    assert err_of("zoo --no-progress").startswith(quiet)
    assert err_of("zoo -q").startswith(quiet)
    assert err_of("zoo/m00.onnx") == ""
    monkeypatch.setenv("TERM", "dumb")
    assert not Progress.for_terminal(2, declined=False).is_shown


def test_a_counter_is_not_written_all_the_time(capsys: Capture) -> None:
    shown = Progress(1000, is_shown=True)
    for _ in range(1000):
        shown.count(failed=False)
    shown.clear()
    shown.clear()
    assert capsys.readouterr().err.count("models") < 100


def test_an_interrupt_ends_everything(tmp_path: Path) -> None:
    """As the terminal does it: to the whole group of processes."""
    program = """
import sys
from onnxmem.report import terminal
from onnxmem.cli import main
from collection.worker_tasks import endless
terminal.render_answer = endless
sys.exit(main(["zoo/m00.onnx", "zoo/m01.onnx", "zoo/m02.onnx", "--jobs", "2"]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _wait_for(lambda: len(list(tmp_path.glob("zoo/*.begun"))) == 2)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert err == "error: interrupted: stopped by a signal\n"
    _wait_for(lambda: not _group(process.pid))


def _wait_for(is_so: Callable[[], bool], seconds: float = 20.0) -> None:
    stop = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < stop
        time.sleep(0.02)


def _group(number: int) -> list[str]:
    """The processes of a group that are not yet gone, zombies too."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == number:
            found.append(stat.parent.name)
    return found


def test_a_dim_without_a_value_makes_a_row_partial(tmp_path: Path, capsys: Capture) -> None:
    """The batch is exempt; a dim that counts as 1 is named with the flags to type."""
    folder = tmp_path / "dims"
    folder.mkdir()
    text = "agraph (float[N,{}] x) => (float[N,{}] y) {{ y = Exp(x) }}"
    for name, dims in (("whole", "7"), ("free", "sequence, odd")):
        write_model(folder / f"{name}.onnx", text.format(dims, dims))
    line = f"{folder} --summary --device 24GiB"
    # Where a row wraps depends on the length of the path.
    table = " ".join(output_of(capsys, line, 0).split())
    told = "partial: 'sequence', 'odd' count as 1; set --dim sequence=512 --dim odd=512"
    assert told in table
    assert "Total of 2 models: 1 ok, 1 partial" in table
    assert "1 of 2 fit, 0 too large, 1 unknown" in table
    rows = list(csv.DictReader(io.StringIO(output_of(capsys, f"{folder} --format csv", 0))))
    assert [row["status"] for row in rows] == ["partial", "ok"]
    strict = f"{folder} --summary --strict"
    assert main(strict.split()) == 3
    assert "free.onnx: partial: 'sequence', 'odd' count as 1" in capsys.readouterr().err
    named = "--dim sequence=512 --dim odd=512"
    assert "Total of 2 models: 2 ok" in output_of(capsys, f"{folder} --summary {named}", 0)


def test_the_flags_that_a_partial_figure_asks_for_make_it_whole(tmp_path: Path) -> None:
    text = "agraph (float[N,sequence] x) => (float[N,sequence] y) { y = Exp(x) }"
    path = write_model(tmp_path / "free.onnx", text)
    free = onnxmem.analyze(path)
    assert free.guessed_dims == ("sequence",)
    assert (free.status, free.doubts) == (
        "partial",
        ("'sequence' counts as 1; set --dim sequence=512",),
    )
    for asked in ({"dims": {"sequence": 512}}, {"shapes": {"x": (1, 512)}}):
        whole = onnxmem.analyze(path, **asked)
        assert (whole.status, whole.guessed_dims) == ("ok", ())
    assert free.at(dims={"sequence": 5}).status == "ok"
    optimized = onnxmem.analyze(path, graph="ort-all", fixed_dims=True, asks_onnxruntime=False)
    assert optimized.guessed_dims == ("sequence",)


def test_a_long_run_counts_models_a_second(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Progress(1000, is_shown=True)
    seconds = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    for _ in range(800):
        seconds[0] += 0.02
        shown.count(failed=False)
    shown.finish()
    err = capsys.readouterr().err
    assert "\x1b[K1 of 1,000 models\r" in err
    assert "of 1,000 models, 50/s\r" in err
    assert err.endswith("800 models, 50/s\n")
