"""What this process has resident, now and at most; ``None`` where the system does not say.

Linux says it in ``/proc/self``.
"""

from pathlib import Path
from typing import Final

_PROCESS: Final = Path("/proc/self")
_KIB: Final = 1024


def resident_bytes() -> int | None:
    """Resident now: ``VmRSS``."""
    return _status("VmRSS")


def peak_resident_bytes() -> int | None:
    """Resident at most since the start, or since ``restart_peak``: ``VmHWM``."""
    return _status("VmHWM")


def restart_peak() -> bool:
    """Let the peak start anew from what is resident now; false where that cannot be."""
    try:
        (_PROCESS / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _status(field: str) -> int | None:
    try:
        lines = (_PROCESS / "status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(values[field].split()[0]) * _KIB if field in values else None
