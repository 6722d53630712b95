"""Run tasks on any executor of ``concurrent.futures``, or on a dask cluster.

A module of its own, so that ``concurrent.futures`` is imported only if a caller passes an executor,
and dask only if a cluster is requested.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import closing, contextmanager
from importlib import import_module
from typing import Any, Final

from onnxmem.collection.task import Outcome, Task, work, worker_died
from onnxmem.errors import EXIT_UNANALYZED, Fault, UsageError, fault_of, shortened

WINDOW: Final = 256
"""Tasks submitted ahead of the next outcome: enough that a slow model leaves no worker idle, few
enough that memory stays constant."""
_DEAD_WORKERS: Final = frozenset({"KilledWorker"})
"""The exception of dask.distributed if a worker died at each attempt."""
_LOST: Final = "cluster_lost"
_RETRIES: Final = 2
"""How often a task that raised is repeated; the scheduler repeats one whose worker died itself, up
to ``distributed.scheduler.allowed-failures`` times."""
_TIMEOUT: Final = "10s"
"""The time to connect to the scheduler."""


def run_on(
    executor: Executor, tasks: Iterable[Task], window: int = WINDOW
) -> Generator[Outcome, None, None]:
    """Outcomes in the order of the tasks; closing the generator cancels tasks not yet started.

    An executor that is lost costs each model without an outcome its row, and is one fault.
    """
    is_reported = False
    with closing(_in_order(executor, tasks, window)) as found:
        for outcome in found:
            is_loss = any(fault["code"] == _LOST for fault in outcome["faults"])
            if is_loss and is_reported:
                outcome["faults"].clear()
            is_reported = is_reported or is_loss
            yield outcome


def _in_order(
    executor: Executor, tasks: Iterable[Task], window: int
) -> Generator[Outcome, None, None]:
    # ``waiting`` is in the order of the tasks, so the next outcome is always that of its first. It
    # has fewer than ``window`` tasks, however slow the first one is.
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
    """The executor of a dask cluster, by the address of its scheduler.

    Tasks are not ``pure``: equal ones run twice, because a file may change in between. Workers need
    onnxmem, and the models under the same paths.

    :raises UsageError: dask is not installed, or no scheduler responds.
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
        message = f"--dask {shortened(address)}: no scheduler responds: {shortened(reason)}"
        raise UsageError(message) from fault
    with client:
        yield _Cluster(client)


class ClusterLostError(ConnectionError):
    """No result can come from the cluster any more; the text is its client's."""


class _Cluster(Executor):
    """Tasks on the workers of a dask client.

    Not the client's own ``get_executor``: a future of that one is never done if the scheduler dies
    while the result of a finished task is fetched (``distributed/cfexecutor.py``, 2026.8.0).
    """

    def __init__(self, client: Any) -> None:  # noqa: ANN401 - dask is imported only if requested
        self._client = client

    def submit(self, function: Callable[..., Any], /, *words: Any, **more: Any) -> Future[Any]:  # noqa: ANN401 - as in the base class
        """The result, fetched as soon as it is there, or why the cluster is lost."""
        task = self._client.submit(function, *words, pure=False, retries=_RETRIES, **more)
        loop = self._client.loop.asyncio_loop
        return asyncio.run_coroutine_threadsafe(self._fetched(task), loop)

    async def _fetched(self, task: Any) -> Any:  # noqa: ANN401 - any result
        try:
            return await self._client.gather(task, asynchronous=True)
        except (Exception, asyncio.CancelledError) as error:
            if task.status == "error":  # the task's own error, or that its workers died
                raise
            raise ClusterLostError(str(error)) from error


def _submitted(executor: Executor, task: Task) -> Future[Outcome] | Outcome:
    try:
        return executor.submit(work, task.elsewhere())
    except BrokenExecutor as fault:
        return worker_died(task, str(fault))
    except Exception as error:  # noqa: BLE001 - a client without a scheduler raises what it likes
        return _lost(task, error)


def _lost(task: Task, error: Exception) -> Outcome:
    """The outcome of a model that an executor was lost with."""
    reason = shortened(" ".join(str(error).split())) or type(error).__name__
    message = (
        f"the cluster was lost before this model was done ({reason}); so was each other "
        "model whose row says so; run it again"
    )
    return task.failed(Fault(_LOST, message, EXIT_UNANALYZED))


def _is_done(future: Future[Outcome] | Outcome) -> bool:
    return not isinstance(future, Future) or future.done()


def _outcome(task: Task, future: Future[Outcome] | Outcome) -> Outcome:
    if not isinstance(future, Future):
        return future
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 - an error of an executor fails only this model
        if isinstance(error, BrokenExecutor) or type(error).__name__ in _DEAD_WORKERS:
            return worker_died(task, str(error))
        # Nobody here cancels what is waited for.
        if isinstance(error, CancelledError | ClusterLostError):
            return _lost(task, error)
        return task.failed(fault_of(error), error)
