"""What a child would do, done in the process of the tests, where a process is not what is tested.

A child starts Python and imports onnxruntime; a session of a small graph takes milliseconds.
"""

import contextlib
import importlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest

from onnxmem.children.running import JSON, ChildFault, ChildLimits, fault_of, run_in_child

_CALLERS = (
    "onnxmem.measuring.measuring",
    "onnxmem.measuring.observing",
    "onnxmem.measuring.served",
    "onnxmem.runtimes.onnxruntime.session_files",
    "onnxmem.runtimes.onnxruntime.session_graph.optimization",
)


def work_without_children(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, but: str | None = None
) -> None:
    """Measure, and let onnxruntime optimize graphs, without children; files go to ``folder``.

    One function may have a child all the same.
    """

    def run(function: str, *given: Any, **more: Any) -> dict[str, JSON] | ChildFault:  # noqa: ANN401 - what a child is given
        return (run_in_child if function == but else _run_here)(function, *given, **more)

    monkeypatch.chdir(folder)
    for name in _CALLERS:
        monkeypatch.setattr(f"{name}.run_in_child", run)


def _run_here(
    function: str,
    arguments: Mapping[str, JSON],
    limits: ChildLimits | None = None,
    _uninitialized: Sequence[str] = (),
    _variables: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, JSON] | ChildFault:
    assert limits is not None
    module, _, name = function.partition(":")
    work = getattr(importlib.import_module(module), name)
    # A child works in a folder of its own, where its runtime leaves statistics and profiles.
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            return _over_the_wire(work(**_over_the_wire(dict(arguments))))
    except Exception as error:  # noqa: BLE001 - whatever it is, the child would report it
        raised = {"raised": type(error).__name__, "text": str(error), "missing": None}
        return fault_of({**raised, "is_memory": isinstance(error, MemoryError)})


def _over_the_wire(given: dict[str, JSON]) -> dict[str, JSON]:
    """The object as a child receives and returns it."""
    return cast("dict[str, JSON]", json.loads(json.dumps(given)))
