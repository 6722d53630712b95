"""A pool takes blocks from its segments, and asks the device for more where none fits."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from onnxmem.runtimes.torch.blocks import Block, FreeBlocks
from onnxmem.runtimes.torch.rounding import (
    LARGE_SEGMENT_BYTES,
    MIN_BLOCK_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    round_up,
    segment_bytes,
)


@dataclass(slots=True)
class Pool(ABC):
    """One of the allocator's two pools; what it takes from the device it keeps.

    Cached segments go back only where the device has no more memory, which is not emulated: the
    reserved bytes are those of a device that is large enough.
    """

    is_small: bool
    max_split_bytes: int | None = None
    reserved_bytes: int = 0
    num_segments: int = 0
    free: FreeBlocks = field(default_factory=FreeBlocks)

    def take(self, size_bytes: int) -> Block:
        """A block for a rounded size, cut to it where the rest is worth keeping (malloc)."""
        block = self._best_fit(size_bytes)
        if block is None:
            block = self._reserve(size_bytes)
        else:
            self.free.remove(block)
        rest_bytes = block.size_bytes - size_bytes
        if rest_bytes and self._splits(rest_bytes, size_bytes):
            self.free.add(block.cut(size_bytes))
        block.is_free = False
        return block

    def give(self, block: Block) -> Block:
        """Free a block: what it becomes with free blocks beside it (free_block)."""
        after, before = block.after, block.before
        if after is not None and after.is_free:
            self.free.remove(after)
            block.absorb_after()
        if before is not None and before.is_free:
            self.free.remove(before)
            before.absorb_after()
            block = before
        self.free.add(block)
        return block

    @abstractmethod
    def split_bytes(self) -> int:
        """Free bytes of segments that are in use, as the statistic inactive_split_bytes counts."""

    @abstractmethod
    def _reserve(self, size_bytes: int) -> Block:
        """A block that is large enough, from new memory and not among the free ones."""

    @abstractmethod
    def _splits(self, rest_bytes: int, size_bytes: int) -> bool:
        """Whether the rest of a block becomes a block (should_split)."""

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

    def split_bytes(self) -> int:
        """See the base class."""
        return self.free.split_bytes()

    def _reserve(self, size_bytes: int) -> Block:
        """One new segment (alloc_block)."""
        block = Block(self.top, segment_bytes(size_bytes))
        self.top += block.size_bytes
        self.reserved_bytes += block.size_bytes
        self.num_segments += 1
        return block

    def _splits(self, rest_bytes: int, size_bytes: int) -> bool:
        if self.is_small:
            return rest_bytes >= MIN_BLOCK_BYTES
        is_limited = self.max_split_bytes is not None and size_bytes >= self.max_split_bytes
        return rest_bytes > SMALL_BYTES and not is_limited


@dataclass(slots=True)
class ExpandablePool(Pool):
    """A pool of one expandable segment: addresses for the whole device, mapped from below.

    Pages are unmapped only where the device has no more memory, so the mapped ones have no gaps.
    """

    last: Block | None = None
    """The mapped block with only unmapped pages above."""

    def take(self, size_bytes: int) -> Block:
        """See the base class."""
        return self._follow(Pool.take(self, size_bytes))

    def give(self, block: Block) -> Block:
        """See the base class."""
        return self._follow(Pool.give(self, block))

    def split_bytes(self) -> int:
        """0: inactive_split_bytes leaves expandable segments out, whose free pages can go back."""
        return 0

    def _best_fit(self, size_bytes: int) -> Block | None:
        """The best fit, where the block on top counts with all that it can grow by."""
        return self._unless_oversize(self.free.from_size(size_bytes, self.last), size_bytes)

    def _reserve(self, size_bytes: int) -> Block:
        """Map pages onto the block on top, if free (try_allocate_expandable_block, map_block)."""
        page_bytes = SMALL_SEGMENT_BYTES if self.is_small else LARGE_SEGMENT_BYTES
        last = self.last
        if last is not None and last.is_free:
            self.free.remove(last)
            self._map(last, round_up(max(size_bytes - last.size_bytes, 0), page_bytes))
            return last
        block = Block(self.reserved_bytes, 0, before=last)
        if last is not None:
            last.after = block
        self.num_segments = 1
        self._map(block, round_up(size_bytes, page_bytes))
        return block

    def _follow(self, block: Block) -> Block:
        """Know the block on top, after a change at a block or just above it."""
        top = block.after or block
        if top.after is None:
            self.last = top
        return block

    def _map(self, block: Block, size_bytes: int) -> None:
        block.size_bytes += size_bytes
        self.reserved_bytes += size_bytes

    def _splits(self, rest_bytes: int, size_bytes: int) -> bool:  # noqa: ARG002 - as in the base
        return rest_bytes >= MIN_BLOCK_BYTES
