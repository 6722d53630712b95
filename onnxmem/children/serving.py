"""The child process: applies the limits, calls one function, writes one reply.

``running`` starts isolated Python and loads this file by path, without its packages: the process
imports only the modules below and those of the function. The request is read from stdin, and the
reply goes to the original stdout. Whatever the function prints there, native libraries included,
goes to stderr.
"""

import _thread
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, Final, NoReturn

if sys.platform != "win32":
    import resource

_GRACE_SECONDS: Final = 10
"""A child without a parent ends so long after its time limit."""

_MAX_OPEN_FILES: Final = 1024

_TEMPORARY: Final = "onnxmem-run-"
"""How folders of ``onnxmem.files.temporary_folder`` begin; this process does not import it."""


def serve(home: str) -> NoReturn:
    """Reply to the request on stdin and exit, without the teardown of any library.

    ``home`` is the folder that contains the package of the function.
    """
    reply_to_fd = os.dup(1)
    os.dup2(2, 1)
    if home not in sys.path:
        # After the standard library, so that no file of a checkout shadows its modules.
        packages = (at for at, entry in enumerate(sys.path) if entry.endswith("-packages"))
        sys.path.insert(next(packages, len(sys.path)), home)
    request = sys.stdin.buffer.readline()
    # Not with ``threading``, which would add 150 KiB to the process.
    _thread.start_new_thread(_end_with_parent, ())
    with os.fdopen(reply_to_fd, "w", encoding="utf-8") as stream:
        stream.write(reply_to(request, home) + "\n")
    os._exit(0)


def reply_to(request: bytes, home: str = "") -> str:
    """Call the function under the limits; returns its result or its exception as JSON."""
    try:
        parsed = json.loads(request)
        _apply_limits(**parsed["limits"])
        _skip_init(parsed["uninitialized"], home)
        return json.dumps({"result": _result(parsed["function"], parsed["arguments"])})
    except BaseException as error:  # noqa: BLE001 - the parent reports every failure
        missing = error.name or str(error) if isinstance(error, ModuleNotFoundError) else None
        raised = {"raised": type(error).__name__, "text": str(error), "missing": missing}
        return json.dumps({**raised, "is_memory": isinstance(error, MemoryError)})


def _result(function: str, arguments: Mapping[str, Any]) -> Mapping[str, object]:
    module, _, name = function.partition(":")
    work: Callable[..., object] = getattr(import_module(module), name)
    result = work(**arguments)
    if not isinstance(result, dict):
        message = f"{function} did not return a JSON object"
        raise TypeError(message)
    return result


def _skip_init(packages: Iterable[str], home: str) -> None:
    """Make modules of these packages importable without running any ``__init__.py``."""
    for name in packages:
        package = ModuleType(name)
        package.__path__ = [os.path.join(home, *name.split("."))]
        sys.modules[name] = package


def _apply_limits(seconds: float, memory_bytes: int | None, file_bytes: int | None) -> None:
    """Apply the limits of ``ChildLimits`` to this process, never above its current ones."""
    if sys.platform == "win32":
        return
    # A timer of its own, which interrupts native code too: the parent may have been killed.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + _GRACE_SECONDS)
    processor_seconds = -int(-(seconds + _GRACE_SECONDS) // 1) * (os.cpu_count() or 1)
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _MAX_OPEN_FILES),
        (resource.RLIMIT_CPU, processor_seconds),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_AS, memory_bytes),
    ):
        if most is not None:
            _lower(kind, most)


def _lower(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (value, value))


def _end_with_parent() -> None:
    """Exit when stdin is closed: the parent keeps it open as long as it lives.

    A parent that was killed could not remove the folder of this process.
    """
    os.read(0, 1)
    import shutil

    folder = os.environ["HOME"]
    # Whoever starts this file by hand, or sets HOME in a function, keeps what is there.
    if os.path.basename(folder).startswith(_TEMPORARY):
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
