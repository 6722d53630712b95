"""What is imported when, and which names a user has."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from paths import MODELS, ROOT

import onnxmem

MODEL = MODELS / "mlp.onnx"
NOT_NEEDED = (
    "onnxmem.analysis.compute",
    "onnxmem.analysis.rules_of_thumb",
    "onnxmem.analysis.scaling",
    "onnxmem.model.shapes.batch_rewrite",
    "onnxmem.model.shapes.type_memo",
    "onnxmem.runtimes.from_settings",
    "onnxmem.runtimes.torch.step",
    "onnxmem.report.page.model_page",
    "onnxmem.measuring.measuring",
    "onnxmem.runtimes.ideal.schedule_search",
    "onnxmem.analysis.fitting.footprints",
    "onnxmem.decisions.devices",
    "onnxmem.kv_cache.cache",
    "onnxmem.analysis.cache_memory",
    "onnxmem.measuring.measurement",
    "onnxmem.runtimes.ideal.schedules",
    "onnxmem.collection.cache",
    "onnxmem.collection.summary",
    "onnxmem.collection.workers",
    "onnxmem.report.charts.steps",
    "onnxmem.report.sections.cache",
    "onnxmem.report.sections.runtimes",
    "onnxmem.report.sections.training",
    "onnxmem.report.timelines",
    "onnxmem.runtimes.torch.cuda",
    "onnxmem.runtimes.torch.memory",
    "onnxmem.export",
    "onnxmem.model.http_ranges",
    "onnxmem.model.remote",
    "onnxmem.model_explorer",
    "flask",
    "fsspec",
    "hashlib",
    "http",
    "logging",
    "model_explorer",
    "multiprocessing",
    "tomllib",
    "networkx",
    "onnxruntime",
)
"""What a report of inference does without."""


def test_the_public_names_exist_and_are_listed() -> None:
    assert set(onnxmem.__all__) <= set(dir(onnxmem))
    assert all(getattr(onnxmem, each) is not None for each in onnxmem.__all__)


def test_the_version_is_defined_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project.get("version", onnxmem.__version__) == onnxmem.__version__


def test_an_unknown_public_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="'onnxmem' has no attribute 'other'"):
        _ = onnxmem.other


def test_a_report_imports_only_modules_that_it_needs() -> None:
    code = (
        "import sys\nfrom onnxmem.cli import main\n"
        f"main([{str(MODEL)!r}])\n"
        f"print([name for name in {NOT_NEEDED} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_a_report_and_a_page_need_no_process_and_no_thread(tmp_path: Path) -> None:
    """As in Pyodide, which has neither, and no module ``resource`` or ``pwd``."""
    page = tmp_path / "page.html"
    code = (
        "import os, subprocess, sys, threading\n"
        "def refuse(*words, **named): raise OSError('not supported')\n"
        "sys.modules |= dict.fromkeys(('resource', 'pwd'))\n"
        "subprocess.Popen.__init__ = os.fork = os.posix_spawn = threading.Thread.start = refuse\n"
        "from onnxmem.cli import main\n"
        f"sys.exit(main([{str(MODEL)!r}, '--train', '--batch', '8', '--html', {str(page)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "training step" in done.stdout
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
