"""What is predicted of onnxruntime against what it took, on the models that a clone has at hand."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
TOOL = ROOT / "tools" / "onnxruntime" / "accuracy.py"
README = (ROOT / "README.md").read_text()

pytestmark = [pytest.mark.measure, pytest.mark.slow]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    onnxruntime = pytest.importorskip("onnxruntime")
    if not onnxruntime.__version__.startswith("1.31."):
        pytest.skip(f"the truth is of onnxruntime 1.31, not of {onnxruntime.__version__}")
    cpu = Path("/proc/cpuinfo")
    if not cpu.exists() or "avx512f" not in cpu.read_text():
        pytest.skip("the truth is of a CPU with AVX-512, whose images have blocks of 16 channels")
    spec = importlib.util.spec_from_file_location("ort_accuracy", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_table_is_what_its_tool_prints_and_holds_what_is_promised(tool: ModuleType) -> None:
    rows = list(tool.compared(tool.read_truth(tool.TRUTH), None))
    assert tool.table(rows) == table_after("<!-- runtime accuracy -->")
    peaks = [row.error("requested_peak_bytes") for row in rows]
    exact = sum(error == 0 for error in peaks)
    assert exact >= 0.95 * len(peaks)
    held = [abs(row.error("held_steady_bytes")) <= 5 for row in rows]
    assert sum(held) >= 0.9 * len(held)


def test_without_onnxruntime_the_peak_is_near(tool: ModuleType) -> None:
    rows = list(tool.compared(tool.read_truth(tool.TRUTH), None, emulated=True))
    assert tool.table(rows) == table_after("<!-- emulated accuracy -->")
    near = [abs(row.error("requested_peak_bytes")) <= 10 for row in rows]
    assert sum(near) >= 0.8 * len(near)


def table_after(marker: str) -> str:
    return README.split(f"{marker}\n", 1)[1].split("\n\n", 1)[0]
