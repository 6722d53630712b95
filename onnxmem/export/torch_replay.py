"""PyTorch's caching allocator at work on a snapshot: which address each block gets.

The rules are those of ``onnxmem.runtimes.torch``; here its pools are watched, for a snapshot shows
addresses and a replay tells sums.
"""

from dataclasses import dataclass, field
from typing import Final, Self

from onnxmem.allocators.caching import CachingConfig
from onnxmem.allocators.caching.blocks import Block
from onnxmem.allocators.caching.pools import ExpandablePool, Pool, SegmentPool
from onnxmem.allocators.caching.rounding import SMALL_BYTES, rounded_bytes
from onnxmem.export.torch_state import Frames, Segment, TorchState

_SMALL_BASE: Final = 0x7E00_0000_0000
_LARGE_BASE: Final = 0x7F00_0000_0000
"""The pools count from 0 each."""


@dataclass(slots=True)
class _Watched:
    """A pool, and where its addresses begin."""

    pool: Pool
    base: int
    is_expandable: bool
    segment: Segment | None = None
    """The one that grows, where segments do."""


@dataclass(slots=True)
class TorchReplay:
    """Mutable: the two pools, and the blocks that are out."""

    state: TorchState
    config: CachingConfig
    small: _Watched
    large: _Watched
    _out: dict[int, tuple[_Watched, Block]] = field(default_factory=dict)

    @classmethod
    def on(cls, state: TorchState, config: CachingConfig) -> Self:
        """An allocator that has taken nothing yet."""
        expands = config.expandable_segments
        kind = ExpandablePool if expands else SegmentPool
        limit = config.max_split_bytes
        small = _Watched(kind(is_small=True, max_split_bytes=limit), _SMALL_BASE, expands)
        large = _Watched(kind(is_small=False, max_split_bytes=limit), _LARGE_BASE, expands)
        return cls(state, config, small, large)

    def allocate(self, number: int, size_bytes: int, frames: Frames) -> None:
        """Find a block and call it by a number; 0 bytes take none."""
        if size_bytes == 0:
            return
        rounded = rounded_bytes(size_bytes, self.config.power2_divisions)
        watched = self.small if rounded <= SMALL_BYTES else self.large
        before = watched.pool.device.reserved_bytes
        block = watched.pool.cached(rounded) or watched.pool.reserved(rounded)
        if block is None:  # no capacity is set, so that nothing fails
            return
        if watched.pool.device.reserved_bytes > before:
            self._grown(watched, before)
        self._out[number] = (watched, block)
        self.state.allocate(watched.base + block.address, size_bytes, frames, block.size_bytes)

    def free(self, number: int) -> None:
        """Give a block back."""
        watched, block = self._out.pop(number)
        self.state.free(watched.base + block.address)
        watched.pool.give(block)

    def _grown(self, watched: _Watched, before: int) -> None:
        """A pool has taken bytes of the device: a segment, or pages at the end of its only one."""
        address = watched.base + before
        added = watched.pool.device.reserved_bytes - before
        if not watched.is_expandable:
            self.state.take(Segment(address, added, watched is self.small))
            return
        if watched.segment is None:
            watched.segment = Segment(address, 0, watched is self.small, is_expandable=True)
            self.state.segments.append(watched.segment)
        watched.segment.size_bytes += added
        self.state.happen("segment_map", address, added, [])
