"""The child's side: limits first, then one function, then one answer.

Started as ``python -I -c`` with the request on stdin. The answer goes to what was stdout; what the
work itself prints there, native libraries included, goes to stderr.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

from onnxmem.children.faults import fault_of
from onnxmem.children.limits import ChildLimits, apply_limits
from onnxmem.children.wire import JSON


def serve() -> NoReturn:
    """Answer the request on stdin and end, without the teardown of any library."""
    answer_to = os.dup(1)
    os.dup2(2, 1)
    request = sys.stdin.buffer.readline()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with os.fdopen(answer_to, "w", encoding="utf-8") as stream:
        stream.write(answer(request) + "\n")
    os._exit(0)


def answer(request: bytes) -> str:
    """The work's result, or what kept it from one, as JSON; this process is under limits then."""
    try:
        asked = json.loads(request)
        apply_limits(ChildLimits(**asked["limits"]))
        return json.dumps({"result": _result(asked["function"], asked["arguments"])})
    except BaseException as error:  # noqa: BLE001 - the parent is told of every end
        fault = fault_of(error)
        return json.dumps({"kind": fault.kind, "message": fault.message})


def _result(function: str, arguments: dict[str, JSON]) -> dict[str, JSON]:
    module, _, name = function.partition(":")
    work: Callable[..., object] = getattr(import_module(module), name)
    result = work(**arguments)
    if not isinstance(result, dict):
        message = f"{function} answered no JSON object"
        raise TypeError(message)
    return result


def _end_with_parent() -> None:
    """Wait for the end of stdin, which the parent holds open as long as it lives."""
    os.read(0, 1)
    os._exit(1)
