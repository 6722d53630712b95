"""What is predicted of onnxruntime against what it took, on the models that a clone has at hand."""

from types import ModuleType
from typing import Any

import pytest
from installed_runtime import cpu_of_onnxruntime, require_verified
from paths import ROOT, script_module

from onnxmem.runtimes.onnxruntime.cpu import AVX512

TOOL = ROOT / "tools" / "onnxruntime" / "accuracy.py"
PAGE = (ROOT / "docs" / "accuracy.md").read_text()

pytestmark = [pytest.mark.measure, pytest.mark.slow]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return script_module(TOOL)


def test_the_figures_are_as_exact_as_promised(tool: ModuleType) -> None:
    pytest.importorskip("onnxruntime")
    require_verified()
    if cpu_of_onnxruntime() != AVX512:
        pytest.skip("the truth is of a CPU with AVX-512, and onnxruntime's graph is of this one")
    rows = list(tool.compared(some(tool.read_truth(tool.TRUTH)), None))
    assert len(rows) > 25
    peaks = [row.error("requested_peak_bytes") for row in rows]
    assert sum(error == 0 for error in peaks) >= 0.98 * len(peaks)
    assert all(abs(error) <= 5 for error in peaks)
    for name in ("held_bytes", "held_steady_bytes", "in_use_peak_bytes"):
        near = [abs(row.error(name)) <= 5 for row in rows]
        assert sum(near) >= 0.95 * len(near), name


def test_without_onnxruntime_the_peak_is_near(tool: ModuleType) -> None:
    rows = list(tool.compared(some(tool.read_truth(tool.TRUTH)), None, emulated=True))
    errors = [abs(row.error("requested_peak_bytes")) for row in rows]
    assert sum(error <= 10 for error in errors) >= 0.98 * len(errors)
    assert sum(error == 0 for error in errors) >= 0.95 * len(errors)


@pytest.mark.parametrize(
    "marker", ["runtime accuracy", "emulated accuracy", "process accuracy", "advice"]
)
def test_the_accuracy_page_has_a_table(marker: str) -> None:
    table = PAGE.split(f"<!-- {marker} -->\n", 1)[1].split("\n\n", 1)[0]
    assert len(table.splitlines()) > 5


def some(truth: dict[str, Any]) -> dict[str, Any]:
    """Half of the most common settings: symbols as in the file, a batch, reuse on."""
    rows = [row for row in truth["rows"] if row["reuse"] and not row["fixed"] and row["batch"] != 1]
    return {**truth, "rows": rows[::2]}
