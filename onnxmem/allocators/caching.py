"""PyTorch's caching allocator of one CUDA device and one stream, replayed without either.

Requests go in (``CachingAllocator``); where their blocks lie and what ``torch.cuda.memory_stats``
would count come out. A request is rounded, served from its pool's free blocks, then from a new
segment, then after releasing what is cached.

Source of every rule: DeviceCachingAllocator of c10/cuda/CUDACachingAllocator.cpp, PyTorch 2; the
function is named at each. The constants are those of c10/core/AllocatorConfig.h.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from onnxmem.program.replay import OutOfMemoryError


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
    requested_bytes: int = 0
    """What the tensor in it requested, before it was rounded."""

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
        """Add a block in order."""
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


MIN_BLOCK_BYTES = 512
"""kMinBlockSize: every block is a multiple of it."""
SMALL_BYTES = 2**20
"""kSmallSize: the largest request that the small pool serves."""
SMALL_SEGMENT_BYTES = 2 * 2**20
"""kSmallBuffer: a segment, or a page, of the small pool."""
MIN_LARGE_BYTES = 10 * 2**20
"""kMinLargeAlloc: requests from here on get a segment of their own size."""
LARGE_SEGMENT_BYTES = 20 * 2**20
"""large_segment_size, before it kLargeBuffer: what smaller requests of the large pool share."""
LARGE_STEP_BYTES = 2 * 2**20
"""kRoundLarge: a segment of a request's own size is a multiple of it."""


def rounded_bytes(size_bytes: int, power2_divisions: int = 0) -> int:
    """Bytes of the block that a request needs (DeviceCachingAllocator::round_size)."""
    if power2_divisions > 1 and size_bytes > MIN_BLOCK_BYTES * power2_divisions:
        return _up_to_division(size_bytes, power2_divisions)
    return max(round_up(size_bytes, MIN_BLOCK_BYTES), MIN_BLOCK_BYTES)


def segment_bytes(block_bytes: int) -> int:
    """Bytes requested from the device where no block is free (get_allocation_size)."""
    if block_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < MIN_LARGE_BYTES:
        return LARGE_SEGMENT_BYTES
    return round_up(block_bytes, LARGE_STEP_BYTES)


def round_up(size_bytes: int, step_bytes: int) -> int:
    """The first multiple of a step from a size on."""
    return -(-size_bytes // step_bytes) * step_bytes


def _up_to_division(size_bytes: int, divisions: int) -> int:
    """The first of the equal parts between two powers of 2 (roundup_power2_next_division)."""
    floor = 1 << (size_bytes.bit_length() - 1)
    if floor == size_bytes:
        return size_bytes
    # The source shifts by the whole bits of `divisions`: 5, 6 and 7 count as 4.
    part = floor >> (divisions.bit_length() - 1)
    return round_up(size_bytes, part) if part else floor * 2


_ADDRESSES: Final = 1 << 60
"""Of an expandable segment: more than any device has memory for."""


@dataclass(slots=True)
class DeviceMemory:
    """What the device has for the allocator, and what the allocator has taken of it."""

    capacity_bytes: int | None = None
    """``None``: as much as is requested."""
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
        """The lowest unmapped block that fits, or the free one below it (find_expandable_block)."""
        for _, block in self.unmapped:
            before = block.before
            start = before if before is not None and before.is_free else block
            if _fits(start, size_bytes):
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


def _fits(block: Block | None, size_bytes: int) -> bool:
    """Whether free and unmapped blocks from here on are large enough, no block in use between."""
    found_bytes = 0
    while found_bytes < size_bytes and block is not None and block.is_free:
        found_bytes += block.size_bytes
        block = block.after
    return found_bytes >= size_bytes


def _sizes(block: Block | None) -> Iterator[int]:
    while block is not None:
        yield -block.size_bytes if block.is_free else block.size_bytes
        block = block.after


@dataclass(frozen=True, slots=True)
class CachingConfig:
    """What is set of the allocator: PYTORCH_CUDA_ALLOC_CONF."""

    expandable_segments: bool = False
    """``expandable_segments``: one segment per pool that grows page by page."""
    max_split_bytes: int | None = None
    """``max_split_size_mb``: larger blocks are never split; ``None`` sets no limit."""
    power2_divisions: int = 0
    """``roundup_power2_divisions``, one number for all sizes; below 2 it is off."""

    def __post_init__(self) -> None:
        """Refuse what PyTorch refuses (parseMaxSplitSize).

        :raises ValueError: a limit that would keep the shared segments of 20 MiB from being split.
        """
        if self.max_split_bytes is not None and self.max_split_bytes <= LARGE_SEGMENT_BYTES:
            msg = f"max_split_bytes is above {LARGE_SEGMENT_BYTES}, not {self.max_split_bytes}"
            raise ValueError(msg)


class Placed(NamedTuple):
    """Where a block lies."""

    is_small: bool
    """In the pool of small blocks."""
    address: int
    size_bytes: int


@dataclass(slots=True)
class CachingAllocator:
    """Serves allocations and frees, and counts as `torch.cuda.memory_stats` does.

    Where the device has no more memory, cached segments are given back and the request is tried
    again before it fails (DeviceCachingAllocator::malloc).
    """

    config: CachingConfig = field(default_factory=CachingConfig)
    capacity_bytes: int | None = None
    """What the device has for the allocator; ``None``: as much as is requested."""
    requested_bytes: int = 0
    """requested_bytes.all.current: what tensors requested."""
    requested_peak_bytes: int = 0
    allocated_bytes: int = 0
    """allocated_bytes.all.current: whole blocks, also what was too little to be split off."""
    allocated_peak_bytes: int = 0
    num_retries: int = 0
    """num_alloc_retries: requests that were served only after caches were released, or failed."""
    _device: DeviceMemory = field(init=False)
    _small: Pool = field(init=False)
    _large: Pool = field(init=False)
    _blocks: dict[int, Block] = field(default_factory=dict)
    _rounded: dict[int, tuple[int, Pool]] = field(default_factory=dict)
    """Rounded bytes and pool by the bytes requested: a step requests few sizes."""

    def __post_init__(self) -> None:
        kind = ExpandablePool if self.config.expandable_segments else SegmentPool
        limit = self.config.max_split_bytes
        self._device = DeviceMemory(self.capacity_bytes)
        self._small = kind(is_small=True, device=self._device, max_split_bytes=limit)
        self._large = kind(is_small=False, device=self._device, max_split_bytes=limit)

    @property
    def reserved_bytes(self) -> int:
        """reserved_bytes.all.current: bytes taken from the device."""
        return self._device.reserved_bytes

    @property
    def reserved_peak_bytes(self) -> int:
        """reserved_bytes.all.peak."""
        return self._device.reserved_peak_bytes

    @property
    def num_segments(self) -> int:
        """Ranges taken from the device; an expandable one counts once."""
        return self._small.num_segments + self._large.num_segments

    @property
    def inactive_split_bytes(self) -> int:
        """Free bytes of segments that are in use in part: empty_cache gives none of them back."""
        return self._small.split_bytes() + self._large.split_bytes()

    def layout(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of all blocks, by segment; from equal layouts the same requests go the same way."""
        return (*self._small.layout(), (), *self._large.layout())

    def malloc(self, number: int, size_bytes: int) -> None:
        """Find a block for `size_bytes`, at least 1, and call it by `number` (malloc).

        :raises ValueError: a number that is in use.
        :raises OutOfMemoryError: the device has too little memory.
        """
        if number in self._blocks:
            msg = f"block {number} is allocated twice"
            raise ValueError(msg)
        if size_bytes not in self._rounded:
            rounded = rounded_bytes(size_bytes, self.config.power2_divisions)
            self._rounded[size_bytes] = rounded, self._pool(rounded)
        rounded, pool = self._rounded[size_bytes]
        block = pool.cached(rounded) or pool.reserved(rounded) or self._retried(pool, rounded)
        self._blocks[number] = block
        block.requested_bytes = size_bytes
        self.requested_bytes = requested_bytes = self.requested_bytes + size_bytes
        # A comparison costs half of a call of max, and a search serves millions of requests.
        self.requested_peak_bytes = max(self.requested_peak_bytes, requested_bytes)
        self.allocated_bytes = allocated_bytes = self.allocated_bytes + block.size_bytes
        self.allocated_peak_bytes = max(self.allocated_peak_bytes, allocated_bytes)

    def free(self, number: int) -> None:
        """Give the block called `number` back to its pool (free).

        :raises ValueError: a number that is not in use.
        """
        block = self._blocks.pop(number, None)
        if block is None:
            msg = f"block {number} is freed and was not allocated"
            raise ValueError(msg)
        self.requested_bytes -= block.requested_bytes
        self.allocated_bytes -= block.size_bytes
        # What stays with a block unsplit changes no pool: the small one leaves nothing over, and
        # the large one's blocks are above its bound anyway.
        self._pool(block.size_bytes).give(block)

    def placed(self, number: int) -> Placed:
        """Where the block called `number` lies; the addresses of each pool begin at 0."""
        block = self._blocks[number]
        is_small = self._pool(block.size_bytes) is self._small
        return Placed(is_small, block.address, block.size_bytes)

    def rename(self, number: int, new_number: int) -> None:
        """Call the block called `number` by another number that is not in use."""
        self._blocks[new_number] = self._blocks.pop(number)

    def _retried(self, pool: Pool, rounded: int) -> Block:
        """Release what is cached and try again: first what may be enough, then all of it (malloc).

        :raises OutOfMemoryError: the device has too little memory all the same.
        """
        if pool.release_oversize(rounded) and (block := pool.reserved(rounded)) is not None:
            return block
        self._large.release()
        self._small.release()
        self.num_retries += 1
        found = pool.reserved(rounded)
        if found is None:
            raise OutOfMemoryError
        return found

    def _pool(self, size_bytes: int) -> Pool:
        """The pool of a rounded size (get_pool)."""
        return self._small if size_bytes <= SMALL_BYTES else self._large
