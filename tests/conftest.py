"""Hypothesis draws the same few examples at every run of CI, and new ones elsewhere.

``pytest --hypothesis-profile=thorough`` draws forty times as many.

Reports have as many columns as where there is no terminal, and interrupts arrive.
"""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings
from without_children import work_without_children

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("explore", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("ci" if os.environ.get("CI") else "explore")
os.environ["COLUMNS"] = "100"
# A shell that starts the tests in the background has them and their children ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def without_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let onnxruntime run in the process of the test."""
    work_without_children(monkeypatch, tmp_path)


def pytest_collection_finish() -> None:
    """Collect garbage rarely, as the command line does, and not among what all tests share.

    A measurement collects garbage itself: a fifth of a second among all modules and tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)
