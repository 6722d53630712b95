"""No temporary folder can be made: one line that says so, and no internal error."""

import io
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from models_on_disk import write_model

from onnxmem.cli import main


@pytest.fixture(autouse=True)
def without_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(Path("net.onnx"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))


@pytest.mark.parametrize("line", ["-", "view net.onnx --no-open", "measure net.onnx --batch 2"])
def test_a_command_says_so_in_one_line(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = io.BytesIO(Path("net.onnx").read_bytes())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=model))
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("error: ")
    assert "no temporary folder can be made: No such file or directory; " in error


def test_the_figures_of_a_session_are_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("net.onnx --batch 2 --runtime ort-cpu".split()) == 3
    out, error = capsys.readouterr()
    assert "the figures of ort-cpu are unknown" in out
    assert "Live at the peak  2 tensors, at pool" in out
    assert error.count("\n") == 1
    assert "no temporary folder can be made: No such file or directory; set TMPDIR" in error
