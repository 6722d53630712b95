"""The parent's side: start a child, wait for its answer, leave nothing of it behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Thread
from typing import IO, Final

from onnxmem.children.faults import ChildFault, fault_of, fault_of_end
from onnxmem.children.limits import ChildLimits
from onnxmem.children.safe_path import HOME
from onnxmem.children.wire import JSON, MAX_REPLY_BYTES

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


def run_in_child(
    function: str,
    arguments: Mapping[str, JSON],
    limits: ChildLimits | None = None,
    uninitialized: Sequence[str] = (),
) -> dict[str, JSON] | ChildFault:
    """What ``function(**arguments)`` gives in a fresh process: a JSON object, or why there is none.

    ``function`` is ``package.module:name``. The child works in an empty folder of its own, which is
    also its home and its place for temporary files, and which is removed with all that is in it.
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
            return _Talk(process).answer(json.dumps(request), limits.seconds)
        finally:
            _end(process)


def _started(folder: str) -> subprocess.Popen[bytes]:
    places = dict.fromkeys(("HOME", "TMPDIR", "TEMP", "TMP"), folder)
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return subprocess.Popen(  # noqa: S603 - this interpreter with the program above
        [sys.executable, "-I", "-c", _START, _SERVING, HOME],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        # One thread for numpy: the stacks of its pool would count as the model's.
        env={"PATH": os.defpath, "OPENBLAS_NUM_THREADS": "1", **places, **kept},
        start_new_session=True,
    )


@dataclass(slots=True)
class _Talk:
    """Mutable: what the child has said so far. Both pipes are read at once, or one would fill."""

    process: subprocess.Popen[bytes]
    reply: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)

    def answer(self, request: str, seconds: float) -> dict[str, JSON] | ChildFault:
        stop = time.monotonic() + seconds
        threads = [
            Thread(target=work, args=arguments, daemon=True)
            for work, arguments in (
                (self._ask, (self.process.stdin, request.encode() + b"\n")),
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
        return self._understood()

    @staticmethod
    def _ask(stdin: IO[bytes], request: bytes) -> None:
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

    def _understood(self) -> dict[str, JSON] | ChildFault:
        if len(self.reply) > MAX_REPLY_BYTES:
            return ChildFault("error", f"an answer of more than {MAX_REPLY_BYTES:,} bytes")
        try:
            answer = json.loads(bytes(self.reply))
        except ValueError:
            return fault_of_end(self.process.returncode, self.stderr.decode(errors="replace"))
        if "result" in answer:
            result: dict[str, JSON] = answer["result"]
            return result
        return fault_of(answer)


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
