"""The memory pattern: one block for all of a run's buffers, worked out while the first run goes.

Source: ``core/framework/mem_pattern_planner.h`` (``TraceAllocation``): every buffer goes at once
into the smallest gap between those alive that holds it, the end of the block so far included, else
behind the last. The block never moves what it has placed, so it may be larger than the peak.
"""

from bisect import insort
from dataclasses import dataclass, field
from typing import Final

ALIGNMENT_BYTES: Final = 256
"""``kAllocAlignment`` of ``core/framework/allocator.h``."""


@dataclass(slots=True)
class PatternTrace:
    """The block so far."""

    size_bytes: int = 0
    """``PeakSize``."""
    placed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Buffers alive: offset and size in bytes."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Every buffer that was traced, as rounded."""
    _spans: list[tuple[int, int]] = field(default_factory=list)
    """Offset and end of the buffers alive, by offset."""

    def allocate(self, name: str, size_bytes: int) -> None:
        """Place a buffer."""
        rounded = rounded_up(size_bytes)
        self.sizes[name] = rounded
        if rounded == 0:
            return
        offset = self._best_offset(rounded)
        self.size_bytes = max(self.size_bytes, offset + rounded)
        self.placed[name] = (offset, rounded)
        insort(self._spans, (offset, offset + rounded))

    def free(self, name: str) -> None:
        """Take a buffer out; one that was never placed does no harm."""
        if name in self.placed:
            offset, size = self.placed.pop(name)
            self._spans.remove((offset, offset + size))

    def _best_offset(self, size: int) -> int:
        end, waste, best = 0, None, None
        for start, stop in (*self._spans, (self.size_bytes, 0)):
            gap = start - end
            if gap >= size and (waste is None or gap - size < waste):
                waste, best = gap - size, end
            end = max(end, stop)
        return end if best is None else best


def rounded_up(size_bytes: int) -> int:
    """Bytes as the pattern counts them."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
