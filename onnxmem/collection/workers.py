"""Worker processes of this machine: one that dies costs the model that it worked on, no other.

``ProcessPoolExecutor`` breaks as a whole when one of its processes is killed, and does not say
which task did it; here every worker has its own pipe and one task at a time. Workers import nothing
from the current folder: only the pipes of ``multiprocessing`` are used, for it starts its fork
server, its resource tracker and the processes that it spawns with ``python -c``, which looks for
each module in the current folder first. One caller cannot change that: the flags are those of the
parent (``subprocess.py``, ``_args_from_interpreter_flags``). It also runs the parent's main module
again in each child.

Where the system has ``fork``, workers are forked from a server that has imported what they need: a
start takes milliseconds after the first, and they share those pages. Elsewhere each imports it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from multiprocessing.connection import Connection, Pipe, wait
from typing import Final, NoReturn, Protocol

from onnxmem.children.running import fault_of_end
from onnxmem.children.safe_path import safe_path
from onnxmem.collection.task import Outcome, Task, timed_out, work, worker_died
from onnxmem.errors import EXIT_INTERNAL, OnnxmemError

_START: Final = """\
import sys
sys.path[:] = sys.argv[2:]
import gc, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
gc.set_threshold(1_000_000)
from onnxmem.collection import workers
gc.freeze()
"""
"""Isolated Python (-I) starts with the standard library and installed packages alone; the rest of
the parent's path follows before the first import that needs it, in the parent's order, so that both
import the same versions. An interrupt at the terminal reaches every process; the parent ends its
children. The garbage collector is set as ``onnxmem.cli`` sets that of a command."""
_FORK_SERVER: Final = f"{_START}workers.fork_on_request(int(sys.argv[1]), workers.serve)\n"
_WORKER: Final = f"{_START}workers.serve(workers.inherited(int(sys.argv[1])))\n"
_PATIENCE_SECONDS: Final = 5.0
"""For a killed process to end."""
_BLOCK_BYTES: Final = 2**12
_WINDOW: Final = 64
"""Tasks for each worker that may be ahead of the outcome that is due."""
_WORN_BYTES: Final = 2**30
"""A worker with more resident memory is replaced; a fresh one has a tenth."""
_MAX_FAILED_STARTS: Final = 3
"""One after another."""


class WorkersError(OnnxmemError):
    """No worker process can be started."""

    code = "workers"
    exit_code = EXIT_INTERNAL


def run_in_workers(
    tasks: Iterable[Task], jobs: int, limit_seconds: float | None = None
) -> Generator[Outcome, None, None]:
    """Outcomes in the order of the tasks; an early end kills the workers.

    A model that takes longer than the limit is skipped, and its worker killed.

    :raises WorkersError: none can be started.
    """
    pool = _WorkerPool(jobs, limit_seconds)
    try:
        yield from pool.outcomes(tasks)
        pool.dismiss()
    finally:
        pool.kill()


def serve(connection: Connection) -> None:
    """A worker's life: a task in, its outcome out, until there is none or the parent is gone."""
    with contextlib.suppress(EOFError, OSError):
        connection.send(None)
        while (task := connection.recv()) is not None:
            outcome = work(task)
            connection.send((outcome, _resident_bytes() > _WORN_BYTES))


class WorkerProcess(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int | None:
        """``None``: it is not running yet."""

    def wait(self, seconds: float) -> int | None:
        """Wait for its end; its exit code, or ``None`` if that did not come."""

    def kill(self) -> None:
        """End it, if it has not ended."""


class Starter(Protocol):
    """Starts worker processes."""

    def start(self, connection: Connection) -> WorkerProcess:
        """Start a process that serves at this end of a pipe; the caller closes its own copy."""

    def close(self) -> None:
        """End what the workers were started with."""


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

    def assign(self, number: int, task: Task) -> None:
        self.number, self.task = number, task
        self.began_seconds = time.monotonic()
        # One that is dead by now is found when its reply is read.
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


class _WorkerPool:
    """Mutable: the workers, and outcomes that came out of order."""

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
                    # An idle one sends nothing: all there is to read is its end.
                    self._workers.remove(worker)
                    self._reap(worker)
                elif upcoming and upcoming[0][0] < due + _WINDOW * self._jobs:
                    worker.assign(*upcoming.popleft())
                    upcoming.extend(islice(numbered, 1))
            self._wait()
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

    def _wait(self) -> None:
        """Wait until some worker sends something, or is gone; idle ones are watched as well."""
        if len(self._idle()) == len(self._workers):
            return
        ready = wait([worker.connection for worker in self._workers], self._seconds_to_limit())
        for worker in [each for each in self._workers if each.connection in ready]:
            try:
                self._receive(worker, worker.connection.recv())
            except (EOFError, OSError):
                self._workers.remove(worker)
                self._reap(worker)
        if self._limit_seconds is not None:
            self._kill_overdue(self._limit_seconds)

    def _seconds_to_limit(self) -> float | None:
        """How long no worker can have passed the limit; ``None``: there is none to pass."""
        began = [each.began_seconds for each in self._workers if each.number is not None]
        if self._limit_seconds is None or not began:
            return None
        return max(min(began) + self._limit_seconds - time.monotonic(), 0)

    def _kill_overdue(self, limit_seconds: float) -> None:
        """Kill the workers that took longer than that over a model; others replace them."""
        latest = time.monotonic() - limit_seconds
        for worker in [each for each in self._workers if each.number is not None]:
            if worker.began_seconds <= latest and worker.number is not None and worker.task:
                self._done[worker.number] = timed_out(worker.task, limit_seconds)
                self._workers.remove(worker)
                worker.kill()

    def _receive(self, worker: _Worker, reply: tuple[Outcome, bool] | None) -> None:
        if reply is None:
            worker.is_ready, self._failed_starts = True, 0
            return
        outcome, is_worn = reply
        if worker.number is not None:
            self._done[worker.number] = outcome
        worker.number = worker.task = None
        if is_worn:
            self._workers.remove(worker)
            worker.dismiss()

    def _reap(self, worker: _Worker) -> None:
        how = worker.how_it_ended()
        if worker.number is not None and worker.task is not None:
            self._done[worker.number] = worker_died(worker.task, how)
        elif not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts >= _MAX_FAILED_STARTS:
                message = f"no worker process can be started ({how}); --jobs 1 does without"
                raise WorkersError(message)


def _resident_bytes() -> int:
    """Resident memory of this process; 0 where the system does not say."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - at every task
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def starter() -> Starter:
    """The quickest way that this system has."""
    return _ForkServer() if hasattr(os, "fork") and hasattr(socket, "send_fds") else _Spawner()


class _ForkServer:
    """Starts workers by requests to a process that forks itself; a server that died is replaced.

    A request is one byte and two descriptors: the worker's pipe, and the pipe on which the server
    reports its pid and then its exit code.
    """

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, connection: Connection) -> "_ForkedProcess":
        ours, theirs = Pipe(duplex=False)
        with theirs:
            descriptors = [connection.fileno(), theirs.fileno()]
            try:
                socket.send_fds(self._running(), [b"+"], descriptors)
            except OSError:
                self.close()
                socket.send_fds(self._running(), [b"+"], descriptors)
        return _ForkedProcess(ours)

    def close(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._control = self._process = None

    def _running(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair()
            with theirs:
                self._process = _isolated(_FORK_SERVER, theirs.fileno())
        return self._control


class _ForkedProcess:
    """A child of the server, which reports its pid and then its exit code."""

    def __init__(self, reports: Connection) -> None:
        self._reports = reports
        self._reported: list[int] = []

    @property
    def pid(self) -> int | None:
        self.wait(0)
        return self._reported[0] if self._reported else None

    def wait(self, seconds: float) -> int | None:
        stop = time.monotonic() + seconds
        with contextlib.suppress(EOFError, OSError):  # The server is gone.
            while len(self._reported) < 2 and self._reports.poll(max(stop - time.monotonic(), 0)):  # noqa: PLR2004
                self._reported.append(int(self._reports.recv_bytes()))
        return dict(enumerate(self._reported)).get(1)

    def kill(self) -> None:
        # One that is not forked yet ends by itself: it finds the other end of its pipe closed.
        if self.pid is not None and self.wait(0) is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait(_PATIENCE_SECONDS)
        self._reports.close()


class _Spawner:
    """Starts each worker as a Python of its own."""

    def start(self, connection: Connection) -> "_SpawnedProcess":
        return _SpawnedProcess(_isolated(_WORKER, connection.fileno()))

    def close(self) -> None:
        """There is nothing to end."""


class _SpawnedProcess:
    """A child of this process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def wait(self, seconds: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _isolated(program: str, descriptor: int) -> subprocess.Popen[bytes]:
    """Run a program in a Python that inherits one descriptor (on Windows a handle)."""
    flags = ["-I", "-X", f"utf8={sys.flags.utf8_mode}", *["-B"] * sys.dont_write_bytecode]
    words = [sys.executable, *flags, "-c", program, str(descriptor), *safe_path()]
    if sys.platform == "win32":
        os.set_handle_inheritable(descriptor, True)  # noqa: FBT003 - takes no keywords
        start = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [descriptor]})
        return subprocess.Popen(  # noqa: S603 - this interpreter with a program from above
            words, stdin=subprocess.DEVNULL, startupinfo=start
        )
    return subprocess.Popen(  # noqa: S603 - this interpreter with a program from above
        words, stdin=subprocess.DEVNULL, pass_fds=(descriptor,)
    )


def inherited(descriptor: int) -> Connection:
    """The end of a pipe that this process was started with."""
    if sys.platform == "win32":
        from multiprocessing.connection import PipeConnection

        return PipeConnection(descriptor)
    return Connection(descriptor)


def fork_on_request(descriptor: int, serve: Callable[[Connection], None]) -> NoReturn:
    """Run the server: fork a worker at each request, until nobody is left to make one."""
    woken, wakes = socket.socketpair()
    wakes.settimeout(0)  # A wakeup descriptor must not block.
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    # Without a handler of Python's own nothing is written to the descriptor above.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    control = socket.socket(fileno=descriptor)
    reports: dict[int, Connection] = {}
    while True:
        ready = wait([control, woken])
        if woken in ready:
            woken.recv(_BLOCK_BYTES)
            _report_ended(reports)
        if control in ready:
            request, descriptors, *_ = socket.recv_fds(control, 1, 2)
            if not request:
                os._exit(0)
            connection, report = (Connection(each) for each in descriptors)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                # The ends of other pipes: as long as one is open here, nobody sees them close.
                for end in (control, woken, wakes):
                    end.close()
                for each in (report, *reports.values()):
                    each.close()
                _end_after(serve, connection)
            connection.close()
            reports[pid] = report
            _report(report, pid)


def _end_after(serve: Callable[[Connection], None], connection: Connection) -> NoReturn:
    """Serve, and end without the server's clean-up, whatever is raised."""
    exit_code = 1
    try:
        serve(connection)
        exit_code = 0
    except BaseException:  # noqa: BLE001 - this process ends here
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(exit_code)


def _report_ended(reports: dict[int, Connection]) -> None:
    """Report each worker that has ended; signals come once for several."""
    while reports:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with reports.pop(pid) as report:
            _report(report, os.waitstatus_to_exitcode(status))


def _report(report: Connection, number: int) -> None:
    with contextlib.suppress(OSError):  # The parent is gone, or has given the worker up.
        report.send_bytes(str(number).encode())
