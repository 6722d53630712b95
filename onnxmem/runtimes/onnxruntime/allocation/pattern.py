"""The memory pattern: one block for all of a run's buffers, worked out while the first run goes.

Source: ``core/framework/mem_pattern_planner.h`` (``TraceAllocation``): every buffer goes at once
into the smallest gap between those alive that holds it, the end of the block so far included, else
behind the last. The block never moves what it has placed, so it may be larger than the peak.
"""

from dataclasses import dataclass, field
from typing import Final

from onnxmem.allocators.packed import FreeList

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
    _free: FreeList = field(default_factory=FreeList)
    """The gaps between the buffers alive."""

    def allocate(self, name: str, size_bytes: int) -> None:
        """Place a buffer."""
        rounded = rounded_up(size_bytes)
        self.sizes[name] = rounded
        if rounded == 0:
            return
        offset = self._best_offset(rounded)
        self.size_bytes = max(self.size_bytes, offset + rounded)
        self.placed[name] = (offset, rounded)

    def free(self, name: str) -> None:
        """Take a buffer out; one that was never placed does no harm."""
        if name in self.placed:
            self._free.free(*self.placed.pop(name))

    def _best_offset(self, size: int) -> int:
        gap, last_gap = self._free.smallest(size), self.size_bytes - self._free.top
        if gap is not None and size <= last_gap < gap:
            return self._free.above(size)
        return self._free.allocate(size)


def rounded_up(size_bytes: int) -> int:
    """Bytes as the pattern counts them."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
