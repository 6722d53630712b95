"""A pool takes blocks from its segments, and asks the device for more where none fits."""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from onnxmem.allocators.caching.blocks import Block, FreeBlocks
from onnxmem.allocators.caching.rounding import (
    LARGE_SEGMENT_BYTES,
    MIN_BLOCK_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    round_up,
    segment_bytes,
)

_ADDRESSES: Final = 1 << 60
"""Of an expandable segment: more than any device has memory for."""


@dataclass(slots=True)
class DeviceMemory:
    """What the device has for the allocator, and what the allocator has taken of it."""

    capacity_bytes: int | None = None
    """``None``: as much as is asked for."""
    reserved_bytes: int = 0
    reserved_peak_bytes: int = 0

    def take(self, size_bytes: int) -> bool:
        """Reserve bytes; False where the device has fewer left (cudaMalloc, cuMemCreate)."""
        reserved_bytes = self.reserved_bytes + size_bytes
        if self.capacity_bytes is not None and reserved_bytes > self.capacity_bytes:
            return False
        self.reserved_bytes = reserved_bytes
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, reserved_bytes)
        return True

    def give(self, size_bytes: int) -> None:
        """Give bytes back (cudaFree, cuMemUnmap)."""
        self.reserved_bytes -= size_bytes


@dataclass(slots=True)
class Pool(ABC):
    """One of the allocator's two pools."""

    is_small: bool
    device: DeviceMemory = field(default_factory=DeviceMemory)
    max_split_bytes: int | None = None
    num_segments: int = 0
    free: FreeBlocks = field(default_factory=FreeBlocks)

    def cached(self, size_bytes: int) -> Block | None:
        """A free block for a rounded size, cut to it; ``None``: there is none (get_free_block)."""
        block = self._best_fit(size_bytes)
        if block is not None:
            self.free.remove(block)
            self._cut(block, size_bytes)
        return block

    def reserved(self, size_bytes: int) -> Block | None:
        """The same from new memory; ``None``: the device has too little left (alloc_block)."""
        block = self._reserve(size_bytes)
        if block is not None:
            self._cut(block, size_bytes)
        return block

    def give(self, block: Block) -> Block:
        """Free a block: what it becomes with free blocks beside it (free_block)."""
        after, before = block.after, block.before
        if after is not None and after.is_free and after.is_mapped:
            self.free.remove(after)
            block.absorb_after()
        if before is not None and before.is_free and before.is_mapped:
            self.free.remove(before)
            before.absorb_after()
            block = before
        self.free.add(block)
        return block

    @abstractmethod
    def split_bytes(self) -> int:
        """Free bytes of segments that are in use, as the statistic inactive_split_bytes counts."""

    @abstractmethod
    def release(self) -> None:
        """Give back to the device what no block in use shares (release_blocks)."""

    @abstractmethod
    def release_oversize(self, size_bytes: int) -> bool:
        """Give back blocks that are never split, enough for a request.

        False: there are too few (release_available_cached_blocks).
        """

    @abstractmethod
    def layout(self) -> Iterator[tuple[int, ...]]:
        """Sizes of all blocks by segment, below 0 where free: equal layouts behave alike."""

    @abstractmethod
    def _reserve(self, size_bytes: int) -> Block | None:
        """A block that is large enough, from new memory and not among the free ones."""

    @abstractmethod
    def _splits(self, rest_bytes: int, size_bytes: int) -> bool:
        """Whether the rest of a block becomes a block (should_split)."""

    def _cut(self, block: Block, size_bytes: int) -> None:
        """Cut a block where the rest is worth keeping (alloc_found_block)."""
        rest_bytes = block.size_bytes - size_bytes
        if rest_bytes and self._splits(rest_bytes, size_bytes):
            self.free.add(block.cut(size_bytes))
        block.is_free = False

    def _best_fit(self, size_bytes: int) -> Block | None:
        """The smallest free block that will do (get_free_block)."""
        block = self.free.from_size(size_bytes)
        return block if self.max_split_bytes is None else self._unless_oversize(block, size_bytes)

    def _unless_oversize(self, block: Block | None, size_bytes: int) -> Block | None:
        """Keep blocks that are never split for requests of about their size (get_free_block)."""
        limit = self.max_split_bytes
        if block is None or limit is None:
            return block
        if size_bytes < limit:
            return None if block.size_bytes >= limit else block
        return None if block.size_bytes >= size_bytes + LARGE_SEGMENT_BYTES else block


@dataclass(slots=True)
class SegmentPool(Pool):
    """A pool whose segments are each one cudaMalloc.

    Of equal blocks the lowest address is taken, so that the driver's addresses matter: here each
    segment lies above those before it.
    """

    top: int = 0
    segments: dict[int, Block] = field(default_factory=dict)
    """The lowest block of each segment, by address."""

    def split_bytes(self) -> int:
        """See the base class."""
        return self.free.split_bytes()

    def release(self) -> None:
        """See the base class."""
        for block in self.free:
            if not block.is_split:
                self._release(block)

    def release_oversize(self, size_bytes: int) -> bool:
        """See the base class."""
        limit = self.max_split_bytes
        if limit is None:
            return False
        needed_bytes = max(size_bytes, limit)
        block = self.free.from_size(needed_bytes)
        if block is not None:
            self._release(block)
            return True
        released_bytes = 0
        for large in self.free.largest_first():
            if released_bytes >= needed_bytes or large.size_bytes < limit:
                break
            self._release(large)
            released_bytes += large.size_bytes
        return released_bytes >= needed_bytes

    def layout(self) -> Iterator[tuple[int, ...]]:
        """See the base class."""
        return (tuple(_sizes(block)) for block in self.segments.values())

    def _release(self, block: Block) -> None:
        """Give a whole segment back (release_block)."""
        self.free.remove(block)
        self.device.give(block.size_bytes)
        del self.segments[block.address]
        self.num_segments -= 1

    def _reserve(self, size_bytes: int) -> Block | None:
        """One new segment (alloc_block)."""
        segment = segment_bytes(size_bytes)
        if not self.device.take(segment):
            return None
        block = self.segments[self.top] = Block(self.top, segment)
        self.top += segment
        self.num_segments += 1
        return block

    def _splits(self, rest_bytes: int, size_bytes: int) -> bool:
        if self.is_small:
            return rest_bytes >= MIN_BLOCK_BYTES
        is_limited = self.max_split_bytes is not None and size_bytes >= self.max_split_bytes
        return rest_bytes > SMALL_BYTES and not is_limited


@dataclass(slots=True)
class ExpandablePool(Pool):
    """A pool of one expandable segment: addresses for the whole device, mapped page by page."""

    unmapped: list[tuple[int, Block]] = field(default_factory=list)
    """By address (BlockPool::unmapped)."""
    first: Block = field(init=False)
    """The block at the bottom."""

    def __post_init__(self) -> None:
        """Set the addresses aside; no memory is behind them yet."""
        self.first = Block(0, _ADDRESSES, is_mapped=False)
        self.unmapped.append((0, self.first))

    def split_bytes(self) -> int:
        """0: inactive_split_bytes leaves expandable segments out, whose free pages can go back."""
        return 0

    def release(self) -> None:
        """See the base class."""
        for block in self.free:
            self._unmap(block)

    def release_oversize(self, size_bytes: int) -> bool:  # noqa: ARG002 - as in the base
        """False: segments that expand are left out (release_available_cached_blocks)."""
        return False

    def layout(self) -> Iterator[tuple[int, ...]]:
        """See the base class."""
        yield tuple(_sizes(self.first))

    @property
    def _page_bytes(self) -> int:
        return SMALL_SEGMENT_BYTES if self.is_small else LARGE_SEGMENT_BYTES

    def _best_fit(self, size_bytes: int) -> Block | None:
        """The best fit, where a block counts with what it can grow by (get_free_block)."""
        block = self.free.from_size(size_bytes)
        while block is not None:
            larger = self.free.after(block)
            if larger is None or _growing_bytes(larger) >= _growing_bytes(block):
                break
            block = larger
        return self._unless_oversize(block, size_bytes)

    def _reserve(self, size_bytes: int) -> Block | None:
        """Map pages where addresses are free (try_allocate_expandable_block)."""
        block = self._with_room(size_bytes)
        if not block.is_mapped:
            mapped = self._map(block, min(block.size_bytes, size_bytes))
            if mapped is None:
                return None
            block = mapped
        while block.size_bytes < size_bytes:
            above = block.after
            if above is None:
                return None
            mapped = self._map(above, min(size_bytes - block.size_bytes, above.size_bytes))
            if mapped is None:
                return None
            block = mapped
        self.free.remove(block)
        return block

    def _with_room(self, size_bytes: int) -> Block:
        """The lowest unmapped block with room, or the free one below it (find_expandable_block)."""
        for _, block in self.unmapped:
            before = block.before
            start = before if before is not None and before.is_free else block
            if _has_room(start, size_bytes):
                return start
        return self.unmapped[-1][1]

    def _map(self, block: Block, size_bytes: int) -> Block | None:
        """Map the first pages of a block; what it becomes (map_block)."""
        mapped_bytes = round_up(size_bytes, self._page_bytes)
        if not self.device.take(mapped_bytes):
            return None
        self.num_segments = 1
        self._forget(block)
        if mapped_bytes < block.size_bytes:
            rest = block.cut(mapped_bytes)
            insort(self.unmapped, (rest.address, rest))
        block.is_mapped = True
        return self.give(block)

    def _unmap(self, block: Block) -> None:
        """Give back the pages that lie wholly in a free block (unmap_block)."""
        page_bytes = self._page_bytes
        start = round_up(block.address, page_bytes)
        size_bytes = (block.address + block.size_bytes) // page_bytes * page_bytes - start
        if size_bytes <= 0:
            return
        self.free.remove(block)
        if start > block.address:
            above = block.cut(start - block.address)
            self.free.add(block)
            block = above
        if size_bytes < block.size_bytes:
            self.free.add(block.cut(size_bytes))
        self.device.give(size_bytes)
        block.is_free, block.is_mapped = True, False
        self._merge_unmapped(block)

    def _merge_unmapped(self, block: Block) -> None:
        after, before = block.after, block.before
        if after is not None and not after.is_mapped:
            self._forget(after)
            block.absorb_after()
        if before is not None and not before.is_mapped:
            self._forget(before)
            before.absorb_after()
            block = before
        insort(self.unmapped, (block.address, block))

    def _forget(self, block: Block) -> None:
        index = bisect_left(self.unmapped, (block.address,))
        del self.unmapped[index]

    def _splits(self, rest_bytes: int, size_bytes: int) -> bool:  # noqa: ARG002 - as in the base
        return rest_bytes >= MIN_BLOCK_BYTES


def _growing_bytes(block: Block) -> int:
    """Bytes of a block with the unmapped ones above it."""
    above = block.after
    return block.size_bytes + (0 if above is None or above.is_mapped else above.size_bytes)


def _has_room(block: Block | None, size_bytes: int) -> bool:
    """Whether free and unmapped blocks from here on have room, with no block in use between."""
    found_bytes = 0
    while found_bytes < size_bytes and block is not None and block.is_free:
        found_bytes += block.size_bytes
        block = block.after
    return found_bytes >= size_bytes


def _sizes(block: Block | None) -> Iterator[int]:
    while block is not None:
        yield -block.size_bytes if block.is_free else block.size_bytes
        block = block.after
