"""What a child may take; the child sets its limits itself before it does anything else."""

from dataclasses import dataclass


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
