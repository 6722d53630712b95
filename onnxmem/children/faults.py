"""Why a child did not answer: what it says itself, and what its end tells."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from onnxmem.children.wire import JSON, in_one_line

Kind: TypeAlias = Literal["crash", "timeout", "memory", "error", "missing"]

_OUT_OF_MEMORY: Final = ("bad_alloc", "bad allocation", "failed to allocate", "cannot allocate")
"""What allocators of C++, onnxruntime (``bfc_arena.cc``) and the C library say, lower case."""


@dataclass(frozen=True, slots=True)
class ChildFault:
    """The end of a child that gave no result."""

    kind: Kind
    """``missing``: a module that the work needs is not installed; ``error``: the work refused."""
    message: str
    """One line."""


def fault_of(raised: Mapping[str, JSON]) -> ChildFault:
    """Name what the child's own code raised, as ``serving.answer`` reports it."""
    kind, text, missing = str(raised["raised"]), str(raised["text"]), raised["missing"]
    if missing is not None:
        return ChildFault("missing", str(missing))
    if raised["is_memory"] or speaks_of_memory(text):
        return ChildFault("memory", in_one_line(text) or "the memory does not suffice")
    return ChildFault("error", in_one_line(f"{kind}: {text}" if text else kind))


def fault_of_end(exit_code: int, stderr: str) -> ChildFault:
    """Name an end without an answer, from its exit code (negative: a signal) and last words."""
    last = in_one_line(next((x for x in reversed(stderr.splitlines()) if x.strip()), ""))
    how = f"exit code {exit_code}" if exit_code >= 0 else _signal_name(-exit_code)
    if speaks_of_memory(stderr):
        return ChildFault("memory", f"{how}: {last}")
    if how == "SIGKILL":
        return ChildFault("memory", "SIGKILL, which the kernel sends where memory runs out")
    if how in {"SIGALRM", "SIGXCPU"}:
        return ChildFault("timeout", f"{how}: the time is over")
    return ChildFault("crash", f"{how}: {last}" if last else how)


def speaks_of_memory(text: str) -> bool:
    """Whether a message is that of an allocation that failed."""
    lower = text.lower()
    return any(words in lower for words in _OUT_OF_MEMORY)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
