"""One audit over all models that tests make: hostile, onnx's own, of onnxruntime's kinds."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hostile.running import LIGHT, make_all, wrong_row
from model.test_backend_suite import models
from paths import environment
from runtime_kinds import KINDS

from onnxmem.errors import printable

_MODEL_ROWS = {"ok", "partial"}
_ABSENT = {"missing_file", "usage"}
"""Ends of what is no file at all, which have another exit code."""


def hostile_names(folder: Path) -> Iterator[str]:
    for file in LIGHT:
        is_folder = file.own_name is None and Path(folder, file.file_name).is_dir()
        if not (is_folder or _ABSENT & set(file.ends)):
            yield file.file_name


def sound_names(folder: Path) -> Iterator[str]:
    """Write the backend suite's models and those of onnxruntime's kinds."""
    made = (*models(), *((f"kind/{kind.name}", kind.make()) for kind in KINDS))
    for place, (_, model) in enumerate(made):
        name = f"model_{place}.onnx"
        (folder / name).write_bytes(model.SerializeToString())
        yield name


def audited(folder: Path, names: Sequence[str], out: Path) -> tuple[int, int]:
    """Run one audit in one process; its exit code, and the most that it held, in KiB."""
    (folder / "list.txt").write_text("\n".join(names), encoding="utf-8", errors="surrogateescape")
    command = [sys.executable, "-m", "onnxmem", "--json", "--jobs", "1", "-q", "-o", str(out)]
    # A line for each that is refused.
    actions = [(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
    here = Path.cwd()
    os.chdir(folder)
    try:
        child = os.posix_spawn(
            sys.executable, [*command, "@list.txt"], environment(), file_actions=actions
        )
    finally:
        os.chdir(here)
    _, status, usage = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss


def wrong_rows(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    by_name = {file.file_name: file for file in LIGHT}
    for name, row in zip(names, rows, strict=True):
        if row["path"] != printable(name):
            yield f"{name} is told as {row['path']}"
        if name in by_name:
            yield from (f"{name}: {text}" for text in wrong_row(by_name[name], row))
        elif row["status"] not in _MODEL_ROWS:
            yield f"{name}: {row['error']}"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "wait4"), reason="a process's peak as POSIX tells it")
def test_one_audit_over_everything(tmp_path: Path) -> None:
    folder = make_all(tmp_path)
    hostile = [name for name in hostile_names(folder) if "\n" not in name]
    names = [*hostile, *sound_names(folder)]
    assert len(names) > 2_900
    code, first_kib = audited(folder, hostile, tmp_path / "first.json")
    assert code == 3
    code, most_kib = audited(folder, names, tmp_path / "all.json")
    assert code == 3
    assert most_kib <= 1.1 * first_kib
    rows = json.loads((tmp_path / "all.json").read_text())["models"]
    assert list(wrong_rows(names, rows)) == []
