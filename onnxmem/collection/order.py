"""Outcomes in the order of the tasks, whatever order they are worked out in."""

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Final

from onnxmem.collection.task import Outcome, Task, work
from onnxmem.errors import EXIT_UNANALYSED, Fault, fault_of

WINDOW: Final = 256
"""Tasks that are handed out ahead of the outcome that is due: memory stays flat, and a model that
takes long keeps no worker idle."""

_DEAD_WORKERS: Final = frozenset({"KilledWorker"})
"""Of dask.distributed, after its worker died at each trial."""


def run_on(
    executor: Executor, tasks: Iterable[Task], window: int = WINDOW
) -> Generator[Outcome, None, None]:
    """Outcomes from any executor; what it has not begun at an early end is called off."""
    waiting: deque[tuple[Task, Future[Outcome] | Outcome]] = deque()
    try:
        for task in tasks:
            waiting.append((task, _submitted(executor, task)))
            while len(waiting) >= window or (waiting and _is_done(waiting[0][1])):
                yield _taken(*waiting.popleft())
        while waiting:
            yield _taken(*waiting.popleft())
    finally:
        for _, future in waiting:
            if isinstance(future, Future):
                future.cancel()


def died(task: Task, how: str) -> Outcome:
    """The outcome of a model whose worker ended without one."""
    message = f"the process that worked it out died: {how}"
    return task.failed(Fault("worker_died", message, EXIT_UNANALYSED))


def given_up(task: Task, limit_seconds: float) -> Outcome:
    """The outcome of a model that took longer than it may."""
    message = f"given up after {limit_seconds:g} s; --timeout gives it longer"
    return task.failed(Fault("timeout", message, EXIT_UNANALYSED))


def _submitted(executor: Executor, task: Task) -> Future[Outcome] | Outcome:
    try:
        return executor.submit(work, task.elsewhere())
    except BrokenExecutor as fault:
        return died(task, str(fault))


def _is_done(future: Future[Outcome] | Outcome) -> bool:
    return not isinstance(future, Future) or future.done()


def _taken(task: Task, future: Future[Outcome] | Outcome) -> Outcome:
    if not isinstance(future, Future):
        return future
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - whatever an executor raises is this model's alone
        if isinstance(error, BrokenExecutor) or type(error).__name__ in _DEAD_WORKERS:
            return died(task, str(error))
        return task.failed(fault_of(error), error)
