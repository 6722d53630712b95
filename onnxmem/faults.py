"""From an exception to a code, a line and an exit code: the one place that knows."""

from dataclasses import dataclass
from typing import Final

from onnxmem.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_UNANALYSED, OnnxmemError

_HINT: Final = "please report it; ONNXMEM_DEBUG=1 shows where"


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong, as reports and shells see it."""

    code: str
    message: str
    exit_code: int


def fault_of(error: BaseException) -> Fault:
    """Tell what kind of fault an exception is."""
    if isinstance(error, OnnxmemError):
        return Fault(error.code, str(error), error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return Fault("interrupted", "stopped before the end", EXIT_INTERRUPTED)
    if isinstance(error, MemoryError):
        message = "this machine's memory does not hold the model without its weights"
        return Fault("out_of_memory", message, EXIT_UNANALYSED)
    return Fault("internal", f"{type(error).__name__}: {error}; {_HINT}", EXIT_INTERNAL)
