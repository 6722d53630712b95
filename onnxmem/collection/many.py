"""Analyze many models: choose where they run, and return their outcomes in order."""

import os
from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnxmem.analysis.analysis import analyze, takes_settings
from onnxmem.analysis.json_rows import JsonDict
from onnxmem.collection.task import Analyze, Outcome, Task, work
from onnxmem.errors import UsageError
from onnxmem.model.files import is_remote
from onnxmem.settings import num_cores

if TYPE_CHECKING:
    from concurrent.futures import Executor

_QUICK_BYTES: Final = 2**18
"""Smaller collections are done before workers have started: a graph of 218 KiB takes 0.5 s, workers
start in 0.7 s."""


@takes_settings
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
    """The JSON objects of models, in the order of the paths, each as soon as it is computed.

    A model that fails has the status ``error``. Worker processes import neither the main module nor
    anything from the current folder.

    :param paths: files or URLs of fsspec; folders and patterns are not expanded.
    :param executor: any of ``concurrent.futures``, or ``Client.get_executor()`` of dask (default:
        None, processes of this machine).
    :param jobs: processes of this machine; with 1 only this one (default: None, one per core).
    :param cache: a folder for results (default: None, none are kept).
    :param layers: with the rows of all layers (default: False).
    :param timeout_seconds: seconds after which a model is skipped and its process killed (default:
        None, no limit).
    :param one_of_several: as of ``analyze`` (default: True).
    :raises UsageError: ``jobs`` below 1, a time limit beside an executor, or a cache that cannot be
        written to.
    """
    if jobs is not None and jobs < 1:
        message = f"jobs {jobs} is not a positive integer"
        raise UsageError(message)
    if timeout_seconds is not None and executor is not None:
        message = "timeout_seconds has no effect on an executor; use its own time limit"
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
    """Outcomes in the order of the tasks; ``analyze_model`` is only used in this process.

    With a time limit no task runs in this process, because only a child process can be killed.
    """
    if executor is not None:
        from onnxmem.collection.executors import run_on

        return run_on(executor, tasks)
    if jobs is None:
        jobs, tasks = _jobs_for(iter(tasks))
    if jobs == 1 and timeout_seconds is None:
        return _outcomes_here(tasks, analyze_model)
    from onnxmem.collection.workers import run_in_workers

    return run_in_workers(tasks, jobs, timeout_seconds)


def _outcomes_here(tasks: Iterable[Task], analyze_model: Analyze) -> Generator[Outcome, None, None]:
    """Outcomes in this process; several models share their results."""
    results = None
    # One model has nobody to share with.
    if not isinstance(tasks, list) or len(tasks) > 1:
        from onnxmem.collection.cache import RunResults

        results = RunResults()
    for task in tasks:
        yield work(task, analyze_model, results)


def _jobs_for(tasks: Iterator[Task]) -> tuple[int, Iterable[Task]]:
    """One worker per core if the models are large enough, else this process.

    ``tasks`` may be endless, so it is read only until there is enough work; the second result has
    all tasks, those already read first.
    """
    drawn: list[Task] = []
    num_bytes = 0
    for task in tasks:
        drawn.append(task)
        num_bytes += _size_bytes(task)
        # One model alone needs no worker, however large it is.
        if len(drawn) > 1 and num_bytes >= _QUICK_BYTES:
            break
    else:
        return 1, drawn
    return num_cores(), chain(drawn, tasks)


def _size_bytes(task: Task) -> int:
    """The size of the file; one that is fetched is always worth a worker.

    A measurement never is: it needs all memory and cores for itself.
    """
    if task.settings.get("measure") is not None:
        return 0
    if is_remote(task.location):
        return _QUICK_BYTES
    try:
        return Path(task.location).stat().st_size
    except (OSError, ValueError):
        return 0
