"""What this process has resident, now and at most; ``None`` where the system does not say.

Linux says it in ``/proc/self``. Files are opened without ``pathlib``, which would cost a process
600 KiB of the memory that is read here.
"""

from typing import Final

_PROCESS: Final = "/proc/self"
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
        with open(f"{_PROCESS}/clear_refs", "w", encoding="ascii") as stream:  # noqa: PTH123
            stream.write("5")
    except OSError:
        return False
    return True


def _status(field: str) -> int | None:
    try:
        with open(f"{_PROCESS}/status", encoding="ascii", errors="replace") as lines:  # noqa: PTH123
            values = dict(line.split(":", 1) for line in lines if ":" in line)
    except OSError:
        return None
    return int(values[field].split()[0]) * _KIB if field in values else None
