"""What workers of the tests do with a model: they find these by name, as top-level functions."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from onnxmem import Analysis
from onnxmem.collection.task import Render, Task


def tasks_of(names: Sequence[str], render: Render | None = None) -> list[Task]:
    return [Task(name=name, location=name, settings={}, render=render) for name in names]


def killed(analysis: Analysis) -> str:
    """End as the kernel's out-of-memory killer ends a process, at models with that name."""
    if "killer" in analysis.path:
        os.kill(os.getpid(), signal.SIGKILL)
    return analysis.path


def slow_first(analysis: Analysis) -> str:
    """Take longest for the first model, so that others finish before it."""
    if "first" in analysis.path:
        time.sleep(0.3)
    return f"{os.getpid()}"


def stuck(analysis: Analysis) -> str:
    """Never end at models with that name."""
    if "stuck" in analysis.path:
        time.sleep(600)
    return analysis.path


def endless(analysis: Analysis) -> str:
    """Report that work has begun, and never end."""
    Path(f"{analysis.path}.begun").touch()
    time.sleep(600)
    return ""
