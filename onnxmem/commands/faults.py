"""From an exception to a line on stderr and an exit code: the one place that knows."""

import os
import sys
import traceback
from dataclasses import dataclass
from typing import Final

from onnxmem.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_UNANALYSED, OnnxmemError
from onnxmem.escaping import shortened

_LONGEST: Final = 2000
"""Characters of a message, which may name a few long names."""

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


def tell(fault: Fault, error: BaseException | None = None, path: str | None = None) -> int:
    """Write a fault as one line and return its exit code; ``path`` is the model at fault."""
    place = "" if path is None else f"{shortened(path)}: "
    # An internal error says so at the head of its line, where others say their code after the file.
    kind, code = (
        ("internal error", "") if fault.code == "internal" else ("error", f"{fault.code}: ")
    )
    print(f"{kind}: {place}{code}{shortened(fault.message, _LONGEST)}", file=sys.stderr)
    if error is not None and os.environ.get("ONNXMEM_DEBUG"):
        traceback.print_exception(error)
    return fault.exit_code
