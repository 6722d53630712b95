"""The command line through ``main(argv)``: exit codes, streams, files."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from golden_text import assert_golden
from measured_runs import MEASUREMENT
from models_on_disk import MYSTERY, write_model
from predicted_runtimes import runtime_of
from without_children import work_without_children

import onnxmem
from onnxmem import settings as recipe
from onnxmem.analysis import analysis
from onnxmem.cli import main
from onnxmem.errors import Finding
from onnxmem.model.files import ModelFile

Capture = pytest.CaptureFixture[str]
RUNTIME_QUESTIONS = (
    *("runtimes", "graph", "measure", "fixed_dims", "asks_onnxruntime"),
    *("cuda_context_bytes", "cuda_workspace_bytes"),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model that is whole, one with an unknown operator, and one that is none."""
    work_without_children(monkeypatch, tmp_path)
    write_model(tmp_path / "net.onnx")
    write_model(tmp_path / "mystery.onnx", MYSTERY)
    (tmp_path / "page.onnx").write_text("<!DOCTYPE html><html></html>")
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "folder.onnx").mkdir()
    return tmp_path


def python(*words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("net.onnx", 0),
        ("analyze net.onnx", 0),
        ("net.onnx net.onnx --json", 0),
        ("--batch 4 net.onnx", 0),
        ("net.onnx --dim N=4 --layers net.onnx", 0),
        ("net.onnx --shape image:4,3,16,16", 0),
        ("net.onnx --train --optimizer sgd --precision mixed-fp16 --loss mse", 0),
        ("net.onnx --budget 1KiB", 1),
        ("net.onnx --budget 34727", 1),
        ("net.onnx --budget 34728", 0),
        ("net.onnx --budget 34728 --batch 2", 1),
        ("net.onnx --budget 48040 --train", 1),
        ("net.onnx --budget 1GiB --train", 0),
        ("net.onnx net.onnx --budget 1KiB", 1),
        ("net.onnx mystery.onnx --budget 1KiB --json", 3),
        ("net.onnx page.onnx --budget 1KiB", 3),
        ("net.onnx --budget 0", 1),
        ("net.onnx --budget 24", 2),
        ("mystery.onnx", 0),
        ("mystery.onnx --strict", 3),
        ("page.onnx", 3),
        ("page.onnx net.onnx", 3),
        ("gone.onnx", 2),
        ("page.onnx gone.onnx net.onnx", 2),
        ("net.onnx --shape picture:4,3,16,16", 2),
        ("net.onnx --dim N=4 --dim N=4", 0),
        ("net.onnx --dim N=4 --dim N=5", 2),
        ("net.onnx --shape image:4,3", 2),
        ("", 2),
        ("--json", 2),
        ("net.onnx --batch 0", 2),
        ("net.onnx --batch two", 2),
        ("net.onnx --batch 1000000000000000000", 2),
        ("net.onnx --batc 2", 2),
        ("net.onnx --dim N", 2),
        ("net.onnx --shape image", 2),
        ("net.onnx --budget 24G", 2),
        ("net.onnx --optimizer sdg", 2),
        ("net.onnx --runtime ort-cpu --graph raw --emulate-optimizer", 0),
        ("net.onnx --train --graph raw", 0),
        *((f"net.onnx --train --graph ort-{level}", 2) for level in ("basic", "extended", "all")),
        ("net.onnx --runtime ort", 2),
        ("net.onnx --graph best", 2),
        ("net.onnx --measure tpu", 2),
        ("net.onnx --cuda-context 3G", 2),
        ("net.onnx -o net.onnx", 2),
        ("net.onnx -o nowhere/report.txt", 2),
        ("net.onnx -o folder.onnx --force", 2),
        ("schema", 0),
        ("schema net.onnx", 2),
    ],
)
def test_each_outcome_of_a_report_has_its_exit_code(line: str, code: int) -> None:
    assert main(line.split()) == code


@pytest.mark.parametrize(
    ("batch", "budget", "code"),
    [(2, "23.70GiB", 0), (2, "1.78GiB", 1), (2_000_000, "23.70GiB", 1)],
)
def test_a_step_on_an_older_card_is_compared_as_a_process(
    batch: int, budget: str, code: int
) -> None:
    """The context alone takes 1.78 GiB."""
    line = f"net.onnx --train --batch {batch} --optimizer nesterov --precision mixed-fp16"
    line += " --attention math --zero-grad keep --basis process --cuda-context 1.78GiB --budget"
    assert main([*line.split(), budget]) == code


def test_the_words_of_every_fault(capsys: Capture) -> None:
    for line in (
        "gone.onnx",
        "page.onnx empty.onnx folder.onnx",
        "mystery.onnx --strict",
        "net.onnx --shape picture:4,3,16,16",
        "net.onnx --shape image:4,3",
        "net.onnx --shape image:4,-1,3",
        "net.onnx --shape image:N,x,16,16",
        "net.onnx --batch 0",
        "net.onnx --dim =3",
        "net.onnx --budget 24G",
        "net.onnx --budget 24",
        "net.onnx --budget 1KiB --quiet",
        "net.onnx --budget 1KiB --train",
        "net.onnx -o net.onnx",
        "net.onnx -o nowhere/report.txt",
        "net.onnx -o folder.onnx --force",
    ):
        main(line.split())
    assert_golden(capsys.readouterr().err, "errors.txt")


def test_one_line_for_each_fault_and_the_result_alone_on_stdout(capsys: Capture) -> None:
    assert main(["page.onnx", "net.onnx", "gone.onnx", "--json"]) == 2
    out, err = capsys.readouterr()
    statuses = [row["status"] for row in json.loads(out)["models"]]
    assert statuses == ["error", "ok", "error"]
    assert [line.split(": ")[:3] for line in err.splitlines()] == [
        ["error", "page.onnx", "model_file"],
        ["error", "gone.onnx", "missing_file"],
    ]


def test_texts_follow_one_another_and_leave_failures_out(capsys: Capture) -> None:
    main(["net.onnx", "page.onnx", "mystery.onnx"])
    out = capsys.readouterr().out
    assert re.findall(r"(?m)^\S+\.onnx", out) == ["net.onnx", "mystery.onnx"]


def test_no_model_that_could_be_read_leaves_stdout_empty(capsys: Capture) -> None:
    main(["page.onnx"])
    assert capsys.readouterr().out == ""


def test_layers_follow_the_report(capsys: Capture) -> None:
    main(["net.onnx", "--layers"])
    assert "\nconv  Conv " in capsys.readouterr().out


def test_an_input_name_may_hold_colons(folder: Path, capsys: Capture) -> None:
    text = 'agraph (float[N,5] "in:0") => (float[N,5] y) { y = Relu("in:0") }'
    write_model(folder / "tf.onnx", text)
    assert main(["tf.onnx", "--json", "--shape", "in:0:7,5"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert row["inputs_bytes"] == 4 * 7 * 5


def test_hostile_paths_and_messages_are_escaped(capsys: Capture) -> None:
    assert main(["a\x1b[2J\u202e\udce9\n.onnx", "--json"]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(r"error: a\x1b[2J\u202e\xe9\x0a.onnx: missing_file: ")
    assert err.count("\n") == 1
    (row,) = json.loads(out)["models"]
    assert row["path"] == r"a\x1b[2J\u202e\xe9\x0a.onnx"


def test_an_internal_error_costs_no_other_row(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def analyze(model: ModelFile, **_: object) -> onnxmem.Analysis:
        if model.path == "mystery.onnx":
            message = "no such\nthing"
            raise KeyError(message)
        return onnxmem.analyze(model)

    monkeypatch.setattr(analysis, "analyze", analyze)
    assert main(["mystery.onnx", "net.onnx", "--json"]) == 70
    out, err = capsys.readouterr()
    assert err.startswith("internal error: mystery.onnx: KeyError: ")
    assert err.count("\n") == 1
    assert [row["status"] for row in json.loads(out)["models"]] == ["error", "ok"]


def test_a_traceback_is_for_debugging_alone(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["gone.onnx"])
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("ONNXMEM_DEBUG", "1")
    main(["gone.onnx"])
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "error: interrupted: stopped by a signal"),
        (MemoryError(), 3, "error: net.onnx: out_of_memory: "),
    ],
)
def test_a_run_that_is_interrupted_or_fails_ends_in_one_line(
    error: BaseException,
    code: int,
    line: str,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def analyze(*_: object, **__: object) -> onnxmem.Analysis:
        raise error

    monkeypatch.setattr(analysis, "analyze", analyze)
    assert main(["net.onnx"]) == code
    assert capsys.readouterr().err.startswith(line)


def test_a_file_is_written_and_named_and_not_overwritten(folder: Path, capsys: Capture) -> None:
    report = folder / "report.json"
    assert main(["net.onnx", "--json", "-o", "report.json"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "Wrote report.json\n")
    assert json.loads(report.read_text())["schema"] == "onnxmem.report"
    report.write_text("mine")
    assert main(["net.onnx", "-o", "report.json"]) == 2
    assert report.read_text() == "mine"
    assert main(["net.onnx", "-q", "-o", "report.json", "--force"]) == 0
    assert json.loads(report.read_text())["models"][0]["path"] == "net.onnx"
    assert main(["net.onnx", "-q", "-o", "report.txt"]) == 0
    assert (folder / "report.txt").read_text().startswith("net.onnx  5 nodes")
    assert capsys.readouterr().err == (
        "error: usage: report.json: exists; pass --force to overwrite it\n"
    )


def test_nothing_is_analyzed_for_a_file_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def analyze(*_: object, **__: object) -> onnxmem.Analysis:
        raise AssertionError

    monkeypatch.setattr(analysis, "analyze", analyze)
    assert main(["net.onnx", "-o", "net.onnx"]) == 2


def test_color_is_for_terminals_that_do_not_decline(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_colored(*words: str) -> bool:
        main(["net.onnx", *words])
        return "\x1b[" in capsys.readouterr().out

    assert not is_colored()
    assert is_colored("--color", "always")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert is_colored()
    assert not is_colored("--color", "never")
    assert not is_colored("--json")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not is_colored()


def test_a_terminal_says_once_that_a_budget_is_not_met(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["net.onnx", "--budget", "1KiB", "--no-progress", "--color", "never"]
    assert main(words) == 1
    assert "over-budget: takes" in capsys.readouterr().err
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(words) == 1
    output = capsys.readouterr()
    assert output.err == ""
    assert "\nDoes not fit  1.00 KiB: takes" in output.out
    assert main([*words, "--json"]) == 1
    assert "over-budget: takes" in capsys.readouterr().err


def test_the_schema_is_printed(capsys: Capture) -> None:
    main(["schema"])
    assert json.loads(capsys.readouterr().out)["title"] == "onnxmem.report 1.0"


def test_help_names_every_flag_in_its_group(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help-all"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    groups = ("model:", "training:", "runtime:", "measurement:", "budget:", "report:", "output:")
    for words in (*groups, "--shape INPUT:1,3,224,224", "--graph {raw,ort-basic,"):
        assert words in text
    assert "mixed-bf16" in text


def test_runtime_options_reach_the_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def analyze(path: str, **questions: object) -> onnxmem.Analysis:
        asked.append(questions)
        return onnxmem.analyze(path)

    monkeypatch.setattr(analysis, "analyze", analyze)
    line = "net.onnx --runtime ort-cuda --runtime ort-cpu --runtime ort-cuda --graph ort-all"
    line += " --measure cuda --fixed-dims --cuda-context 3MiB --cuda-workspace 5B"
    assert main([*line.split(), "--emulate-optimizer"]) == 0
    assert main(["net.onnx"]) == 0
    first, second = ({name: questions[name] for name in RUNTIME_QUESTIONS} for questions in asked)
    assert first == {
        "runtimes": ("ort-cuda", "ort-cpu"),
        "graph": "ort-all",
        "measure": "cuda",
        "fixed_dims": True,
        "cuda_context_bytes": 3 * 2**20,
        "cuda_workspace_bytes": 5,
        "asks_onnxruntime": False,
    }
    defaults = onnxmem.Settings()
    assert second == {name: getattr(defaults, name) for name in second}


@pytest.mark.parametrize("flags", [[], ["--json"], ["--strict", "--layers"]])
def test_a_run_that_comes_to_nothing_costs_no_other_figure(
    flags: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def analyze(path: str, **_: object) -> onnxmem.Analysis:
        finding = Finding("measure_crash", "the run crashed (further runs): SIGSEGV\n")
        return replace(onnxmem.analyze(path), measured=finding, findings=(finding,))

    monkeypatch.setattr(analysis, "analyze", analyze)
    assert main(["net.onnx", *flags]) == 3
    out, err = capsys.readouterr()
    text = r"error: net.onnx: measure_crash: the run crashed (further runs): SIGSEGV\x0a"
    assert err == f"{text}\n"
    assert "measure_crash" in out
    if "--json" in flags:
        (row,) = json.loads(out)["models"]
        assert (row["status"], row["error"], row["measured"]) == ("ok", None, None)
        assert row["total_bytes"] > 0
    else:
        assert "Inference  " in out


def test_a_run_is_reported_beside_its_prediction(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def analyze(path: str, **_: object) -> onnxmem.Analysis:
        return replace(onnxmem.analyze(path), measured=MEASUREMENT, runtimes=(runtime_of(),))

    monkeypatch.setattr(analysis, "analyze", analyze)
    assert main(["net.onnx"]) == 0
    out = capsys.readouterr().out
    assert "Measured                               predicted        measured     error\n" in out


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_the_version_is_printed_alone(flag: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main([flag])
    assert capsys.readouterr().out == f"onnxmem {onnxmem.__version__}\n"


@pytest.mark.parametrize(
    "line",
    [
        *("--help", "--version", "schema", "--batch x", "schema --help"),
        *("measure --help", "advise --help", "measure --graph best", "advise --runtime ort"),
    ],
)
def test_commands_without_a_model_import_nothing_heavy(line: str) -> None:
    program = f"""
import atexit, sys
from onnxmem.cli import main
heavy = {{"onnx", "numpy", "networkx", "rich", "onnxruntime", "onnxmem.model", "psutil"}}
atexit.register(lambda: print(sorted(heavy & set(sys.modules)), file=sys.stderr))
main({line.split()!r})
"""
    assert python("-c", program).stderr.splitlines()[-1] == "[]"


def test_a_pipe_needs_no_rich() -> None:
    program = "import sys, onnxmem.cli as c; c.main(['net.onnx']); sys.exit('rich' in sys.modules)"
    assert python("-c", program).returncode == 0


def test_python_dash_m() -> None:
    done = python("-m", "onnxmem", "gone.onnx")
    assert (done.returncode, done.stdout) == (2, "")


def test_a_stream_of_any_kind_takes_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["schema"]) == 0
    assert stream.getvalue().startswith("{")


def test_a_terminal_without_unicode_gets_the_report(folder: Path) -> None:
    write_model(folder / "größe.onnx")
    done = python(
        "-X",
        "utf8=0",
        "-c",
        "import sys; sys.stdout.reconfigure(encoding='ascii')\n"
        "from onnxmem.cli import main; sys.exit(main(['gr\\xf6\\xdfe.onnx']))",
    )
    assert done.returncode == 0
    assert done.stdout.startswith(r"gr\xf6\xdfe.onnx  5 nodes")


def test_a_model_is_never_overwritten(folder: Path, capsys: Capture) -> None:
    before = (folder / "net.onnx").read_bytes()
    assert main(["net.onnx", "-o", "./net.onnx", "--force"]) == 2
    assert (folder / "net.onnx").read_bytes() == before
    text = "error: usage: ./net.onnx: is a model; choose another file for the result\n"
    assert capsys.readouterr().err == text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is full")
def test_a_full_disk_is_no_fault_of_ours() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "onnxmem", "net.onnx"],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    text = "error: usage: stdout: cannot be written: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (2, text)


FIXED = "agraph (float[2,3] x) => (float[2,3] y) { y = Exp(x) }"
FORMS = (
    ("net.onnx", "x.csv", "path,status"),
    ("net.onnx", "x.CSV", "path,status"),
    ("net.onnx", "x.json", '{\n "schema": "onnxmem.report"'),
    ("net.onnx", "x.jsonl", '{"path": "net.onnx"'),
    ("net.onnx", "x.html", "<!DOCTYPE html>"),
    ("net.onnx", "x.log", "net.onnx  5 nodes"),
    ("net.onnx net.onnx", "x.ndjson", '{"path": "net.onnx"'),
    ("net.onnx net.onnx", "x.htm", "<!DOCTYPE html>"),
    ("fit net.onnx --device 1GiB", "x.json", '{\n "schema": "onnxmem.fit"'),
    ("check net.onnx --budget-peak 1GiB", "x.json", '{\n "schema": "onnxmem.check"'),
    ("check net.onnx --budget-peak 1GiB", "x.md", "<!-- onnxmem -->"),
    ("check net.onnx --budget-peak 1GiB", "x.xml", "<?xml"),
    ("check net.onnx --budget-peak 1GiB --format sarif", "x.json", '{\n "$schema"'),
    ("diff net.onnx net.onnx", "x.json", '{\n "schema": "onnxmem.diff"'),
    ("diff net.onnx net.onnx", "x.html", "<!DOCTYPE html>"),
    ("explain held", "x.json", '{\n "schema": "onnxmem.explain"'),
    ("devices T4", "x.json", '{\n "schema": "onnxmem.devices"'),
    ("advise net.onnx --train", "x.json", '{\n "schema": "onnxmem.advice"'),
    ("export net.onnx --format metrics", "x.json", "{"),
)


@pytest.mark.parametrize(("line", "file", "head"), FORMS)
def test_the_ending_of_a_file_decides_its_form(
    line: str, file: str, head: str, folder: Path, capsys: Capture
) -> None:
    assert main([*line.split(), "-q", "-o", file]) == 0
    assert capsys.readouterr().out == ""
    assert (folder / file).read_text().startswith(head)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("net.onnx --json -o x.csv", "x.csv: its ending says csv, a flag json; choose one"),
        ("net.onnx --format jsonl -o x.csv", "x.csv: its ending says csv, a flag jsonl"),
        ("net.onnx --format text -o x.json", "x.json: its ending says json, a flag text"),
        ("net.onnx -o x.html --json", "x.html: its ending says html, a flag json"),
        ("net.onnx -o x.html --html y.html", "--html and -o x.html are two pages; choose one"),
        ("net.onnx -o x.md", "x.md: markdown is not written here, only text, json, jsonl, csv"),
        ("fit net.onnx --device 1GiB -o x.csv", "x.csv: csv is not written here, only text, json"),
        ("measure net.onnx -o x.csv", "x.csv: csv is not written here, only text, json"),
        ("check net.onnx --budget-peak 1GiB -o x.csv", "x.csv: csv is not written here"),
        ("check net.onnx --budget-peak 1GiB --also json=x.xml", "x.xml: its ending says junit"),
        ("advise net.onnx --emit python -o x.json", "x.json: its ending says json, a flag python"),
        ("export net.onnx --format dot -o x.csv", "x.csv: its ending says csv, a flag dot"),
    ],
)
def test_a_form_that_contradicts_the_ending_of_its_file_is_refused(
    line: str, told: str, folder: Path, capsys: Capture
) -> None:
    assert main(line.split()) == 2
    (err,) = capsys.readouterr().err.splitlines()
    assert told in err
    assert not list(folder.glob("x.*"))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("net.onnx --dim M=5", "--dim M: no input has a dim of that name; the dims are 'N'"),
        ("seq.onnx --dim seqence=5", "did you mean 'sequence'? the dims are 'N', 'sequence'"),
        (
            "fixed.onnx --dim N=5",
            "--dim N: no input has a dim of that name; all dims are numbers; ",
        ),
        ("fixed.onnx --dim N=5", "fixed in the file: x [2, 3]; "),
        ("fixed.onnx --dim N=5", "--shape x:2,3 with other numbers computes them; to run them, "),
        ("fixed.onnx --dim N=5", "export the model with a dynamic axis"),
        ("net.onnx --shape image:M,3,16,16", "'M' is not a number, and the file has N there"),
        ("net.onnx --value imag=5", "--value imag: the model has no input of that name; did you"),
        ("net.onnx --shape imag:1,3,16,16", "did you mean 'image'? the inputs are 'image'"),
        ("net.onnx --jobs 1 --dim M=5", "--dim M: no input"),
        ("fit net.onnx --device 1GiB --dim M=5", "--dim M: no input"),
        ("check net.onnx --budget-peak 1GiB --dim M=5", "--dim M: no input"),
        ("check net.onnx --config budgets.toml --dim M=5", "--dim M: no input"),
        ("advise net.onnx --dim M=5", "--dim M: no input"),
        ("explain total net.onnx --dim M=5", "--dim M: no input"),
        ("diff net.onnx --b-batch 2 --dim M=5", "--dim M: no input"),
        ("diff net.onnx seq.onnx --dim M=5", "--dim M: no input"),
        ("diff net.onnx seq.onnx --b-dim M=5", "--dim M: no input"),
        ("devices T4 --model net.onnx --dim M=5", "--dim M: no input"),
        ("reorder net.onnx --dim M=5", "--dim M: no input"),
        ("measure net.onnx --dim M=5", "--dim M: no input"),
        ("export net.onnx --format metrics --value imag=5", "--value imag: the model"),
        ("annotate net.onnx -o x.onnx --dim M=5", "--dim M: no input"),
        ("net.onnx --optimizer adam", "--optimizer: no effect without a training step; add --tr"),
        ("net.onnx --loss-output y --world 1", "--loss-output, --world: no effect without"),
        ("fit net.onnx --device T4 --precision bf16", "--precision: no effect without"),
        ("check net.onnx --budget-peak 1GiB --lora-rank 2", "--lora-rank: no effect without"),
        ("check net.onnx --config budgets.toml --first-step", "--first-step: no effect without"),
        ("advise net.onnx --freeze *", "--freeze: no effect without"),
        ("explain total net.onnx --accumulate 2", "--accumulate: no effect without"),
        ("diff net.onnx --b-batch 2 --weight-decay", "--weight-decay: no effect without"),
        ("devices T4 --model net.onnx --shard ddp", "--shard: no effect without"),
        ("export net.onnx --format metrics --checkpoint sqrt", "--checkpoint: no effect without"),
        ("annotate net.onnx -o x.onnx --zero-grad start", "--zero-grad: no effect without"),
        ("net.onnx --fixed-dims", "--fixed-dims: no effect without a session: add --runtime ort-c"),
        ("net.onnx --train --cpu avx2", "--cpu: no effect without a session"),
        ("net.onnx --runtime ort-cpu --cuda-context 1GiB", "--cuda-context: no effect without CUD"),
        ("net.onnx --runtime ort-cpu --cuda-workspace 1GiB", "--cuda-workspace: no effect"),
        ("net.onnx --runtime ort-cuda --expandable-segments", "--expandable-segments: no effect"),
        ("explain weights net.onnx --fixed-dims", "--fixed-dims: no effect"),
        ("export net.onnx --format metrics --fixed-dims", "--fixed-dims: no effect"),
        ("advise net.onnx --train --fixed-dims", "--fixed-dims: no effect"),
        ("fit net.onnx --device 1GiB --fixed-dims", "--fixed-dims: no effect on the figure that i"),
        ("fit net.onnx --device 1GiB --cpu avx2", "--cpu: no effect on the figure"),
        ("fit net.onnx --device 1GiB --ask-onnxruntime", "--ask-onnxruntime: no effect"),
        ("fit net.onnx --device 1GiB --cuda-context 1GiB", "is compared (total); see --runtime"),
        ("fit net.onnx --device T4 --expandable-segments", "is compared (total); see --runt"),
        ("fit net.onnx --device T4 --train --runtime ort-cuda", "--runtime ort-cuda: no effect"),
        ("fit net.onnx --which-device --expandable-segments", "--expandable-segments: no effect"),
    ],
)
def test_what_changes_nothing_is_refused(
    line: str, told: str, folder: Path, capsys: Capture
) -> None:
    text = "agraph (float[N,sequence] x) => (float[N,sequence] y) { y = Exp(x) }"
    write_model(folder / "seq.onnx", text)
    (folder / "budgets.toml").write_text('[[budgets]]\npeak = "1GiB"')
    write_model(folder / "fixed.onnx", FIXED)
    assert main(line.split()) == 2
    (err,) = capsys.readouterr().err.splitlines()
    assert told in err


@pytest.mark.parametrize(
    "line",
    [
        "net.onnx --graph ort-all --fixed-dims --cpu avx2 --emulate-optimizer",
        "net.onnx --emulate-optimizer",
        "net.onnx --train --expandable-segments --cuda-context 1GiB --cuda-workspace 1MiB",
        "explain saved net.onnx --optimizer sgd",
        "explain base net.onnx --fixed-dims --emulate-optimizer",
        "check net.onnx --budget-training 1GiB --optimizer sgd",
        "check net.onnx --config budgets.toml --train --optimizer sgd",
        "check net.onnx fixed.onnx --budget-peak 1GiB --dim M=5",
        "diff net.onnx --train --b-optimizer sgd --precision bf16",
        "fit net.onnx net.onnx --device 1GiB --dim M=5",
        "export net.onnx --format ort-node-stats --fixed-dims --emulate-optimizer",
        "advise net.onnx --fixed-dims",
    ],
)
def test_what_changes_something_is_not_refused(line: str, folder: Path, capsys: Capture) -> None:
    write_model(folder / "fixed.onnx", FIXED)
    (folder / "budgets.toml").write_text('[[budgets]]\npeak = "1GiB"')
    assert main(line.split()) == 0, capsys.readouterr().err


def test_a_name_that_some_of_several_models_lack_is_a_warning(
    folder: Path, capsys: Capture
) -> None:
    write_model(folder / "fixed.onnx", FIXED)
    line = "net.onnx fixed.onnx --dim N=2 --value image=3 --format csv"
    assert main(line.split()) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert err.splitlines() == [
        "warning: --dim N: 1 of 2 models have no dim of that name",
        "warning: --value image: 1 of 2 models have no input of that name",
    ]
    assert main([*line.split(), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_python_refuses_what_changes_nothing() -> None:
    for asked in (
        {"dims": {"M": 2}},
        {"values": {"imag": 2}},
        {"optimizer": "sgd"},
        {"recipe": recipe.TrainingConfig(lora_rank=2)},
    ):
        with pytest.raises(onnxmem.OnnxmemError):
            onnxmem.analyze("net.onnx", **asked)
    with pytest.raises(onnxmem.OnnxmemError, match="no input has a dim"):
        onnxmem.analyze("net.onnx").at(dims={"M": 2})
    (row,) = onnxmem.analyze_many(["net.onnx"], dims={"M": 2})
    assert row["status"] != "error"
