"""An audit over untrusted files, and what may befall it from outside."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hostile import HostileFile
from hostile.running import LIGHT, MODEL, ran, wrong_row
from paths import environment

from onnxmem.errors import printable, shortened

resource = pytest.importorskip("resource", reason="limits as POSIX has them")


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
        [sys.executable, "-B", "-m", "onnxmem", *names, *flags],
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
    names = listed(folder, chosen[::3])
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
    words = [[str(Path(folder, file.file_name)), "--json"] for file in LIGHT] * 2
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
    assert (process.returncode, err) == (130, "error: interrupted: stopped by a signal\n")
    # On a slow machine nothing more was written; what was is whole.
    assert out.rpartition("\n")[2] == ""
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
