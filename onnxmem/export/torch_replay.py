"""PyTorch's caching allocator at work on a snapshot: every block at the address that it gets."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from onnxmem.allocators.caching.allocator import CachingAllocator
from onnxmem.export.torch_state import Frames, Segment, TorchState

_BASES: Final = {True: 0x7E00_0000_0000, False: 0x7F00_0000_0000}
"""Where the addresses of the pool of small blocks begin, and those of the other."""


@dataclass(slots=True)
class WatchedAllocator:
    """An allocator that a snapshot is taken of while it serves a program."""

    state: TorchState
    allocator: CachingAllocator
    frames: Callable[[int], Frames]
    """The call stack of an allocation, by its number."""
    _growing: dict[bool, Segment] = field(default_factory=dict)
    """The one segment of each pool, small or not, where segments are expandable."""

    @property
    def reserved_bytes(self) -> int:
        """See ``CachingAllocator``."""
        return self.allocator.reserved_bytes

    @property
    def reserved_peak_bytes(self) -> int:
        """See ``CachingAllocator``."""
        return self.allocator.reserved_peak_bytes

    @property
    def num_retries(self) -> int:
        """See ``CachingAllocator``."""
        return self.allocator.num_retries

    def layout(self) -> object:
        """See ``CachingAllocator``."""
        return self.allocator.layout()

    def rename(self, number: int, new_number: int) -> None:
        """See ``CachingAllocator``."""
        self.allocator.rename(number, new_number)

    def malloc(self, number: int, size_bytes: int) -> None:
        """Serve a request, and write it down."""
        before = self.reserved_bytes
        self.allocator.malloc(number, size_bytes)
        is_small, address, block_bytes = self.allocator.placed(number)
        address += _BASES[is_small]
        if self.reserved_bytes > before:
            self._grown(is_small, address, self.reserved_bytes - before)
        self.state.allocate(address, size_bytes, self.frames(number), block_bytes)

    def free(self, number: int) -> None:
        """Take a block back, and write it down."""
        is_small, address, _ = self.allocator.placed(number)
        self.state.free(_BASES[is_small] + address)
        self.allocator.free(number)

    def _grown(self, is_small: bool, address: int, added_bytes: int) -> None:  # noqa: FBT001
        """The block at an address took bytes of the device: a segment, or pages of the only one."""
        if not self.allocator.config.expandable_segments:
            # The block that a segment is taken for lies at its bottom.
            self.state.take(Segment(address, added_bytes, is_small))
            return
        segment = self._growing.get(is_small)
        if segment is None:
            segment = Segment(_BASES[is_small], 0, is_small, is_expandable=True)
            self._growing[is_small] = segment
            self.state.segments.append(segment)
        # No capacity is set, so that no page goes back: they are mapped one after another.
        top = segment.address + segment.size_bytes
        segment.size_bytes += added_bytes
        self.state.happen("segment_map", top, added_bytes, [])
