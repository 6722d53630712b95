"""What is not lost, does not hang, and is no fault of onnxmem: outputs, special files, names."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hostile.running import MODEL, environment
from models_on_disk import write_model

resource = pytest.importorskip("resource", reason="limits as POSIX has them")

OUTPUTS = (
    ("--json", "-o", "old.out"),
    ("--format", "jsonl", "-o", "old.out"),
    ("--html", "old.out"),
    ("export", "--format", "chrome", "-o", "old.out"),
    ("annotate", "-o", "old.out"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with a sound model."""
    write_model(tmp_path / MODEL)
    return tmp_path


def ran(
    folder: Path, words: Sequence[str], limit_bytes: int | None = None
) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    return subprocess.run(
        [sys.executable, "-m", "onnxmem", *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
        timeout=60,
    )


def with_model(words: Sequence[str]) -> list[str]:
    command = [words[0]] if not words[0].startswith("-") else []
    return [*command, MODEL, *words[len(command) :]]


@pytest.mark.parametrize("words", OUTPUTS, ids=" ".join)
def test_an_older_result_survives_a_full_disk(folder: Path, words: Sequence[str]) -> None:
    old = folder / "old.out"
    old.write_bytes(b"o" * 8000)
    done = ran(folder, [*with_model(words), "--force"], limit_bytes=64)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "old.out: cannot be written: File too large" in done.stderr
    assert old.read_bytes() == b"o" * 8000
    assert sorted(each.name for each in folder.iterdir()) == ["old.out", MODEL]


def test_the_target_of_a_link_is_replaced(folder: Path) -> None:
    (folder / "target").write_text("old")
    (folder / "link").symlink_to("target")
    assert ran(folder, [MODEL, "--json", "-o", "link", "--force"]).returncode == 0
    assert (folder / "link").is_symlink()
    assert json.loads((folder / "target").read_text())["schema"] == "onnxmem.report"


@pytest.mark.parametrize("words", OUTPUTS, ids=" ".join)
def test_a_device_is_written_to_without_force(folder: Path, words: Sequence[str]) -> None:
    names = [os.devnull if word == "old.out" else word for word in with_model(words)]
    done = ran(folder, [*names, "--quiet"])
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize("flags", [(), ("--cache", "rows")], ids=["plain", "cache"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.onnx", "missing_file: no such file"),
        ("pipe.onnx", "a FIFO"),
        ("/dev/zero", "a character device"),
        ("", "the name is empty"),
        ("n" * 300, "File name too long"),
        ("loop.onnx", "cannot be opened"),
    ],
)
def test_a_name_of_no_model_costs_its_own_row(
    folder: Path, name: str, message: str, flags: Sequence[str]
) -> None:
    os.mkfifo(folder / "pipe.onnx")
    (folder / "loop.onnx").symlink_to("loop.onnx")
    done = ran(folder, [MODEL, name, "--format", "jsonl", *flags])
    rows = [json.loads(line)["status"] for line in done.stdout.splitlines()]
    assert rows == ["ok", "error"]
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.returncode in {2, 3}


def test_a_list_with_a_name_that_is_too_long_keeps_the_other_rows(folder: Path) -> None:
    (folder / "list").write_text(f"{MODEL}\n{'n' * 300}\n{MODEL}\n")
    done = ran(folder, ["@list", "--format", "jsonl"])
    rows = [json.loads(line)["status"] for line in done.stdout.splitlines()]
    assert rows == ["ok", "error", "ok"]
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
