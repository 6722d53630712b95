"""Blocks of device memory, and the order in which the free ones are looked through."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Block:
    """A range of a segment, between the blocks beside it (struct Block)."""

    address: int
    size_bytes: int
    before: "Block | None" = None
    after: "Block | None" = None
    is_free: bool = True
    is_mapped: bool = True
    """False: addresses of an expandable segment that no memory stands behind."""
    asked_bytes: int = 0
    """What the tensor in it asked for, before it was rounded."""

    @property
    def is_split(self) -> bool:
        """Whether other blocks share its segment (Block::is_split)."""
        return self.before is not None or self.after is not None

    def cut(self, size_bytes: int) -> "Block":
        """Shorten to a size; return the block that is left above (alloc_found_block)."""
        rest = Block(
            self.address + size_bytes,
            self.size_bytes - size_bytes,
            self,
            self.after,
            is_mapped=self.is_mapped,
        )
        if self.after is not None:
            self.after.before = rest
        self.size_bytes, self.after = size_bytes, rest
        return rest

    def absorb_after(self) -> None:
        """Become one with the block above (try_merge_blocks)."""
        gone = self.after
        if gone is None:
            return
        self.size_bytes += gone.size_bytes
        self.after = gone.after
        if self.after is not None:
            self.after.before = self


@dataclass(slots=True)
class FreeBlocks:
    """A pool's free blocks by size, then address (BlockPool::blocks, BlockComparatorSize).

    The comparator puts the stream first: a replay has one.
    """

    _order: list[tuple[int, int, Block]] = field(default_factory=list)
    """By size and address, which no two share: blocks themselves are never compared."""

    def __iter__(self) -> Iterator[Block]:
        """The blocks in order, those of the time of asking: they may be removed meanwhile."""
        return iter([block for *_, block in self._order])

    def add(self, block: Block) -> None:
        """Put a block in its place."""
        block.is_free = True
        insort(self._order, (block.size_bytes, block.address, block))

    def remove(self, block: Block) -> None:
        """Take a block out, to be used, merged or given back to the device."""
        block.is_free = False
        # A shorter tuple comes before all that begin with it.
        index = bisect_left(self._order, (block.size_bytes, block.address))
        del self._order[index]

    def from_size(self, size_bytes: int) -> Block | None:
        """The smallest block of at least a size: the lowest of equal ones (get_free_block)."""
        order = self._order
        index = bisect_left(order, (size_bytes,))
        return order[index][2] if index < len(order) else None

    def after(self, block: Block) -> Block | None:
        """The next block in order."""
        index = bisect_left(self._order, (block.size_bytes, block.address)) + 1
        return self._order[index][2] if index < len(self._order) else None

    def largest_first(self) -> Iterator[Block]:
        """The blocks in reverse order, those of the time of asking."""
        return iter([block for *_, block in reversed(self._order)])

    def split_bytes(self) -> int:
        """Bytes of the free blocks that share a segment with others."""
        return sum(block.size_bytes for *_, block in self._order if block.is_split)
