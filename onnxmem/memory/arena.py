"""TODO."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arena:
    """One block in which every buffer has an offset."""

    size_bytes: int
    lower_bound_bytes: int
    """Live bytes at the peak: no arena is smaller."""
    offsets: tuple[tuple[str, int], ...] = ()
    """(name of the buffer's first tensor, offset in bytes)."""

    @property
    def gap_bytes(self) -> int:
        """Bytes above the lower bound."""
        return self.size_bytes - self.lower_bound_bytes

    @property
    def is_proven(self) -> bool:
        """Whether no smaller arena exists."""
        return self.gap_bytes == 0
