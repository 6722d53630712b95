"""Worker processes of this machine: one that dies costs the model that it was at, no other.

``ProcessPoolExecutor`` breaks as a whole when one of its processes is killed, and does not tell
which task did it; here every worker has its own pipe and one task at a time.
"""

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from multiprocessing.connection import Connection, Pipe, wait
from typing import Final

from onnxmem.children.running import fault_of_end
from onnxmem.collection.order import died, given_up
from onnxmem.collection.processes import Starter, starter
from onnxmem.collection.task import Outcome, Task, work
from onnxmem.errors import EXIT_INTERNAL, OnnxmemError

_WINDOW: Final = 64
"""Tasks for each worker that may be ahead of the outcome that is due."""
_WORN_BYTES: Final = 2**30
"""A worker that holds more is replaced; a fresh one holds a tenth."""
_MAX_FAILED_STARTS: Final = 3
"""One after another."""
_PATIENCE_SECONDS: Final = 5.0


class WorkersError(OnnxmemError):
    """No worker process can be started."""

    code = "workers"
    exit_code = EXIT_INTERNAL


def run_in_workers(
    tasks: Iterable[Task], jobs: int, limit_seconds: float | None = None
) -> Generator[Outcome, None, None]:
    """Outcomes in the order of the tasks; an early end kills the workers.

    A model that takes longer than the limit is given up with its worker.

    :raises WorkersError: none can be started.
    """
    crew = _Crew(jobs, limit_seconds)
    try:
        yield from crew.outcomes(tasks)
        crew.dismiss()
    finally:
        crew.kill()


def serve(connection: Connection) -> None:
    """A worker's life: a task in, its outcome out, until there is none or the parent is gone."""
    with contextlib.suppress(EOFError, OSError):
        connection.send(None)
        while (task := connection.recv()) is not None:
            outcome = work(task)
            connection.send((outcome, _held_bytes() > _WORN_BYTES))


class _Worker:
    """A process and its pipe; it has at most one task."""

    def __init__(self, processes: Starter) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            self.process = processes.start(theirs)
        self.is_ready = False
        self.number: int | None = None
        self.task: Task | None = None
        self.began_seconds = 0.0

    def give(self, number: int, task: Task) -> None:
        self.number, self.task = number, task
        self.began_seconds = time.monotonic()
        # One that is dead by now is found so when its answer is read.
        with contextlib.suppress(OSError):
            self.connection.send(task.elsewhere())

    def how_it_ended(self) -> str:
        exit_code = self.process.wait(_PATIENCE_SECONDS)
        self.kill()
        return "no exit code" if exit_code is None else fault_of_end(exit_code, "").message

    def dismiss(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.send(None)
        self.process.wait(_PATIENCE_SECONDS)
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.connection.close()


class _Crew:
    """Mutable: who is at work, and what has come out of order."""

    def __init__(self, jobs: int, limit_seconds: float | None = None) -> None:
        self._jobs = jobs
        self._limit_seconds = limit_seconds
        self._processes = starter()
        self._workers: list[_Worker] = []
        self._done: dict[int, Outcome] = {}
        self._failed_starts = 0

    def outcomes(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        numbered = enumerate(tasks)
        upcoming = deque(islice(numbered, self._jobs))
        due = 0
        while upcoming or self._num_busy():
            self._start(self._num_busy() + len(upcoming))
            for worker in self._idle():
                if worker.connection.poll():
                    # An idle one has nothing to say: its end is what there is to read.
                    self._workers.remove(worker)
                    self._bury(worker)
                elif upcoming and upcoming[0][0] < due + _WINDOW * self._jobs:
                    worker.give(*upcoming.popleft())
                    upcoming.extend(islice(numbered, 1))
            self._listen()
            while due in self._done:
                yield self._done.pop(due)
                due += 1

    def dismiss(self) -> None:
        """Let workers end by themselves."""
        while self._workers:
            self._workers.pop().dismiss()

    def kill(self) -> None:
        while self._workers:
            self._workers.pop().kill()
        self._processes.close()

    def _num_busy(self) -> int:
        return sum(worker.number is not None for worker in self._workers)

    def _idle(self) -> list[_Worker]:
        return [each for each in self._workers if each.is_ready and each.number is None]

    def _start(self, num_wanted: int) -> None:
        while len(self._workers) < min(self._jobs, num_wanted):
            self._workers.append(_Worker(self._processes))

    def _listen(self) -> None:
        """Wait until some worker says something, or is gone; idle ones are listened to as well."""
        if len(self._idle()) == len(self._workers):
            return
        speaking = wait([worker.connection for worker in self._workers], self._patience_seconds())
        for worker in [each for each in self._workers if each.connection in speaking]:
            try:
                self._hear(worker, worker.connection.recv())
            except (EOFError, OSError):
                self._workers.remove(worker)
                self._bury(worker)
        if self._limit_seconds is not None:
            self._give_up(self._limit_seconds)

    def _patience_seconds(self) -> float | None:
        """How long no worker can have passed the limit; ``None``: there is none to pass."""
        began = [each.began_seconds for each in self._workers if each.number is not None]
        if self._limit_seconds is None or not began:
            return None
        return max(min(began) + self._limit_seconds - time.monotonic(), 0)

    def _give_up(self, limit_seconds: float) -> None:
        """Kill the workers that are at a model for longer than that; others take their place."""
        latest = time.monotonic() - limit_seconds
        for worker in [each for each in self._workers if each.number is not None]:
            if worker.began_seconds <= latest and worker.number is not None and worker.task:
                self._done[worker.number] = given_up(worker.task, limit_seconds)
                self._workers.remove(worker)
                worker.kill()

    def _hear(self, worker: _Worker, said: tuple[Outcome, bool] | None) -> None:
        if said is None:
            worker.is_ready, self._failed_starts = True, 0
            return
        outcome, is_worn = said
        if worker.number is not None:
            self._done[worker.number] = outcome
        worker.number = worker.task = None
        if is_worn:
            self._workers.remove(worker)
            worker.dismiss()

    def _bury(self, worker: _Worker) -> None:
        how = worker.how_it_ended()
        if worker.number is not None and worker.task is not None:
            self._done[worker.number] = died(worker.task, how)
        elif not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts >= _MAX_FAILED_STARTS:
                message = f"no worker process can be started ({how}); --jobs 1 does without"
                raise WorkersError(message)


def _held_bytes() -> int:
    """What this process holds now; 0 where the system does not say."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - at every task
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
