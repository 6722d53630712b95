"""Each command with each standard stream closed or without space, compared with a sound run."""

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
from hostile.path_options import command_lines
from hostile.running import MODEL
from models_on_disk import write_model
from paths import environment

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="streams as Linux has them")

FAULTS: Final = {
    "stdin closed": "<&-",
    "stdout closed": ">&-",
    "stdout full": ">/dev/full",
    "stderr closed": "2>&-",
    "stderr full": "2>/dev/full",
    "no stream": "<&- >&- 2>&-",
}
COMMANDS: Final = {
    **command_lines(),
    "rows and a fault": f"{MODEL} missing.onnx {MODEL} --format jsonl --jobs 1",
    "stdin and a row": f"- {MODEL} --format jsonl --jobs 1",
    "rows of workers": f"{MODEL} missing.onnx {MODEL} --format jsonl --jobs 2",
    "a report": f"{MODEL} --json",
    "text": f"{MODEL} --color always",
    "a file": f"{MODEL} --json -o report.json --force",
    "a page": f"{MODEL} --html page.html --force",
    "bytes": f"export {MODEL} --format torch-snapshot",
    "lines": f"export {MODEL} --format chrome",
    "a copy": f"annotate {MODEL} -o copy.onnx --force",
    "an order": f"reorder {MODEL}",
    "a gate that fails": f"check {MODEL} --budget-peak 1KiB",
    "a message on stdin": "explain -",
    "a table": "devices",
    "a schema": "schema",
    "help": "--help",
    "a version": "--version",
    "wrong usage": "--no-such-flag",
}
WITHOUT_STDOUT: Final = {
    *("a file", "a copy", "wrong usage", "a message on stdin"),
    *("annotate", "view"),
}
"""Commands that write nothing to stdout; an empty message is refused."""
QUICK: Final = [("rows and a fault", fault) for fault in FAULTS] + [
    ("stdin and a row", "stdin closed"),
    ("bytes", "stdout full"),
    ("help", "stdout full"),
    ("text", "stdout full"),
]


def ran(folder: Path, words: str, streams: str = "") -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command whose streams a shell redirects."""
    command = [sys.executable, "-m", "onnxmem", *words.split()]
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {streams}', "sh", *command],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=100,
    )
    return done.returncode, done.stdout, done.stderr


def wrong(folder: Path, command: str, fault: str) -> Iterator[str]:
    """Say what differs from what a sound run tells."""
    code, out, err = ran(folder, COMMANDS[command], FAULTS[fault])
    if code not in {0, 1, 2, 3}:
        yield f"{command}: exit code {code}"
    if "Traceback" in err or "internal" in err or "Exception" in err:
        yield f"{command}: {err[-300:]}"
    if fault.startswith("stdout") and command not in WITHOUT_STDOUT:
        is_told = code == 2 and "stdout: cannot be written" in err.splitlines()[-1]
    elif fault == "stdin closed" and "stdin" in command:
        is_told = code == 2 and "stdin cannot be read: Bad file descriptor" in err
        is_told &= out.count("\n") == (0 if command.startswith("a message") else 2)
    elif fault != "no stream":
        sound = sound_run(command)
        is_told = code == sound[0] and comparable(command, out) == comparable(command, sound[1])
    else:
        is_told = True
    if not is_told:
        yield f"{command}: exit code {code}, {out[:200]!r}, {err[:200]!r}"


@cache
def sound_run(command: str) -> tuple[int, str, str]:
    with TemporaryDirectory() as folder:
        write_model(Path(folder, MODEL))
        return ran(Path(folder), COMMANDS[command])


def comparable(command: str, out: str) -> str:
    """What is the same in every run: measured times and bytes are not."""
    return out.partition("\n")[0] if command == "measure" else out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with a sound model."""
    write_model(tmp_path / MODEL)
    return tmp_path


@pytest.mark.parametrize(("command", "fault"), QUICK)
def test_a_stream_that_fails_costs_what_was_to_go_there(
    folder: Path, command: str, fault: str
) -> None:
    assert list(wrong(folder, command, fault)) == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_third_of_the_commands_with_each_stream_that_fails(folder: Path, fault: str) -> None:
    """Another third for each of three faults in turn, so that each command meets some."""
    commands = list(COMMANDS)[list(FAULTS).index(fault) % 3 :: 3]
    told = [text for command in commands for text in wrong(folder, command, fault)]
    assert told == [], "\n".join(told)
