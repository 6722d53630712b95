"""Many models: where they are analyzed, and their outcomes in the order of their names."""

import os
from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnxmem.analysis.analysis import analyze
from onnxmem.analysis.json_rows import JsonDict
from onnxmem.collection.sources import is_remote
from onnxmem.collection.task import Analyze, Outcome, Task, work
from onnxmem.errors import UsageError

if TYPE_CHECKING:
    from concurrent.futures import Executor

_QUICK_BYTES: Final = 2**18
"""Files of fewer bytes together are analyzed sooner than workers start (about 0.7 s, against 0.5 s
for a graph of 218 KiB)."""


def analyze_many(
    paths: Iterable[str | os.PathLike[str]],
    *,
    executor: "Executor | None" = None,
    jobs: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    layers: bool = False,
    timeout_seconds: float | None = None,
    **keywords: Any,  # noqa: ANN401 - those of analyze
) -> Iterator[JsonDict]:
    """Rows of the JSON contract, one a model, in the order of the paths, as they come.

    ``keywords`` are those of ``analyze``. A model that fails is a row with status
    ``error``. Paths may be URLs of fsspec; nothing is expanded. ``executor`` is any of
    ``concurrent.futures``' kind, a pool of threads or processes or ``Client.get_executor()`` of
    dask; else ``jobs`` processes of this machine work, one per core by default, 1 being this one.
    ``cache`` is a folder of rows that were computed before. A model that takes longer than
    ``timeout_seconds`` is skipped, and its process killed.

    Processes import neither the main module nor anything from the current folder.

    :raises UsageError: ``jobs`` below 1, a time limit beside an executor, or a cache that cannot be
        written to.
    """
    if jobs is not None and jobs < 1:
        message = f"jobs is {jobs}; give a number from 1 on"
        raise UsageError(message)
    if timeout_seconds is not None and executor is not None:
        message = "timeout_seconds is for processes of this machine; an executor has its own"
        raise UsageError(message)
    settings = {"one_of_several": True, **keywords}
    folder = None
    if cache is not None:
        from onnxmem.collection.cache import open_cache

        folder = open_cache(os.fspath(cache))
    tasks = (
        Task(name=name, location=name, settings=settings, with_layers=layers, cache=folder)
        for name in (os.fspath(path) for path in paths)
    )
    found = outcomes(tasks, executor=executor, jobs=jobs, timeout_seconds=timeout_seconds)
    return (outcome["row"] for outcome in found)


def outcomes(
    tasks: Iterable[Task],
    *,
    executor: "Executor | None" = None,
    jobs: int | None = None,
    timeout_seconds: float | None = None,
    analyze_model: Analyze = analyze,
) -> Generator[Outcome, None, None]:
    """Outcomes in the order of the tasks; ``analyze_model`` is for this process alone.

    Only a process of its own can be killed: with a time limit none works in this one.
    """
    if executor is not None:
        from onnxmem.collection.executors import run_on

        return run_on(executor, tasks)
    if jobs is None:
        jobs, tasks = _jobs_for(iter(tasks))
    if jobs == 1 and timeout_seconds is None:
        return (work(task, analyze_model) for task in tasks)
    from onnxmem.collection.workers import run_in_workers

    return run_in_workers(tasks, jobs, timeout_seconds)


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _jobs_for(tasks: Iterator[Task]) -> tuple[int, Iterable[Task]]:
    """One worker per core where there is enough to do; tasks are drawn only until that is seen."""
    drawn: list[Task] = []
    num_bytes = 0
    for task in tasks:
        drawn.append(task)
        num_bytes += _size_bytes(task)
        if len(drawn) > 1 and num_bytes >= _QUICK_BYTES:
            break
    else:
        return 1, drawn
    return num_cores(), chain(drawn, tasks)


def _size_bytes(task: Task) -> int:
    """Of the file, as far as it is known; one that is fetched is worth a worker.

    A run of the model is not: it takes memory and cores of its own.
    """
    if task.settings.get("measure") is not None:
        return 0
    if is_remote(task.location):
        return _QUICK_BYTES
    try:
        return Path(task.location).stat().st_size
    except (OSError, ValueError):
        return 0
