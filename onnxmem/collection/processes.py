"""Worker processes that import nothing from the current folder.

Only the pipes of ``multiprocessing`` are used. It starts its fork server, its resource tracker and
the processes that it spawns with ``python -c``, which looks for each module in the current folder
first. One caller cannot change that: the flags are those of the parent (``subprocess.py``,
``_args_from_interpreter_flags``). It also runs the parent's main module again in each child.

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
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from typing import Final, NoReturn, Protocol

from onnxmem.children.safe_path import safe_path

_START: Final = """\
import sys
sys.path[:] = sys.argv[2:]
import gc, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
gc.set_threshold(1_000_000)
from onnxmem.collection import processes
from onnxmem.collection.workers import serve
gc.freeze()
"""
"""Isolated Python (-I) starts with the standard library and installed packages alone; the rest of
the parent's path follows before the first import that needs it, in the parent's order, so that both
import the same versions. An interrupt at the terminal reaches every process; the parent ends its
children. The garbage collector is set as ``onnxmem.cli`` sets that of a command."""

_FORK_SERVER: Final = f"{_START}processes.fork_on_request(int(sys.argv[1]), serve)\n"
_WORKER: Final = f"{_START}serve(processes.inherited(int(sys.argv[1])))\n"

_PATIENCE_SECONDS: Final = 5.0
"""For a killed process to end."""
_BLOCK_BYTES: Final = 2**12


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
        """Nothing is kept between starts."""


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
