"""Run commands where a file or a stream is not what it should be, in a process of its own.

``python -m hostile.bad_day RESULTS`` reads a JSON list of cases on stdin, and appends a JSON object
for each to RESULTS. A case has ``words``, and may have ``stdin``, the file that is read there;
``vanishing``, a file that goes as it is opened; ``removed``, a folder that goes before the command
works in it; ``removed after``, a folder that it may make; ``file_bytes``, the most that may be
written to a file; ``locked``: it has no rights to what it names; ``growing``, a file that grows
from when it is opened; ``emptied``, a folder whose files go while a result is written; ``killed``:
a signal, and the audit event of a result's file at which it comes, or the bytes of it that are
written before.
"""

import contextlib
import fcntl
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from onnxmem.cli import main

SECONDS: Final = 20
"""Of wall time for a command; one that waits for something has none of its own."""
ADDRESS_BYTES: Final = 3 * 2**30
NOBODY: Final = 65534
_HUNG: Final = 99


class HangError(BaseException):
    """A command did not end."""


def run_all(results: Path) -> None:
    """Run each case."""
    cases: list[dict[str, Any]] = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, _hang)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    faults = _Faults()
    sys.addaudithook(faults.hook)
    with results.open("w") as told:
        for case in cases:
            if (name := case.get("removed")) is not None:
                Path(name).mkdir()
            with faults.of(case):
                told.write(json.dumps(_run(case, faults)) + "\n")
            told.flush()
            shutil.rmtree(case.get("removed after", ""), ignore_errors=True)


def _run(case: dict[str, Any], faults: "_Faults") -> dict[str, object]:
    if case.get("killed"):
        return _killed(case, faults)
    return _of_nobody(case) if case.get("locked") else _one(case)


class _Faults:
    """Mutable: what happens at audit events while a case runs."""

    def __init__(self) -> None:
        self.vanishing: set[str] = set()
        self.growing: str | None = None
        self.emptied: str | None = None
        self.killed: dict[str, Any] = {}

    @contextlib.contextmanager
    def of(self, case: dict[str, Any]) -> Iterator[None]:
        if (name := case.get("vanishing")) is not None:
            _make(name)
            self.vanishing.add(name)
        self.growing, self.emptied = case.get("growing"), case.get("emptied")
        if self.growing is not None:
            _make(self.growing)
        try:
            yield
        finally:
            if case.get("growing") is not None:
                Path(case["growing"]).unlink()
            self.vanishing.clear()
            self.growing = self.emptied = None

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        path = arguments[0] if arguments else None
        if not isinstance(path, str):
            return
        if event == "open":
            for name in [name for name in self.vanishing if _is_at(path, name)]:
                self.vanishing.remove(name)
                _remove(Path(name))
            if self.growing is not None and _is_at(path, self.growing):
                threading.Thread(target=self._grow, args=(self.growing,), daemon=True).start()
        if self.emptied is not None and event in {"open", "os.chmod"}:
            for file in Path(self.emptied).glob("*"):
                file.unlink()
        if self.killed.get("at") == event and path.endswith(".part"):
            os.kill(os.getpid(), self.killed["signal"])

    def _grow(self, name: str) -> None:
        """Faster than it is read: what is not written takes no space on the disk."""
        for num_bytes in range(2**20, 2**38, 2**24):
            with contextlib.suppress(OSError):
                os.truncate(name, num_bytes)
            time.sleep(0.0005)
            if self.growing != name:
                return


def _killed(case: dict[str, Any], faults: _Faults) -> dict[str, object]:
    """Run a case in a process that is killed meanwhile; its code is minus the signal."""
    pid = os.fork()
    if pid == 0:
        faults.killed = case["killed"]
        if (num_bytes := faults.killed.get("bytes")) is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            case["file_bytes"] = num_bytes
        code = _one(case)["code"]
        os._exit(code if isinstance(code, int) else _HUNG)
    status = os.waitpid(pid, 0)[1]
    return {"words": case["words"], "code": os.waitstatus_to_exitcode(status), "err": ""}


def _is_at(path: str, name: str) -> bool:
    """Whether a path is of a file, or of anything in a folder."""
    whole = os.path.abspath(path)
    own = os.path.abspath(name)
    return whole == own or whole.startswith(own + os.sep)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _make(name: str) -> None:
    """A file that is there until it is opened, or a folder until something in it is."""
    if name == "out":
        Path(name).mkdir(exist_ok=True)
    else:
        Path(name).write_text("{}")


def _of_nobody(case: dict[str, Any]) -> dict[str, object]:
    """Run a case without root's rights, to which nothing is locked.

    All that it imports must be there: another case of the same command came before.
    """
    if os.geteuid() != 0:
        return _one(case)
    os.seteuid(NOBODY)
    try:
        return _one(case)
    finally:
        os.seteuid(0)


def _hang(*_: object) -> NoReturn:
    raise HangError


def _one(case: dict[str, Any]) -> dict[str, object]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.monotonic()
    with _pipe() as (out, out_end), _pipe() as (err, err_end):
        with _streams(case.get("stdin", os.devnull), out_end, err_end), _limits(case):
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            try:
                code: int | str = main(case["words"])
            except HangError:
                code = "hang"
            except SystemExit as end:
                code = f"SystemExit {end.code}"
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        return {
            "words": case["words"],
            "code": code,
            "out": _content(out),
            "err": _content(err),
            "seconds": time.monotonic() - start,
            "grown_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before,
        }


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """A pipe that holds what a command writes: a file would be under the limit of files."""
    ends = os.pipe2(os.O_NONBLOCK)
    try:
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 2**20)
        yield ends
    finally:
        for each in ends:
            os.close(each)


def _content(pipe: int) -> str:
    with contextlib.suppress(BlockingIOError):
        return os.read(pipe, 2**20).decode("utf-8", "surrogateescape")
    return ""


@contextlib.contextmanager
def _streams(stdin: str, out: int, err: int) -> Iterator[None]:
    kept = [os.dup(number) for number in range(3)]
    flags = os.O_RDONLY | os.O_NONBLOCK if Path(stdin).is_fifo() else os.O_RDONLY
    given = os.open(stdin, flags)
    before = sys.stdin
    try:
        for number, each in enumerate((given, out, err)):
            os.dup2(each, number)
        os.close(given)
        with open(0, closefd=False) as sys.stdin:
            yield
    finally:
        sys.stdin = before
        sys.stdout.flush()
        sys.stderr.flush()
        for number, each in enumerate(kept):
            os.dup2(each, number)
            os.close(each)


@contextlib.contextmanager
def _limits(case: dict[str, Any]) -> Iterator[None]:
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    here = os.open(".", os.O_RDONLY)
    if (most := case.get("file_bytes")) is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, old[1]))
    if (folder := case.get("removed")) is not None:
        whole = Path(folder).resolve()
        os.chdir(whole)
        shutil.rmtree(whole)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        if folder is not None:
            os.fchdir(here)
        os.close(here)


if __name__ == "__main__":
    run_all(Path(sys.argv[1]))
