"""What a child may take, and how much there is for it, so that nothing else has to die for it.

The child sets its limits itself before it does anything else.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

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
    """From start to answer."""
    memory_bytes: int | None = None
    """Of address space (``RLIMIT_AS``): reserved and mapped bytes count, touched or not."""
    file_bytes: int | None = None
    """Of the largest file that the child may write."""


def available_bytes() -> int | None:
    """What can be had without swapping: of the machine or of the container, the smaller.

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
