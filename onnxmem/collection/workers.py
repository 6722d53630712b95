"""Worker processes on this machine; if one dies, only the model that it analyzed is lost.

``ProcessPoolExecutor`` fails as a whole if one of its processes is killed, and does not report
which task it had. Here every worker has a pipe of its own and one task at a time.

Workers import nothing from the current folder, which may be full of downloaded files. So only the
pipes of ``multiprocessing`` are used: its fork server, its resource tracker and its spawned
processes are started with ``python -c``, which searches the current folder first, with the flags of
the parent (``subprocess.py``, ``_args_from_interpreter_flags``). It also runs the main module of
the parent again in each child.

If the system has ``fork``, workers are forked from a server that has imported everything: after the
first, one starts in milliseconds, and they share memory pages. Otherwise each worker imports it.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from multiprocessing.connection import Connection, Pipe, wait
from typing import Final, NoReturn, Protocol

from onnxmem.children.running import fault_of_end
from onnxmem.children.safe_path import safe_path
from onnxmem.collection.cache import RunResults
from onnxmem.collection.task import Outcome, Task, timed_out, work, worker_died
from onnxmem.errors import EXIT_UNANALYZED, OnnxmemError
from onnxmem.files import is_temporary_folder, reason_of, temporary_folder

_START: Final = """\
import sys
sys.path[:] = sys.argv[2:]
import gc, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
gc.set_threshold(100_000)
from onnxmem.collection import workers
gc.freeze()
"""
"""Isolated Python (-I) has only the standard library and installed packages on its path. The path
of the parent is set before the first other import, so that both import the same versions. Ctrl-C
reaches every process of the terminal, so workers ignore it and the parent ends them. The garbage
collector is configured as ``onnxmem.cli`` does."""
_FORK_SERVER: Final = f"{_START}workers.fork_on_request(int(sys.argv[1]), workers.serve)\n"
_WORKER: Final = f"{_START}workers.serve(workers.inherited(int(sys.argv[1])))\n"
_PATIENCE_SECONDS: Final = 5.0
"""How long to wait for the end of a killed process."""
_BLOCK_BYTES: Final = 2**12
_WINDOW: Final = 64
"""Tasks per worker that may be ahead of the next outcome."""
_WORN_BYTES: Final = 2**30
"""A worker with more resident memory is replaced; a new one has a tenth of it."""
_MAX_FAILED_STARTS: Final = 3
"""Consecutive failures to start a worker before the run fails."""


class WorkersError(OnnxmemError):
    """No worker process can be started."""

    code = "workers"
    exit_code = EXIT_UNANALYZED


def _not_started(how: str) -> WorkersError:
    return WorkersError(f"no worker process can be started ({how}); use --jobs 1")


def run_in_workers(
    tasks: Iterable[Task], jobs: int, limit_seconds: float | None = None
) -> Generator[Outcome, None, None]:
    """Outcomes in the order of the tasks; closing the generator kills the workers.

    A model that takes longer than the limit is skipped, and its worker is killed.

    :raises WorkersError: no worker can be started.
    """
    with temporary_folder() as folder:
        pool = _WorkerPool(jobs, folder, limit_seconds)
        try:
            yield from pool.outcomes(tasks)
            pool.dismiss()
        finally:
            pool.kill()


def serve(connection: Connection) -> None:
    """The loop of a worker: receive a task, send its outcome, until the parent ends it."""
    with contextlib.suppress(OSError):
        tempfile.tempdir = _own_folder(tempfile.gettempdir(), os.getpid())
        os.mkdir(tempfile.tempdir)
    results = RunResults()
    with contextlib.suppress(EOFError, OSError):
        connection.send(None)
        while (task := connection.recv()) is not None:
            outcome = work(task, run_results=results)
            connection.send((outcome, _resident_bytes() > _WORN_BYTES))


class WorkerProcess(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int | None:
        """``None`` if it does not run yet."""

    def wait(self, seconds: float) -> int | None:
        """Wait for its end; returns the exit code, or ``None`` after a timeout."""

    def kill(self) -> None:
        """Kill it, if it still runs."""


class Starter(Protocol):
    """Starts worker processes."""

    def start(self, connection: Connection) -> WorkerProcess:
        """Start a process that serves this end of a pipe; the caller closes its own copy."""

    def close(self) -> None:
        """End any helper process."""


class _Worker:
    """A worker process with its pipe and its task, if it has one."""

    def __init__(self, processes: Starter, folder: str) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            self.process = processes.start(theirs)
        self._folder = folder
        self.is_ready = False
        self.number: int | None = None
        self.task: Task | None = None
        self.began_seconds = 0.0

    def assign(self, number: int, task: Task) -> None:
        self.number, self.task = number, task
        self.began_seconds = time.monotonic()
        # A worker that has died by now is noticed when its reply is read.
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
        """End the process and remove its temporary files, which it cannot if it is killed."""
        pid = self.process.pid
        self.process.kill()
        self.connection.close()
        if pid is not None:
            shutil.rmtree(_own_folder(self._folder, pid), ignore_errors=True)


class _WorkerPool:
    """The workers, and the outcomes that arrived out of order; mutable."""

    def __init__(self, jobs: int, folder: str, limit_seconds: float | None = None) -> None:
        self._jobs = jobs
        self._limit_seconds = limit_seconds
        self._folder = folder
        self._processes = starter(folder)
        self._workers: list[_Worker] = []
        self._done: dict[int, Outcome] = {}
        self._failed_starts = 0

    def outcomes(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        # ``due`` is the number of the next outcome to yield. Every task before it is done, and no
        # task is started more than the window after it, so ``_done`` stays small even if the model
        # that is due takes hours. Every assigned task ends up in ``_done``: with its outcome, as
        # timed out, or as that of a dead worker; so the loop ends.
        numbered = enumerate(tasks)
        upcoming = deque(islice(numbered, self._jobs))
        due = 0
        while upcoming or self._num_busy():
            self._start(self._num_busy() + len(upcoming))
            for worker in self._idle():
                if worker.connection.poll():
                    # An idle worker sends nothing, so what can be read is the end of its pipe. Had
                    # it got a task, a healthy model would be reported as the cause of its death.
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
        """Let the workers end by themselves."""
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
            try:
                self._workers.append(_Worker(self._processes, self._folder))
            except OSError as fault:
                raise _not_started(reason_of(fault)) from fault

    def _wait(self) -> None:
        """Wait until a worker sends something or dies, or until one exceeds the time limit."""
        # If all are idle, none will ever send anything: waiting would not end.
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
        """The time until the first worker exceeds the limit; ``None`` if none can."""
        began = [each.began_seconds for each in self._workers if each.number is not None]
        if self._limit_seconds is None or not began:
            return None
        return max(min(began) + self._limit_seconds - time.monotonic(), 0)

    def _kill_overdue(self, limit_seconds: float) -> None:
        """Kill workers that have exceeded the time limit; ``_start`` replaces them."""
        # The limit counts from the assignment. A reply that has arrived by now was received before,
        # so a worker that is still busy here has not answered in time.
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
                raise _not_started(how)


def _resident_bytes() -> int:
    """Resident memory of this process; 0 if the system does not report it."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def starter(folder: str) -> Starter:
    """The fastest way to start workers on this system; their temporary files go to the folder."""
    has_fork = hasattr(os, "fork") and hasattr(socket, "send_fds")
    return _ForkServer(folder) if has_fork else _Spawner(folder)


class _ForkServer:
    """Starts workers by requests to a process that forks itself.

    A request is one byte and two descriptors: the pipe of the worker, and a pipe on which the
    server reports its pid and later its exit code.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, connection: Connection) -> "_ForkedProcess":
        ours, theirs = Pipe(duplex=False)
        with theirs:
            descriptors = [connection.fileno(), theirs.fileno()]
            # A server that was killed is replaced, once for each request: workers that it started
            # go on, and nothing but their exit codes is lost.
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
                self._process = _isolated(_FORK_SERVER, theirs.fileno(), self._folder)
        return self._control


class _ForkedProcess:
    """A child of the server, which reports its pid and later its exit code."""

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
            while len(self._reported) < 2 and self._reports.poll(max(stop - time.monotonic(), 0)):  # noqa: PLR2004 - the process's number, and its exit code
                self._reported.append(int(self._reports.recv_bytes()))
        return dict(enumerate(self._reported)).get(1)

    def kill(self) -> None:
        # If it is not forked yet, it will find the other end of its pipe closed, and end.
        if self.pid is not None and self.wait(0) is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.wait(_PATIENCE_SECONDS)
        self._reports.close()


class _Spawner:
    """Starts each worker as a new Python process."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def start(self, connection: Connection) -> "_SpawnedProcess":
        return _SpawnedProcess(_isolated(_WORKER, connection.fileno(), self._folder))

    def close(self) -> None:
        """There is no helper process to end."""


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


def _own_folder(folder: str, pid: int) -> str:
    """A worker's folder of temporary files, in that of its pool."""
    return os.path.join(folder, f"worker-{pid}")


def _isolated(program: str, descriptor: int, folder: str) -> subprocess.Popen[bytes]:
    """Run a program in a Python that inherits one descriptor (on Windows a handle).

    Its temporary files, and those of what it starts, are in the folder.
    """
    variables = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), folder)
    flags = ["-I", "-X", f"utf8={sys.flags.utf8_mode}", *["-B"] * sys.dont_write_bytecode]
    words = [sys.executable, *flags, "-c", program, str(descriptor), *safe_path()]
    if sys.platform == "win32":
        os.set_handle_inheritable(descriptor, True)  # noqa: FBT003 - takes no keywords
        start = subprocess.STARTUPINFO(lpAttributeList={"handle_list": [descriptor]})
        return subprocess.Popen(  # noqa: S603 - this interpreter with a program from above
            words, stdin=subprocess.DEVNULL, env=variables, startupinfo=start
        )
    return subprocess.Popen(  # noqa: S603 - this interpreter with a program from above
        words, stdin=subprocess.DEVNULL, env=variables, pass_fds=(descriptor,)
    )


def inherited(descriptor: int) -> Connection:
    """The end of the pipe that this process has inherited."""
    if sys.platform == "win32":
        from multiprocessing.connection import PipeConnection

        return PipeConnection(descriptor)
    return Connection(descriptor)


def fork_on_request(descriptor: int, serve: Callable[[Connection], None]) -> NoReturn:
    """The loop of the fork server: fork a worker for each request, until the parent has ended."""
    # The self-pipe trick: a signal writes to ``wakes``, so that one ``wait`` sees requests and ends
    # of children alike. A plain ``waitpid`` would block requests, and polling would cost time.
    woken, wakes = socket.socketpair()
    wakes.settimeout(0)  # A wakeup descriptor must not block.
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    # Python writes to the descriptor only for signals that have a handler in Python.
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
                _end_workers(reports)
            connection, report = (Connection(each) for each in descriptors)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                # A pipe is seen as closed only if every copy of its end is closed, so the child
                # must not inherit the ends that belong to the server and to other workers.
                for end in (control, woken, wakes):
                    end.close()
                for each in (report, *reports.values()):
                    each.close()
                _end_after(serve, connection)
            connection.close()
            reports[pid] = report
            _report(report, pid)


def _end_workers(pids: Iterable[int]) -> NoReturn:
    """The parent is gone: end what it started, and remove what is left of it."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # Not ``gettempdir``, which is the folder of all programs where this one is gone.
    folder = os.environ.get("TMPDIR", "")
    if is_temporary_folder(folder):
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _end_after(serve: Callable[[Connection], None], connection: Connection) -> NoReturn:
    """Serve, and exit without running the clean-up of the server, whatever is raised."""
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
    """Report the exit codes of all children that have ended."""
    # Several children that end at once may raise one signal, hence the loop.
    while reports:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with reports.pop(pid) as report:
            _report(report, os.waitstatus_to_exitcode(status))


def _report(report: Connection, number: int) -> None:
    with contextlib.suppress(OSError):  # The parent has ended, or has dropped the worker.
        report.send_bytes(str(number).encode())
