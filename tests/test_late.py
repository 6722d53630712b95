"""Names that are imported when they are first asked for."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import onnxmem
from onnxmem.late import late

PACKAGES = (
    "onnxmem",
    "onnxmem.decisions.devices",
    "onnxmem.analysis.fitting",
    "onnxmem.kv_cache",
    "onnxmem.measure",
    "onnxmem.runtimes.ideal.schedule",
    "onnxmem.collection",
    "onnxmem.report",
    "onnxmem.report.charts",
    "onnxmem.report.sections",
    "onnxmem.runtimes",
    "onnxmem.runtimes.onnxruntime",
    "onnxmem.runtimes.torch",
)
MODEL = Path(__file__).parents[1] / "models" / "mlp.onnx"
NOT_NEEDED = (
    "onnxmem.runtimes.asking",
    "onnxmem.runtimes.torch.step",
    "onnxmem.report.page.model_page",
    "onnxmem.measure.measuring",
    "onnxmem.runtimes.ideal.schedule.searching",
    "onnxmem.analysis.fitting.holding",
    "onnxmem.decisions.devices.reading",
    "onnxmem.kv_cache.cache",
    "onnxmem.analysis.cache_memory",
    "onnxmem.measure.measurement",
    "onnxmem.runtimes.ideal.schedule.schedule",
    "onnxmem.collection.cache",
    "onnxmem.collection.summary",
    "onnxmem.collection.workers",
    "onnxmem.report.charts.series",
    "onnxmem.report.sections.cache",
    "onnxmem.report.sections.runtimes",
    "onnxmem.report.sections.training",
    "onnxmem.report.timelines",
    "onnxmem.runtimes.torch.cuda",
    "onnxmem.runtimes.torch.memory",
    "hashlib",
    "logging",
    "multiprocessing",
    "tomllib",
    "networkx",
    "onnxruntime",
)
"""What a report of inference does without."""


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_there_and_is_no_module(name: str) -> None:
    """A module of a late name would stand in its place once it is imported."""
    package = importlib.import_module(name)
    public = set(package.__all__)
    modules = {each.name for each in pkgutil.iter_modules(package.__path__)}
    assert all(getattr(package, each) is not None for each in public)
    assert not public & modules


def test_a_name_that_is_not_there_is_told() -> None:
    getter = late("onnxmem", {"onnxmem.units": ("sum_known",)})
    with pytest.raises(AttributeError, match="'onnxmem' has no attribute 'other'"):
        getter("other")


def test_what_is_late_is_listed() -> None:
    assert set(onnxmem.__all__) <= set(dir(onnxmem))


def test_a_report_imports_no_room_that_it_does_not_enter() -> None:
    code = (
        "import sys\nfrom onnxmem.cli import main\n"
        f"main([{str(MODEL)!r}])\n"
        f"print([name for name in {NOT_NEEDED} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
