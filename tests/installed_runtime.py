"""The onnxruntime at hand: its version, and the CPU that it takes this machine's for.

Tests that compare with onnxruntime's own graph hold for the newest versions that the rules were
verified on. On another they are skipped, unless ``ONNXMEM_TEST_UNVERIFIED`` is set: that is how
``tools/onnxruntime/versions.py`` finds out which rules a new version has changed.
"""

import contextlib
import os
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import onnx.parser
import pytest

from onnxmem.runtimes.onnxruntime.cpu import ARM64, CPUS, Cpu
from onnxmem.runtimes.onnxruntime.memory import VERIFIED

COMPARED = VERIFIED[-2:]
"""Versions whose graphs the emulated optimizer makes; of those before, kernels and the arena were
verified (``tests/data/onnxruntime/versions.json``)."""
IMAGE = """<ir_version: 10, opset_import: ["" : 21]>
  agraph (float[1,16,3,3] x) => (float[1,8,3,3] y) <float[8,16,1,1] w = {ONES}> { y = Conv(x, w) }
"""


def installed() -> tuple[int, int]:
    """Major and minor version, without importing it; (0, 0) where there is none."""
    for package in ("onnxruntime", "onnxruntime-gpu"):
        with contextlib.suppress(PackageNotFoundError):
            return numbers(version(package))
    return 0, 0


def numbers(text: str) -> tuple[int, int]:
    """Major and minor version out of a text."""
    major, minor = re.findall(r"\d+", text)[:2]
    return int(major), int(minor)


def require_verified() -> None:
    """Skip the test on a version that no rule was verified on."""
    found = installed()
    if found not in map(numbers, COMPARED) and not os.environ.get("ONNXMEM_TEST_UNVERIFIED"):
        pytest.skip(f"onnxruntime {found[0]}.{found[1]} is not verified: see tools/onnxruntime")


def since(first: str) -> pytest.MarkDecorator:
    """A mark for cases whose rule was another one before a version."""
    reason = f"the rule is that of onnxruntime {first} and later"
    return pytest.mark.skipif(installed() < numbers(first), reason=reason)


def require_since(first: str) -> None:
    """The same for a case of a table."""
    if first and installed() < numbers(first):
        pytest.skip(f"the rule is that of onnxruntime {first} and later")


@cache
def cpu_of_onnxruntime() -> Cpu:
    """What onnxruntime takes this machine's CPU for, read off a graph that it makes."""
    ort = pytest.importorskip("onnxruntime")
    model = onnx.parser.parse_model(IMAGE.replace("ONES", ", ".join(["1"] * 128)))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    with TemporaryDirectory() as folder:
        path = Path(folder, "optimized.onnx")
        options.optimized_model_filepath = str(path)
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        made = onnx.load(path)
    if all(node.domain != "com.microsoft.nchwc" for node in made.graph.node):
        return ARM64
    (filters,) = {weight.dims[0] for weight in made.graph.initializer if len(weight.dims) == 4}
    return next(cpu for cpu in CPUS.values() if cpu.channel_block == filters)
