"""Runs a function in a child process and waits for its reply; nothing of the child remains.

Parent and child exchange one JSON object each way. A child without a result becomes a
``ChildFault``, classified by the exception that its code raised, else by its exit code and its last
line on stderr.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import IO, Final, Literal, TypeAlias

from onnxmem.children.safe_path import HOME
from onnxmem.files import temporary_folder, text_or_empty

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
"""A value that JSON can represent; tuples arrive as lists."""

Kind: TypeAlias = Literal["crash", "timeout", "memory", "error", "missing"]

_START: Final = """\
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("serving", sys.argv[1])
serving = module_from_spec(spec)
spec.loader.exec_module(serving)
serving.serve(sys.argv[2])
"""
"""Isolated Python (-I) ignores PYTHONPATH and the working folder, so that no file there can shadow
a module. ``serving`` and the folder that contains this package are passed as paths. No compiled
modules are written (-B): under a limit on file sizes Python truncates them."""

_SERVING: Final = str(Path(__file__).resolve().with_name("serving.py"))

_INHERITED_VARIABLES: Final = (
    *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT"),  # paths of shared libraries
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
)
"""No other variable is inherited: some make a library load a file."""

_TAIL_BYTES: Final = 2**16
"""Of stderr that is kept: its last line is used."""
_BLOCK_BYTES: Final = 2**16
_PATIENCE_SECONDS: Final = 5.0
"""For the pipes to close after the child has ended."""
MAX_REPLY_BYTES: Final = 256 * 2**20
"""Of a reply: one row per node of a model of a million nodes is smaller."""

LONGEST_MESSAGE: Final = 1000
"""Characters of a message; a longer one is cut in the middle."""

_RAISED: Final = frozenset({"raised", "text", "missing", "is_memory"})
"""What a reply has that reports an exception."""
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
    """Limits of one child; ``None``: no limit.

    The time limit works on every platform, the others only on those that support them.
    """

    seconds: float = 300.0
    """From start to reply."""
    memory_bytes: int | None = None
    """Of address space (``RLIMIT_AS``): reserved and mapped bytes count, resident or not."""
    file_bytes: int | None = None
    """Of the largest file that the child may write."""


@dataclass(frozen=True, slots=True)
class ChildFault:
    """How a child without a result ended."""

    kind: Kind
    """``missing``: a required module is not installed; ``error``: the function raised."""
    message: str
    """One line."""


def run_in_child(
    function: str,
    arguments: Mapping[str, JSON],
    limits: ChildLimits | None = None,
    uninitialized: Sequence[str] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, JSON] | ChildFault:
    """Call ``function(**arguments)`` in a new process; returns its JSON object or a fault.

    ``function`` is ``package.module:name``. The child's working folder, home and temporary folder
    is an empty folder of its own, which is removed afterwards. The child ends with this call, also
    if the call is interrupted, and with its parent.

    The packages in ``uninitialized``, outer ones first, can be imported in the child without
    running their ``__init__.py``: a child whose memory is measured should import nothing else.
    ``variables`` are set in its environment.
    """
    limits = limits or ChildLimits()
    request = {
        "function": function,
        "arguments": arguments,
        "limits": asdict(limits),
        "uninitialized": uninitialized,
    }
    with temporary_folder() as folder:
        try:
            process = _started(folder, variables)
        except OSError as fault:
            return ChildFault("error", f"no process can be started: {fault.strerror}")
        try:
            return _Exchange(process).reply_within(json.dumps(request), limits.seconds)
        finally:
            _end(process)


def available_bytes() -> int | None:
    """What a child may take at most: the machine's free memory, or its container's limit.

    ``None``: unknown. What other processes of the container take is left out here, since a limit on
    address space that is too low ends a child that needs less; ``measuring.machine`` counts it.
    """
    known = [size for size in (_machine_bytes(), *map(_group_bytes, _GROUP_LIMITS)) if size]
    return min(known, default=None)


def _machine_bytes() -> int | None:
    lines = text_or_empty(_MEMINFO).splitlines()
    entry = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return int(entry.split()[1]) * _KIB if entry else None


def _group_bytes(path: Path) -> int | None:
    text = text_or_empty(path).strip()
    return int(text) if text.isdigit() else None


def fault_of(raised: Mapping[str, JSON]) -> ChildFault:
    """Classify an exception in the child, as reported by ``serving.reply_to``."""
    kind, text, missing = str(raised["raised"]), str(raised["text"]), raised["missing"]
    if missing is not None:
        return ChildFault("missing", str(missing))
    if raised["is_memory"] or is_out_of_memory(text):
        return ChildFault("memory", in_one_line(text) or "out of memory")
    return ChildFault("error", in_one_line(f"{kind}: {text}" if text else kind))


def fault_of_end(exit_code: int, stderr: str) -> ChildFault:
    """Classify an exit without a reply, by exit code (negative: a signal) and stderr."""
    last = in_one_line(next((x for x in reversed(stderr.splitlines()) if x.strip()), ""))
    how = f"exit code {exit_code}" if exit_code >= 0 else _signal_name(-exit_code)
    # What a child says last is surer than its signal: an allocator's message before an abort is of
    # memory.
    if is_out_of_memory(stderr):
        return ChildFault("memory", f"{how}: {last}")
    if how == "SIGKILL":
        return ChildFault("memory", "SIGKILL, which the kernel sends when memory runs out")
    if how in {"SIGALRM", "SIGXCPU"}:
        return ChildFault("timeout", f"{how}: out of time")
    return ChildFault("crash", f"{how}: {last}" if last else how)


def is_out_of_memory(text: str) -> bool:
    """Whether a message reports a failed allocation."""
    lower = text.lower()
    return any(words in lower for words in _OUT_OF_MEMORY)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def in_one_line(text: str) -> str:
    """A message without colors and line breaks; the middle of a very long one is omitted."""
    words = " ".join(_COLORS.sub("", text).split())
    if len(words) <= LONGEST_MESSAGE:
        return words
    end = LONGEST_MESSAGE // 2 - 2
    return f"{words[:end]}...{words[-end:]}"


def _started(folder: str, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    folders = dict.fromkeys(("HOME", "TMPDIR", "TEMP", "TMP"), folder)
    inherited = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    return subprocess.Popen(  # noqa: S603 - this interpreter with the program above
        [sys.executable, "-I", "-B", "-c", _START, _SERVING, HOME],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        # One thread for numpy: the stacks of its thread pool would count as the model's memory.
        env={"PATH": os.defpath, "OPENBLAS_NUM_THREADS": "1", **folders, **inherited, **variables},
        start_new_session=True,
    )


@dataclass(slots=True)
class _Exchange:
    """Mutable: the output of the child so far.

    Both pipes are read concurrently: if the parent waited for one, a child that fills the other
    would block forever.
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
            return ChildFault("timeout", f"not finished within {seconds:g} s")
        # Processes that the child started may keep the pipes open.
        _kill_group(self.process)
        for thread in threads:
            thread.join(_PATIENCE_SECONDS)
        return self._result()

    @staticmethod
    def _send(stdin: IO[bytes], request: bytes) -> None:
        # The pipe stays open: the child ends when it is closed, which is when the parent ends.
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
            return ChildFault("error", f"a reply of more than {MAX_REPLY_BYTES:,} bytes")
        try:
            reply = json.loads(bytes(self.reply))
        except (ValueError, RecursionError):
            reply = None
        # Native code that went astray may have written anything to any descriptor.
        if isinstance(reply, dict):
            if isinstance(result := reply.get("result"), dict):
                return result
            if reply.keys() >= _RAISED:
                return fault_of(reply)
        return fault_of_end(self.process.returncode, self.stderr.decode(errors="replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the child and all processes that it started, and close the pipes."""
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
