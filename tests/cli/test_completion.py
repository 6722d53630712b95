"""What a shell may complete, as argcomplete requests it: by variables of a new process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from models_on_disk import write_model

from onnxmem.cli import COMMANDS

pytest.importorskip("argcomplete")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("completion")
    write_model(found / "resnet50.onnx")
    (found / "readme.txt").touch()
    return found


def completed(line: str, folder: Path) -> list[str]:
    """The completions of a line, the cursor at its end."""
    requested = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": "found.txt",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    subprocess.run(
        [sys.executable, "-m", "onnxmem"],
        cwd=folder,
        env={**os.environ, **requested},
        check=True,
        timeout=60,
    )
    return [word.strip() for word in (folder / "found.txt").read_text().split("\n")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("onnxmem fi", {"fit"}),
        ("onnxmem r", {"reorder", "resnet50.onnx"}),
        ("onnxmem help d", {"devices", "diff"}),
        ("onnxmem fit r", {"resnet50.onnx"}),
        ("onnxmem explain process r", {"resnet50.onnx"}),
        ("onnxmem resnet50.onnx --prec", {"--precision"}),
        ("onnxmem fit --which", {"--which-device"}),
        ("onnxmem resnet50.onnx --train --precision mixed", {"mixed-bf16", "mixed-fp16"}),
        ("onnxmem fit resnet50.onnx --device 'RTX 409", {"RTX 4090"}),
        ("onnxmem measure resnet50.onnx --device cu", {"cuda"}),
    ],
)
def test_a_word_is_completed(line: str, words: set[str], folder: Path) -> None:
    assert set(completed(line, folder)) == words


def test_the_first_word_is_a_command_or_a_model(folder: Path) -> None:
    assert {*COMMANDS, "help", "resnet50.onnx"} == set(completed("onnxmem ", folder))
