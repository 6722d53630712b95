"""The memory pattern: one block for all buffers of a run, computed during the first run.

Source: ``core/framework/mem_pattern_planner.h`` (``TraceAllocation``). Each buffer is placed at
once, in the smallest gap between live buffers that fits, the unused end of the block included, else
after the last live buffer. Buffers never move, so the block may be larger than the peak.
"""

from dataclasses import dataclass, field
from typing import Final

from onnxmem.allocators.packed import FreeList

ALIGNMENT_BYTES: Final = 256
"""``kAllocAlignment`` of ``core/framework/allocator.h``."""


@dataclass(slots=True)
class PatternTrace:
    """The block of one run, while it is traced."""

    size_bytes: int = 0
    """``PeakSize``."""
    placed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Offset and size of each live buffer, in bytes."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Rounded size of every traced buffer."""
    _free: FreeList = field(default_factory=FreeList)
    """The gaps between live buffers."""

    def allocate(self, name: str, size_bytes: int) -> None:
        """Place a buffer."""
        rounded = rounded_up(size_bytes)
        self.sizes[name] = rounded
        # TraceAllocation gives an empty buffer a block without bytes, and no offset to merge later.
        if rounded == 0:
            return
        offset = self._best_offset(rounded)
        self.size_bytes = max(self.size_bytes, offset + rounded)
        self.placed[name] = (offset, rounded)

    def free(self, name: str) -> None:
        """Release a buffer; does nothing if it has no offset."""
        if name in self.placed:
            self._free.free(*self.placed.pop(name))

    def _best_offset(self, size: int) -> int:
        # The list ends at the last live buffer. What the block has beyond counts as a gap, too: it
        # is used if it fits and is smaller than all others.
        gap, last_gap = self._free.smallest(size), self.size_bytes - self._free.top
        if gap is not None and size <= last_gap < gap:
            return self._free.above(size)
        return self._free.allocate(size)


def rounded_up(size_bytes: int) -> int:
    """Round up to the alignment of the pattern."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
