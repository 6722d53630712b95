"""Outcomes from any executor of ``concurrent.futures``' kind, that of a dask cluster among them.

The module stands apart from ``many`` because ``concurrent.futures`` and what it imports are needed
only where a caller brings an executor; dask is imported when a cluster is requested.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from importlib import import_module
from typing import Final

from onnxmem.collection.task import Outcome, Task, work, worker_died
from onnxmem.errors import UsageError, fault_of, shortened

WINDOW: Final = 256
"""Tasks that are submitted ahead of the outcome that is due: memory stays flat, and a model that
takes long keeps no worker idle."""
_DEAD_WORKERS: Final = frozenset({"KilledWorker"})
"""Of dask.distributed, after its worker died at each trial."""
_RETRIES: Final = 2
"""Of a task that raised; one whose worker died is begun again by the scheduler anyway, as often as
``distributed.scheduler.allowed-failures`` says."""
_TIMEOUT: Final = "10s"
"""To reach the scheduler."""


def run_on(
    executor: Executor, tasks: Iterable[Task], window: int = WINDOW
) -> Generator[Outcome, None, None]:
    """Outcomes in the order of the tasks; an early end cancels what has not begun."""
    waiting: deque[tuple[Task, Future[Outcome] | Outcome]] = deque()
    try:
        for task in tasks:
            waiting.append((task, _submitted(executor, task)))
            while len(waiting) >= window or (waiting and _is_done(waiting[0][1])):
                yield _outcome(*waiting.popleft())
        while waiting:
            yield _outcome(*waiting.popleft())
    finally:
        for _, future in waiting:
            if isinstance(future, Future):
                future.cancel()


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """The cluster behind a scheduler's address, as an executor.

    Tasks are not ``pure``: two that look alike are two, for a file may change between them. The
    workers have onnxmem installed, and see the models under the same paths.

    :raises UsageError: dask is not installed, or no scheduler replies.
    """
    try:
        distributed = import_module("distributed")
    except ImportError as fault:
        message = "--dask needs dask.distributed: pip install 'onnxmem[dask]'"
        raise UsageError(message) from fault
    try:
        client = distributed.Client(address, timeout=_TIMEOUT, set_as_default=False)
    except (OSError, ValueError) as fault:
        reason = " ".join(str(fault).split())
        message = f"--dask {shortened(address)}: no scheduler answers: {shortened(reason)}"
        raise UsageError(message) from fault
    with client:
        yield client.get_executor(pure=False, retries=_RETRIES)


def _submitted(executor: Executor, task: Task) -> Future[Outcome] | Outcome:
    try:
        return executor.submit(work, task.elsewhere())
    except BrokenExecutor as fault:
        return worker_died(task, str(fault))


def _is_done(future: Future[Outcome] | Outcome) -> bool:
    return not isinstance(future, Future) or future.done()


def _outcome(task: Task, future: Future[Outcome] | Outcome) -> Outcome:
    if not isinstance(future, Future):
        return future
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - whatever an executor raises is this model's alone
        if isinstance(error, BrokenExecutor) or type(error).__name__ in _DEAD_WORKERS:
            return worker_died(task, str(error))
        return task.failed(fault_of(error), error)
