"""The child's side: limits first, then one function, then one reply.

``running`` starts isolated Python and loads this file by its path, without the packages that it
lies in: the process carries the standard library's modules below, and what the work imports. The
request is on stdin. The reply goes to what was stdout; what the work itself prints there, native
libraries included, goes to stderr.
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
"""After its time a child whose parent is gone ends itself."""

_MAX_OPEN_FILES: Final = 1024


def serve(home: str) -> NoReturn:
    """Answer the request on stdin and end, without the teardown of any library.

    ``home`` is the folder that holds the package of the work.
    """
    answer_to = os.dup(1)
    os.dup2(2, 1)
    if home not in sys.path:
        # Behind the standard library, whose modules a file of a checkout may be named like.
        packages = (at for at, entry in enumerate(sys.path) if entry.endswith("-packages"))
        sys.path.insert(next(packages, len(sys.path)), home)
    request = sys.stdin.buffer.readline()
    # Not by ``threading``, which would cost the process 150 KiB.
    _thread.start_new_thread(_end_with_parent, ())
    with os.fdopen(answer_to, "w", encoding="utf-8") as stream:
        stream.write(answer(request, home) + "\n")
    os._exit(0)


def answer(request: bytes, home: str = "") -> str:
    """The work's result, or what it raised, as JSON; this process is under limits then."""
    try:
        parsed = json.loads(request)
        _apply_limits(**parsed["limits"])
        _skip_init(parsed["uninitialized"], home)
        return json.dumps({"result": _result(parsed["function"], parsed["arguments"])})
    except BaseException as error:  # noqa: BLE001 - the parent hears of every end
        missing = error.name or str(error) if isinstance(error, ModuleNotFoundError) else None
        raised = {"raised": type(error).__name__, "text": str(error), "missing": missing}
        return json.dumps({**raised, "is_memory": isinstance(error, MemoryError)})


def _result(function: str, arguments: Mapping[str, Any]) -> Mapping[str, object]:
    module, _, name = function.partition(":")
    work: Callable[..., object] = getattr(import_module(module), name)
    result = work(**arguments)
    if not isinstance(result, dict):
        message = f"{function} answered no JSON object"
        raise TypeError(message)
    return result


def _skip_init(packages: Iterable[str], home: str) -> None:
    """Let modules of these packages be imported without running any ``__init__.py``."""
    for name in packages:
        package = ModuleType(name)
        package.__path__ = [os.path.join(home, *name.split("."))]  # noqa: PTH118 - pathlib costs the process 600 KiB
        sys.modules[name] = package


def _apply_limits(
    seconds: float, memory_bytes: int | None = None, file_bytes: int | None = None
) -> None:
    """Put this process under the limits of ``ChildLimits``; they are never above its own."""
    if sys.platform == "win32":
        return
    # A wall clock of its own, which ends native code too: the parent may have been killed.
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
    """Wait for the end of stdin, which the parent holds open as long as it lives."""
    os.read(0, 1)
    os._exit(1)
