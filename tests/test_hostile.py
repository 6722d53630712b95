"""Files that nobody vouches for: each is analysed or refused in one line, and nothing else happens.

The files are those of ``tests/hostile``, made anew for these tests. Commands run many to a process,
which has 1.5 GiB of address space; each has 10 s.
"""

import csv
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hostile
import pytest
from hostile import HostileFile
from hostile.child import SECONDS
from models_on_disk import write_model

from onnxmem.escaping import printable, shortened

HEAVY = {"size bomb", "function bomb", "rank bomb", "function chain"}
"""Kinds that take seconds; the default run takes the other ones."""
LIGHT = tuple(file for file in hostile.ALL if file.kind not in HEAVY and file.name != "of 50000")
MODEL = "sound.onnx"


@dataclass(frozen=True)
class Ran:
    """What one command did."""

    words: list[str]
    code: int
    out: str
    err: str
    seconds: float
    peak_kib: int


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make every file once."""
    made = tmp_path_factory.mktemp("hostile")
    for file in hostile.ALL:
        file.write(made / file.file_name)
    write_model(made / MODEL)
    return made


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def ran(folder: Path, tmp_path: Path, commands: Sequence[Sequence[str]]) -> list[Ran]:
    """Run commands in one process; one that ends the process is at fault."""
    results = tmp_path / "results"
    done = subprocess.run(
        [sys.executable, "-m", "hostile.child", str(results)],
        input=json.dumps(commands),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    found = [Ran(**json.loads(line)) for line in results.read_text().splitlines()]
    died = "" if len(found) == len(commands) else f"{commands[len(found)]}: {done.stderr[-500:]}"
    assert (died, done.returncode) == ("", 0)
    return found


def misbehaved(each: Ran) -> list[str]:
    """Say what is wrong with how a command ended, whatever it was asked."""
    both = each.out + each.err
    wrong = [f"exit code {each.code}"] if each.code not in {0, 1, 2, 3} else []
    if "Traceback" in both or "internal error" in both:
        wrong.append("a fault of its own")
    if not all(char.isprintable() or char == "\n" for char in both):
        wrong.append("raw control characters")
    # An answer that is partial is no fault: fit and check say so on stdout.
    is_answered = each.code == 3 and bool(each.out) and not each.err
    if each.code in {2, 3} and each.err.count("\n") != 1 and not is_answered:
        wrong.append(f"{each.err.count(chr(10))} lines on stderr: {each.err[:300]}")
    if "unpickled" in both:
        wrong.append("something of the file was run")
    return wrong


def end_of(row: dict[str, Any]) -> str:
    found: str = row["error"]["code"] if row["status"] == "error" else row["status"]
    return found


def wrong_row(file: HostileFile, row: dict[str, Any]) -> list[str]:
    """Say what is wrong with a file's row."""
    wrong = [] if end_of(row) in file.ends else [f"ends as {end_of(row)}"]
    if file.finding and file.finding not in {each["code"] for each in row.get("findings") or ()}:
        wrong.append(f"no finding {file.finding}")
    if any(size < 0 for size in sizes_in(row)):
        wrong.append("a negative size")
    return wrong


def sizes_in(value: object) -> list[int]:
    """All that is called bytes, however deep it lies."""
    if isinstance(value, dict):
        own = [each for key, each in value.items() if "bytes" in key and isinstance(each, int)]
        return own + [size for each in value.values() for size in sizes_in(each)]
    if isinstance(value, list):
        return [size for each in value for size in sizes_in(each)]
    return []


def faults_as_json(folder: Path, tmp_path: Path, files: Sequence[HostileFile]) -> list[str]:
    words = [[str(Path(folder, file.file_name)), "--json"] for file in files]
    faults = []
    for file, each in zip(files, ran(folder, tmp_path, words), strict=True):
        wrong = misbehaved(each)
        row = json.loads(each.out)["models"][0] if each.out else None
        if row is not None:
            wrong += wrong_row(file, row)
        elif each.code != 2:
            wrong.append("no row")
        if each.code and not each.err.startswith("error: "):
            wrong.append(f"does not begin as an error: {each.err[:99]}")
        faults += [f"{file.kind}, {file.name}: {text}" for text in wrong]
    return faults


def test_the_set_is_large_and_its_names_differ() -> None:
    names = {file.file_name for file in hostile.ALL}
    assert len(names) == len(hostile.ALL) > 400
    assert min(Counter(file.kind for file in hostile.ALL).values()) >= 1


def test_each_file_is_analysed_or_refused(folder: Path, tmp_path: Path) -> None:
    assert faults_as_json(folder, tmp_path, LIGHT) == []


@pytest.mark.slow
def test_so_is_each_of_those_that_take_longer(folder: Path, tmp_path: Path) -> None:
    files = [file for file in hostile.ALL if file not in LIGHT]
    assert faults_as_json(folder, tmp_path, files) == []


COMMANDS = {
    "text": ("{}", "--layers"),
    "training": ("{}", "--train", "--batch", "7", "--budget", "1 GiB"),
    "onnxruntime": ("{}", "--runtime", "ort-cpu", "--emulate-optimiser", "--json"),
    "both": ("{}", "--runtime", "ort-cpu", "--emulate-optimiser", "--train"),
    "fit": ("fit", "{}", "--device", "16 GiB"),
    "check": ("check", "{}", "--budget-peak", "1 GiB"),
    "check as sarif": ("check", "{}", "--budget-peak", "1 GiB", "--format", "sarif"),
    "check as junit": ("check", "{}", "--budget-peak", "1 GiB", "--format", "junit"),
    "check as markdown": ("check", "{}", "--budget-peak", "1 GiB", "--format", "markdown"),
    "check for github": ("check", "{}", "--budget-peak", "1 GiB", "--format", "github"),
    "diff": ("diff", "{}", MODEL),
    "diff from": ("diff", MODEL, "{}"),
    "advise": ("advise", "{}", "--emulate-optimiser"),
    "explain": ("explain", "peak_bytes", "{}"),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_trips_over_any(folder: Path, tmp_path: Path, command: str) -> None:
    words = [
        [str(Path(folder, file.file_name)) if word == "{}" else word for word in COMMANDS[command]]
        for file in LIGHT
    ]
    faults = [
        f"{file.kind}, {file.name}: {text}"
        for file, each in zip(LIGHT, ran(folder, tmp_path, words), strict=True)
        for text in misbehaved(each)
    ]
    assert faults == []


# One audit over all


def listed(folder: Path, files: Sequence[HostileFile]) -> list[str]:
    """The files in order with a sound model before each tenth: what to name, in an audit."""
    names = []
    for place, file in enumerate(files):
        if place % 10 == 0:
            names.append(MODEL)
        if file.own_name is None and Path(folder, file.file_name).is_dir():
            continue
        names.append(file.file_name)
    return names


def audit(
    folder: Path, names: Sequence[str], *flags: str, limit_bytes: int | None = None
) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    return subprocess.run(
        [sys.executable, "-m", "onnxmem", *names, *flags],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
    )


@pytest.mark.slow
def test_one_audit_over_all(folder: Path) -> None:
    names = listed(folder, LIGHT)
    done = audit(folder, names, "--format", "jsonl", "--jobs", "2")
    assert done.returncode == 2, done.stderr[-500:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["path"] for row in rows] == [printable(name) for name in names]
    by_name = {file.file_name: file for file in LIGHT}
    faults = [
        f"{name}: {text}"
        for name, row in zip(names, rows, strict=True)
        if name != MODEL
        for text in wrong_row(by_name[name], row)
    ]
    assert faults == []
    sound = [row for row in rows if row["path"] == MODEL]
    assert len(sound) > 40
    assert all(row == sound[0] and row["status"] == "ok" for row in sound)
    errors = [row["path"] for row in rows if row["status"] == "error"]
    lines = done.stderr.splitlines()
    assert [line.partition(": ")[2].startswith(shortened(path)) for line, path in zip(
        lines, errors, strict=True)] == [True] * len(errors)  # fmt: skip


@pytest.mark.parametrize("form", ["json", "csv", "text"])
def test_every_form_of_an_audit_is_sound(folder: Path, form: str) -> None:
    kinds = {"name", "name in a message", "file name", "symbol", "emptiness", "other format"}
    chosen = [file for file in LIGHT if file.kind in kinds]
    names = listed(folder, chosen)
    done = audit(folder, names, "--format", form, "--jobs", "1")
    assert done.returncode == 3
    assert all(char.isprintable() or char in "\n\r" for char in done.stdout + done.stderr)
    if form == "json":
        assert len(json.loads(done.stdout)["models"]) == len(names)
    if form == "csv":
        table = list(csv.reader(io.StringIO(done.stdout)))
        assert {len(row) for row in table} == {len(table[0])}
        assert not any(cell[:1] in {"=", "+", "@", "\t"} for row in table[1:] for cell in row)


@pytest.mark.slow
def test_the_memory_of_an_audit_stays_flat(folder: Path, tmp_path: Path) -> None:
    words = [[str(Path(folder, file.file_name)), "--json"] for file in LIGHT] * 4
    peaks = [each.peak_kib for each in ran(folder, tmp_path, words)]
    assert peaks[-1] <= 1.1 * peaks[len(LIGHT) - 1]


# What befalls an audit from outside


def begun(folder: Path, flags: Sequence[str]) -> "subprocess.Popen[str]":
    """Start an audit that is far from its end, and wait for its first row."""
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxmem", *[MODEL] * 800, *flags],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def rest_of(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """What follows the first row, and stderr; ``communicate`` would lose what is buffered."""
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        written = process.stdout.read(), process.stderr.read()
    process.wait(30)
    return written


def children_of(number: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            words = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == number and b"resource_tracker" not in words:
            found.append(int(stat.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="workers are found in /proc")
def test_a_killed_worker_costs_one_row_at_most(folder: Path) -> None:
    process = begun(folder, ["--format", "jsonl", "--jobs", "2"])
    os.kill(children_of(process.pid)[0], signal.SIGKILL)
    out, err = rest_of(process)
    rows = [json.loads(line) for line in out.splitlines()]
    assert len(rows) == 800 - 1
    lost = [row["error"]["code"] for row in rows if row["status"] != "ok"]
    assert lost in ([], ["worker_died"])
    assert (process.returncode, err.count("\n")) == (3 if lost else 0, len(lost))


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_keeps_the_rows_so_far(folder: Path, jobs: str) -> None:
    process = begun(folder, ["--format", "jsonl", "--jobs", jobs])
    time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    out, err = rest_of(process)
    assert (process.returncode, err) == (130, "error: interrupted: stopped before the end\n")
    assert out.endswith("\n")
    assert all(json.loads(line)["status"] == "ok" for line in out.splitlines())


def test_a_closed_stdout_ends_the_work_without_a_word(folder: Path) -> None:
    process = begun(folder, ["--format", "jsonl", "--jobs", "1"])
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(30) == 0


def test_a_full_disk_keeps_what_was_written(folder: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    signal_kept = "--format jsonl --jobs 1 -o".split()
    done = audit(folder, [MODEL] * 30, *signal_kept, str(rows), limit_bytes=2**14)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "cannot be written" in done.stderr
    whole = rows.read_text().splitlines()[:-1]
    assert whole
    assert all(json.loads(line)["status"] == "ok" for line in whole)


def test_the_time_is_that_of_the_promise() -> None:
    assert SECONDS == 10
