"""Run commands over hostile files in a process of their own, and say what is wrong with each."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from models_on_disk import write_model
from paths import environment

from hostile import ALL, HostileFile

HEAVY: Final = {"size bomb", "function bomb", "rank bomb", "function chain"}
"""Kinds that take seconds; the default run takes the other ones."""
LIGHT: Final = tuple(file for file in ALL if file.kind not in HEAVY and file.name != "of 50000")
MODEL: Final = "sound.onnx"
MOST_KIB: Final = 2**20
"""Of memory: 1 GiB."""


@dataclass(frozen=True)
class Ran:
    """The result of one command."""

    words: list[str]
    code: int
    out: str
    err: str
    seconds: float
    peak_kib: int


def make_all(folder: Path) -> Path:
    """Write every file of the default tests, and a valid one."""
    for file in LIGHT:
        file.write(folder / file.file_name)
    write_model(folder / MODEL)
    return folder


def ran(folder: Path, tmp_path: Path, commands: Sequence[Sequence[str]]) -> list[Ran]:
    """Run commands in one process; a command that ends the process is an error."""
    results = tmp_path / "results"
    results.touch()
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
    """Report what is wrong with the end of any command."""
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
    if each.peak_kib > MOST_KIB:
        wrong.append(f"{each.peak_kib:,} KiB")
    if "unpickled" in both:
        wrong.append("something of the file was run")
    return wrong


def end_of(row: dict[str, Any]) -> str:
    found: str = row["error"]["code"] if row["status"] == "error" else row["status"]
    return found


def wrong_row(file: HostileFile, row: dict[str, Any]) -> list[str]:
    """Report what is wrong with the JSON object of a file."""
    wrong = [] if end_of(row) in file.ends else [f"ends as {end_of(row)}"]
    if file.finding and file.finding not in {each["code"] for each in row.get("findings") or ()}:
        wrong.append(f"no finding {file.finding}")
    if any(size < 0 for size in sizes_in(row)):
        wrong.append("a negative size")
    return wrong


def sizes_in(value: object) -> list[int]:
    """All values of keys in bytes, at any depth."""
    if isinstance(value, dict):
        own = [each for key, each in value.items() if "bytes" in key and isinstance(each, int)]
        return own + [size for each in value.values() for size in sizes_in(each)]
    if isinstance(value, list):
        return [size for each in value for size in sizes_in(each)]
    return []
