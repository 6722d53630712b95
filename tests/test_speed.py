"""A budget for each frequent command, in what a loaded machine does not change.

Times of a shared machine vary by a factor of two; the functions of onnxmem that a command calls and
the modules that it imports do not vary at all, whatever runs beside it. ``tools/benchmarks`` has
the times, ``tests/robustness/test_scale.py`` how the work grows with a graph.
"""

import subprocess
import sys

import pytest
from paths import MODELS

COUNT = """
import sys
from pathlib import Path

calls = 0

def count(frame, event, argument):
    global calls
    # What an f-string, a comprehension or a loop takes differs between versions of Python.
    name = frame.f_code.co_filename
    calls += event == "call" and name.startswith(folder) and frame.f_code.co_name[0] != "<"

import onnxmem
folder = str(Path(onnxmem.__file__).parent)
sys.setprofile(count)
from onnxmem.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
sys.setprofile(None)
own = sum(name.startswith("onnxmem") for name in sys.modules)
print(calls, own, file=sys.stderr)
"""
EMULATED = ("--runtime", "ort-cpu", "--emulate-optimizer", "--cpu", "avx512")
COMMANDS = {
    ("--help",): (110, 16),
    ("mlp.onnx",): (2_850, 95),
    ("resnet50.train.onnx", "--train", "--batch", "8"): (138_200, 135),
    ("mobilenet_v2.onnx", *EMULATED): (
        98_000,
        178,
    ),
    ("fit", "mlp.onnx", "--device", "24GB"): (13_300, 112),
}
"""The calls of functions and methods of onnxmem, and its modules, at most."""


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_calls_and_imports_no_more_than_its_budget(words: tuple[str, ...]) -> None:
    """Who needs more says why in the change that raises the number; who needs less may lower it."""
    paths = [str(MODELS / word) if word.endswith(".onnx") else word for word in words]
    done = subprocess.run(
        [sys.executable, "-c", COUNT, *paths], capture_output=True, text=True, check=True
    )
    found = tuple(map(int, done.stderr.splitlines()[-1].split()))
    most_calls, most_modules = COMMANDS[words]
    assert found[0] <= most_calls, found
    assert found[1] <= most_modules, found
