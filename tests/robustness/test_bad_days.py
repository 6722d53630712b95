"""What is not lost, does not hang, and is no fault of onnxmem: outputs, special files, names."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hostile.running import MODEL
from models_on_disk import write_model

from onnxmem.cli import main

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.timeout(60)
resource = pytest.importorskip("resource", reason="limits as POSIX has them")

OUTPUTS = (
    ("--json", "-o", "old.out"),
    ("--format", "jsonl", "-o", "old.out"),
    ("--html", "old.out"),
    ("export", "--format", "chrome", "-o", "old.out"),
    ("annotate", "-o", "old.out"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a sound model."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / MODEL)
    return tmp_path


@contextmanager
def files_of_at_most(limit_bytes: int) -> Iterator[None]:
    """Let this process write no larger file, nor compiled modules, which Python would truncate."""
    is_compiling, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = is_compiling


def with_model(words: Sequence[str]) -> list[str]:
    command = [words[0]] if not words[0].startswith("-") else []
    return [*command, MODEL, *words[len(command) :]]


@pytest.mark.parametrize("words", OUTPUTS, ids=" ".join)
def test_an_older_result_survives_a_full_disk(
    folder: Path, words: Sequence[str], capsys: Capture
) -> None:
    old = folder / "old.out"
    old.write_bytes(b"o" * 8000)
    with files_of_at_most(64):
        code = main([*with_model(words), "--force"])
    err = capsys.readouterr().err
    assert (code, err.count("\n")) == (2, 1), err
    assert "old.out: cannot be written: File too large" in err
    assert old.read_bytes() == b"o" * 8000
    assert sorted(each.name for each in folder.iterdir()) == ["old.out", MODEL]


def test_the_target_of_a_link_is_replaced(folder: Path) -> None:
    (folder / "target").write_text("old")
    (folder / "link").symlink_to("target")
    assert main([MODEL, "--json", "-o", "link", "--force"]) == 0
    assert (folder / "link").is_symlink()
    assert json.loads((folder / "target").read_text())["schema"] == "onnxmem.report"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("words", OUTPUTS, ids=" ".join)
def test_a_device_is_written_to_without_force(words: Sequence[str], capsys: Capture) -> None:
    names = [os.devnull if word == "old.out" else word for word in with_model(words)]
    assert main([*names, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
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
    folder: Path, name: str, message: str, flags: Sequence[str], capsys: Capture
) -> None:
    os.mkfifo(folder / "pipe.onnx")
    (folder / "loop.onnx").symlink_to("loop.onnx")
    code = main([MODEL, name, "--format", "jsonl", *flags])
    out, err = capsys.readouterr()
    rows = [json.loads(line)["status"] for line in out.splitlines()]
    assert rows == ["ok", "error"]
    assert message in err
    assert err.count("\n") == 1
    assert code in {2, 3}


def test_a_list_with_a_name_that_is_too_long_keeps_the_other_rows(
    folder: Path, capsys: Capture
) -> None:
    (folder / "list").write_text(f"{MODEL}\n{'n' * 300}\n{MODEL}\n")
    code = main(["@list", "--format", "jsonl"])
    out, err = capsys.readouterr()
    assert [json.loads(line)["status"] for line in out.splitlines()] == ["ok", "error", "ok"]
    assert (code, err.count("\n")) == (2, 1)
