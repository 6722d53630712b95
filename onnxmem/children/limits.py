"""What a child may take; set by the child itself before it does anything else."""

import math
import os
import signal
import sys
from dataclasses import dataclass
from typing import Final

if sys.platform != "win32":
    import resource

_GRACE_SECONDS: Final = 10
"""After its time a child whose parent is gone ends itself."""

_MAX_OPEN_FILES: Final = 1024


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """Limits of one child; ``None`` sets none. Where the system knows no such limit, none is set.

    Every platform keeps the time.
    """

    seconds: float = 300.0
    """From start to answer."""
    memory_bytes: int | None = None
    """Of address space (``RLIMIT_AS``): reserved and mapped bytes count, touched or not."""
    file_bytes: int | None = None
    """Of the largest file that the child may write."""


def apply_limits(limits: ChildLimits) -> None:
    """Put this process under its limits; they are never above those that it has."""
    if sys.platform == "win32":
        return
    # A wall clock of its own, which ends native code too: the parent may have been killed.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limits.seconds + _GRACE_SECONDS)
    processor_seconds = math.ceil(limits.seconds + _GRACE_SECONDS) * (os.cpu_count() or 1)
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _MAX_OPEN_FILES),
        (resource.RLIMIT_CPU, processor_seconds),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_AS, limits.memory_bytes),
    ):
        if most is not None:
            _lower(kind, most)


def _lower(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (value, value))
