"""The parent's side: start a child, wait for its reply, leave nothing of it behind.

Parent and child exchange one JSON object each way. A child that gave no result is a ``ChildFault``:
its kind is read from what the child's code raised, else from its exit code and its last line on
stderr.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Thread
from typing import IO, Final, Literal, TypeAlias

from onnxmem.children.safe_path import HOME

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
"""A value that JSON can write; tuples arrive as lists."""

Kind: TypeAlias = Literal["crash", "timeout", "memory", "error", "missing"]

_START: Final = """\
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("serving", sys.argv[1])
serving = module_from_spec(spec)
spec.loader.exec_module(serving)
serving.serve(sys.argv[2])
"""
"""Isolated Python (-I) looks neither at PYTHONPATH nor at the working folder, so that no file there
can pose as a module; the child's side and the folder that holds this package are given by path."""

_SERVING: Final = str(Path(__file__).resolve().with_name("serving.py"))

_KEPT_VARIABLES: Final = (
    *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT"),  # where shared libraries are found
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
)
"""All other variables stay outside, those that make a library load a file among them."""

_TAIL_BYTES: Final = 2**16
"""Of stderr, whose last line is of use."""
_BLOCK_BYTES: Final = 2**16
_PATIENCE_SECONDS: Final = 5.0
"""For pipes to close once the child is dead."""
MAX_REPLY_BYTES: Final = 256 * 2**20
"""Of a reply: a row for each node of a model of a million nodes is smaller."""

LONGEST_MESSAGE: Final = 1000
"""Characters of a fault's message."""

_COLORS: Final = re.compile(r"\x1b\[[0-9;]*m")
_OUT_OF_MEMORY: Final = ("bad_alloc", "bad allocation", "failed to allocate", "cannot allocate")
"""What allocators of C++, onnxruntime (``bfc_arena.cc``) and the C library say, lower case."""
_MEMINFO: Final = Path("/proc/meminfo")
_GROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """Limits of one child; ``None`` sets none. Where the system knows no such limit, none is set.

    Every platform keeps the time.
    """

    seconds: float = 300.0
    """From start to reply."""
    memory_bytes: int | None = None
    """Of address space (``RLIMIT_AS``): reserved and mapped bytes count, touched or not."""
    file_bytes: int | None = None
    """Of the largest file that the child may write."""


@dataclass(frozen=True, slots=True)
class ChildFault:
    """The end of a child that gave no result."""

    kind: Kind
    """``missing``: a module that the work needs is not installed; ``error``: the work refused."""
    message: str
    """One line."""


def run_in_child(
    function: str,
    arguments: Mapping[str, JSON],
    limits: ChildLimits | None = None,
    uninitialized: Sequence[str] = (),
) -> dict[str, JSON] | ChildFault:
    """What ``function(**arguments)`` gives in a fresh process: a JSON object, or why there is none.

    ``function`` is ``package.module:name``. The child works in an empty folder of its own, which is
    also its home and its folder for temporary files, and which is removed with all that is in it.
    It dies with this call, an interrupted one too, and with its parent.

    The packages in ``uninitialized``, outer ones first, are importable in the child without their
    ``__init__.py`` being run: a child whose own memory is measured carries only what it imports.
    """
    limits = limits or ChildLimits()
    request = {
        "function": function,
        "arguments": arguments,
        "limits": asdict(limits),
        "uninitialized": uninitialized,
    }
    with tempfile.TemporaryDirectory(prefix="onnxmem-", ignore_cleanup_errors=True) as folder:
        process = _started(folder)
        try:
            return _Exchange(process).reply_within(json.dumps(request), limits.seconds)
        finally:
            _end(process)


def available_bytes() -> int | None:
    """Free memory without swapping: of the machine or of its container, the smaller.

    ``None`` where the system does not say.
    """
    known = [size for size in (_machine_bytes(), *map(_group_bytes, _GROUP_LIMITS)) if size]
    return min(known, default=None)


def _machine_bytes() -> int | None:
    lines = _text(_MEMINFO).splitlines()
    entry = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return int(entry.split()[1]) * _KIB if entry else None


def _group_bytes(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def fault_of(raised: Mapping[str, JSON]) -> ChildFault:
    """Classify what the child's own code raised, as ``serving.answer`` reports it."""
    kind, text, missing = str(raised["raised"]), str(raised["text"]), raised["missing"]
    if missing is not None:
        return ChildFault("missing", str(missing))
    if raised["is_memory"] or is_out_of_memory(text):
        return ChildFault("memory", in_one_line(text) or "the memory does not suffice")
    return ChildFault("error", in_one_line(f"{kind}: {text}" if text else kind))


def fault_of_end(exit_code: int, stderr: str) -> ChildFault:
    """Classify an end without a reply, by exit code (negative: a signal) and last line."""
    last = in_one_line(next((x for x in reversed(stderr.splitlines()) if x.strip()), ""))
    how = f"exit code {exit_code}" if exit_code >= 0 else _signal_name(-exit_code)
    if is_out_of_memory(stderr):
        return ChildFault("memory", f"{how}: {last}")
    if how == "SIGKILL":
        return ChildFault("memory", "SIGKILL, which the kernel sends where memory runs out")
    if how in {"SIGALRM", "SIGXCPU"}:
        return ChildFault("timeout", f"{how}: the time is over")
    return ChildFault("crash", f"{how}: {last}" if last else how)


def is_out_of_memory(text: str) -> bool:
    """Whether a message is that of an allocation that failed."""
    lower = text.lower()
    return any(words in lower for words in _OUT_OF_MEMORY)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def in_one_line(text: str) -> str:
    """A message without colors and line breaks, its middle left out where it is very long."""
    words = " ".join(_COLORS.sub("", text).split())
    if len(words) <= LONGEST_MESSAGE:
        return words
    end = LONGEST_MESSAGE // 2 - 2
    return f"{words[:end]}...{words[-end:]}"


def _started(folder: str) -> subprocess.Popen[bytes]:
    folders = dict.fromkeys(("HOME", "TMPDIR", "TEMP", "TMP"), folder)
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return subprocess.Popen(  # noqa: S603 - this interpreter with the program above
        [sys.executable, "-I", "-c", _START, _SERVING, HOME],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        # One thread for numpy: the stacks of its pool would count as the model's.
        env={"PATH": os.defpath, "OPENBLAS_NUM_THREADS": "1", **folders, **kept},
        start_new_session=True,
    )


@dataclass(slots=True)
class _Exchange:
    """Mutable: what came from the child so far.

    Both pipes are read at once: a child that fills one while the parent waits for the other hangs.
    """

    process: subprocess.Popen[bytes]
    reply: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)

    def reply_within(self, request: str, seconds: float) -> dict[str, JSON] | ChildFault:
        stop = time.monotonic() + seconds
        threads = [
            Thread(target=work, args=arguments, daemon=True)
            for work, arguments in (
                (self._send, (self.process.stdin, request.encode() + b"\n")),
                (self._read_reply, (self.process.stdout,)),
                (self._read_stderr, (self.process.stderr,)),
            )
        ]
        for thread in threads:
            thread.start()
        try:
            self.process.wait(max(stop - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            return ChildFault("timeout", f"no end within {seconds:g} s")
        # What the child started itself may hold the pipes open.
        _kill_group(self.process)
        for thread in threads:
            thread.join(_PATIENCE_SECONDS)
        return self._result()

    @staticmethod
    def _send(stdin: IO[bytes], request: bytes) -> None:
        # The pipe stays open: its end tells the child that the parent is gone.
        with contextlib.suppress(OSError):
            stdin.write(request)
            stdin.flush()

    def _read_reply(self, stdout: IO[bytes]) -> None:
        while block := stdout.read(_BLOCK_BYTES):
            self.reply += block
            if len(self.reply) > MAX_REPLY_BYTES:
                _kill_group(self.process)
                return

    def _read_stderr(self, stderr: IO[bytes]) -> None:
        while block := os.read(stderr.fileno(), _BLOCK_BYTES):
            self.stderr = (self.stderr + block)[-_TAIL_BYTES:]

    def _result(self) -> dict[str, JSON] | ChildFault:
        if len(self.reply) > MAX_REPLY_BYTES:
            return ChildFault("error", f"an answer of more than {MAX_REPLY_BYTES:,} bytes")
        try:
            reply = json.loads(bytes(self.reply))
        except ValueError:
            return fault_of_end(self.process.returncode, self.stderr.decode(errors="replace"))
        if "result" in reply:
            result: dict[str, JSON] = reply["result"]
            return result
        return fault_of(reply)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the child with all that it started, and close what leads to it."""
    if process.poll() is None:
        _kill_group(process)
        process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
