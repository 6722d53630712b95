"""PyTorch's caching allocator for one CUDA device and one stream, emulated without a GPU.

``CachingAllocator`` serves requests, and has the addresses of their blocks and the figures of
``torch.cuda.memory_stats``. It rounds a request and tries, in this order, a free block of its pool,
a new segment, and a new segment after the cached segments were released.

Source of every rule: DeviceCachingAllocator of c10/cuda/CUDACachingAllocator.cpp, PyTorch 2; each
docstring names its function. The constants are those of c10/core/AllocatorConfig.h.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from onnxmem.program.replay import OutOfMemoryError


@dataclass(slots=True, eq=False)
class Block:
    """A range of a segment, linked to its neighbors (struct Block)."""

    address: int
    size_bytes: int
    before: "Block | None" = None
    after: "Block | None" = None
    is_free: bool = True
    is_mapped: bool = True
    """False: addresses of an expandable segment to which no memory is mapped."""
    requested_bytes: int = 0
    """The request that it serves, before rounding."""

    @property
    def is_split(self) -> bool:
        """Whether other blocks share its segment (Block::is_split)."""
        return self.before is not None or self.after is not None

    def cut(self, size_bytes: int) -> "Block":
        """Shorten the block to a size; return the rest of it (alloc_found_block)."""
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
        """Merge with the block above (try_merge_blocks)."""
        above = self.after
        if above is None:
            return
        self.size_bytes += above.size_bytes
        self.after = above.after
        if self.after is not None:
            self.after.before = self


@dataclass(slots=True)
class FreeBlocks:
    """A pool's free blocks by size, then address (BlockPool::blocks, BlockComparatorSize).

    The comparator orders by stream first; a replay has one stream.
    """

    _order: list[tuple[int, int, Block]] = field(default_factory=list)
    """Sorted. No two blocks share an address, so the blocks themselves are never compared."""

    def __iter__(self) -> Iterator[Block]:
        """Iterate over a copy, in order: the loop may remove blocks."""
        return iter([block for *_, block in self._order])

    def add(self, block: Block) -> None:
        """Add a block in order."""
        block.is_free = True
        insort(self._order, (block.size_bytes, block.address, block))

    def remove(self, block: Block) -> None:
        """Remove a block that will be allocated, merged or released to the device."""
        block.is_free = False
        # A tuple compares less than a longer one that starts with it.
        index = bisect_left(self._order, (block.size_bytes, block.address))
        del self._order[index]

    def from_size(self, size_bytes: int) -> Block | None:
        """The smallest block of at least this size, of equals the lowest (get_free_block)."""
        order = self._order
        index = bisect_left(order, (size_bytes,))
        return order[index][2] if index < len(order) else None

    def after(self, block: Block) -> Block | None:
        """The next block in order."""
        index = bisect_left(self._order, (block.size_bytes, block.address)) + 1
        return self._order[index][2] if index < len(self._order) else None

    def largest_first(self) -> Iterator[Block]:
        """Iterate over a copy, in reverse order."""
        return iter([block for *_, block in reversed(self._order)])

    def split_bytes(self) -> int:
        """Bytes of the free blocks that share a segment with others."""
        return sum(block.size_bytes for *_, block in self._order if block.is_split)


MIN_BLOCK_BYTES = 512
"""kMinBlockSize: every block is a multiple of it."""
SMALL_BYTES = 2**20
"""kSmallSize: the largest request that the small pool serves."""
SMALL_SEGMENT_BYTES = 2 * 2**20
"""kSmallBuffer: the size of a segment, or of a page, of the small pool."""
MIN_LARGE_BYTES = 10 * 2**20
"""kMinLargeAlloc: requests from here on get a segment of their own size."""
LARGE_SEGMENT_BYTES = 20 * 2**20
"""large_segment_size (formerly kLargeBuffer): segments that smaller requests share."""
LARGE_STEP_BYTES = 2 * 2**20
"""kRoundLarge: segments for one large request are multiples of it."""


def rounded_bytes(size_bytes: int, power2_divisions: int = 0) -> int:
    """The block size for a request (DeviceCachingAllocator::round_size)."""
    if power2_divisions > 1 and size_bytes > MIN_BLOCK_BYTES * power2_divisions:
        return _up_to_division(size_bytes, power2_divisions)
    return max(round_up(size_bytes, MIN_BLOCK_BYTES), MIN_BLOCK_BYTES)


def segment_bytes(block_bytes: int) -> int:
    """The size of a new segment for a block (get_allocation_size)."""
    if block_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < MIN_LARGE_BYTES:
        return LARGE_SEGMENT_BYTES
    return round_up(block_bytes, LARGE_STEP_BYTES)


def round_up(size_bytes: int, step_bytes: int) -> int:
    """Round up to a multiple of a step."""
    return -(-size_bytes // step_bytes) * step_bytes


def _up_to_division(size_bytes: int, divisions: int) -> int:
    """Round up to a division between two powers of 2 (roundup_power2_next_division)."""
    floor = 1 << (size_bytes.bit_length() - 1)
    if floor == size_bytes:
        return size_bytes
    # The source shifts by the bit length of `divisions`, so 5, 6 and 7 count as 4.
    part = floor >> (divisions.bit_length() - 1)
    return round_up(size_bytes, part) if part else floor * 2


_ADDRESSES: Final = 1 << 60
"""Bytes of addresses of an expandable segment: more than any device has memory for."""


@dataclass(slots=True)
class DeviceMemory:
    """The memory of the device, as far as this allocator may reserve and has reserved it."""

    capacity_bytes: int | None = None
    """``None``: unlimited."""
    reserved_bytes: int = 0
    reserved_peak_bytes: int = 0

    def reserve(self, size_bytes: int) -> bool:
        """Reserve bytes; False: the device has too few left (cudaMalloc, cuMemCreate)."""
        reserved_bytes = self.reserved_bytes + size_bytes
        if self.capacity_bytes is not None and reserved_bytes > self.capacity_bytes:
            return False
        self.reserved_bytes = reserved_bytes
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, reserved_bytes)
        return True

    def release(self, size_bytes: int) -> None:
        """Release bytes (cudaFree, cuMemUnmap)."""
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
        """Allocate a free block for a rounded size; ``None``: none fits (get_free_block)."""
        block = self._best_fit(size_bytes)
        if block is not None:
            self.free.remove(block)
            self._cut(block, size_bytes)
        return block

    def reserved(self, size_bytes: int) -> Block | None:
        """Allocate a block of new memory; ``None``: the device has too little (alloc_block)."""
        block = self._reserve(size_bytes)
        if block is not None:
            self._cut(block, size_bytes)
        return block

    def put_back(self, block: Block) -> Block:
        """Free a block; returns it merged with its free neighbors (free_block)."""
        # Unmapped neighbors are not memory: only mapped ones merge, so a free block is all usable.
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
        """Free bytes of partly used segments (the statistic inactive_split_bytes)."""

    @abstractmethod
    def release(self) -> None:
        """Release all memory that no allocated block shares (release_cached_blocks)."""

    @abstractmethod
    def release_oversize(self, size_bytes: int) -> bool:
        """Release enough oversize blocks, which are never split, for a request.

        False: there are too few (release_available_cached_blocks).
        """

    @abstractmethod
    def layout(self) -> Iterator[tuple[int, ...]]:
        """Block sizes by segment, negative if free. Pools of equal layout behave the same."""

    @abstractmethod
    def _reserve(self, size_bytes: int) -> Block | None:
        """A block of new memory of at least this size, not among the free blocks."""

    @abstractmethod
    def _splits(self, rest_bytes: int, size_bytes: int) -> bool:
        """Whether the rest becomes a block of its own (should_split)."""

    def _cut(self, block: Block, size_bytes: int) -> None:
        """Split a block if the rest is large enough (alloc_found_block)."""
        rest_bytes = block.size_bytes - size_bytes
        if rest_bytes and self._splits(rest_bytes, size_bytes):
            self.free.add(block.cut(size_bytes))
        block.is_free = False

    def _best_fit(self, size_bytes: int) -> Block | None:
        """The smallest free block that fits (get_free_block)."""
        block = self.free.from_size(size_bytes)
        return block if self.max_split_bytes is None else self._unless_oversize(block, size_bytes)

    def _unless_oversize(self, block: Block | None, size_bytes: int) -> Block | None:
        """Reserve oversize blocks for requests of about their size (get_free_block)."""
        # An oversize block is never split, so a small request would waste most of it.
        limit = self.max_split_bytes
        if block is None or limit is None:
            return block
        if size_bytes < limit:
            return None if block.size_bytes >= limit else block
        return None if block.size_bytes >= size_bytes + LARGE_SEGMENT_BYTES else block


@dataclass(slots=True)
class SegmentPool(Pool):
    """A pool in which each segment is one cudaMalloc.

    The best fit depends on addresses, which the driver chooses: here each new segment is above all
    earlier ones.
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
        # One block that is large enough is released alone, else the largest ones until they
        # suffice.
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
        """Release a segment (release_block)."""
        self.free.remove(block)
        self.device.release(block.size_bytes)
        del self.segments[block.address]
        self.num_segments -= 1

    def _reserve(self, size_bytes: int) -> Block | None:
        """One new segment (alloc_block)."""
        # Addresses are never reused: a later segment must not sort below an earlier one.
        segment = segment_bytes(size_bytes)
        if not self.device.reserve(segment):
            return None
        block = self.segments[self.top] = Block(self.top, segment)
        self.top += segment
        self.num_segments += 1
        return block

    def _splits(self, rest_bytes: int, size_bytes: int) -> bool:
        # ``should_split``: blocks of the small pool are split down to the smallest block. A large
        # one keeps a rest of up to kSmallSize, and a request that is oversize keeps all of its
        # block.
        if self.is_small:
            return rest_bytes >= MIN_BLOCK_BYTES
        is_limited = self.max_split_bytes is not None and size_bytes >= self.max_split_bytes
        return rest_bytes > SMALL_BYTES and not is_limited


@dataclass(slots=True)
class ExpandablePool(Pool):
    """A pool of one expandable segment: addresses for the whole device, mapped page by page.

    The blocks cover all addresses without gaps. Allocated and free ones are mapped; unmapped ones
    are in ``unmapped``, and no two of them are neighbors.
    """

    unmapped: list[tuple[int, Block]] = field(default_factory=list)
    """By address (BlockPool::unmapped)."""
    first: Block = field(init=False)
    """The block at the bottom."""

    def __post_init__(self) -> None:
        """Reserve the addresses; no memory is mapped yet."""
        self.first = Block(0, _ADDRESSES, is_mapped=False)
        self.unmapped.append((0, self.first))

    def split_bytes(self) -> int:
        """0: inactive_split_bytes excludes expandable segments: free pages can be unmapped."""
        return 0

    def release(self) -> None:
        """See the base class."""
        for block in self.free:
            self._unmap(block)

    def release_oversize(self, size_bytes: int) -> bool:  # noqa: ARG002 - as in the base
        """False: expandable segments are excluded (release_available_cached_blocks)."""
        return False

    def layout(self) -> Iterator[tuple[int, ...]]:
        """See the base class."""
        yield tuple(_sizes(self.first))

    @property
    def _page_bytes(self) -> int:
        return SMALL_SEGMENT_BYTES if self.is_small else LARGE_SEGMENT_BYTES

    def _best_fit(self, size_bytes: int) -> Block | None:
        """The best fit, counting the memory by which a block can grow (get_free_block)."""
        block = self.free.from_size(size_bytes)
        # A block that could grow far is skipped for a larger one that could grow less, so that room
        # to grow stays available for large requests.
        while block is not None:
            larger = self.free.after(block)
            if larger is None or _growing_bytes(larger) >= _growing_bytes(block):
                break
            block = larger
        return self._unless_oversize(block, size_bytes)

    def _reserve(self, size_bytes: int) -> Block | None:
        """Map pages at unused addresses (try_allocate_expandable_block)."""
        block = self._expandable_block(size_bytes)
        if not block.is_mapped:
            mapped = self._map(block, min(block.size_bytes, size_bytes))
            if mapped is None:
                return None
            block = mapped
        # Mapping merges a block with the free one below it; unmapped pieces follow one another
        # until the block is large enough.
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

    def _expandable_block(self, size_bytes: int) -> Block:
        """The lowest unmapped block that fits, or the free one below it (find_expandable_block)."""
        for _, block in self.unmapped:
            before = block.before
            start = before if before is not None and before.is_free else block
            if _fits(start, size_bytes):
                return start
        return self.unmapped[-1][1]

    def _map(self, block: Block, size_bytes: int) -> Block | None:
        """Map the first pages of a block; returns the free block they are part of (map_block)."""
        mapped_bytes = round_up(size_bytes, self._page_bytes)
        if not self.device.reserve(mapped_bytes):
            return None
        self.num_segments = 1
        self._remove_unmapped(block)
        if mapped_bytes < block.size_bytes:
            rest = block.cut(mapped_bytes)
            insort(self.unmapped, (rest.address, rest))
        block.is_mapped = True
        return self.put_back(block)

    def _unmap(self, block: Block) -> None:
        """Release the pages that lie entirely in a free block (unmap_block)."""
        page_bytes = self._page_bytes
        start = round_up(block.address, page_bytes)
        size_bytes = (block.address + block.size_bytes) // page_bytes * page_bytes - start
        if size_bytes <= 0:
            return
        self.free.remove(block)
        # The ends of the block that share a page with other blocks stay mapped and free.
        if start > block.address:
            above = block.cut(start - block.address)
            self.free.add(block)
            block = above
        if size_bytes < block.size_bytes:
            self.free.add(block.cut(size_bytes))
        self.device.release(size_bytes)
        block.is_free, block.is_mapped = True, False
        self._merge_unmapped(block)

    def _merge_unmapped(self, block: Block) -> None:
        after, before = block.after, block.before
        if after is not None and not after.is_mapped:
            self._remove_unmapped(after)
            block.absorb_after()
        if before is not None and not before.is_mapped:
            self._remove_unmapped(before)
            before.absorb_after()
            block = before
        insort(self.unmapped, (block.address, block))

    def _remove_unmapped(self, block: Block) -> None:
        index = bisect_left(self.unmapped, (block.address,))
        del self.unmapped[index]

    def _splits(self, rest_bytes: int, size_bytes: int) -> bool:  # noqa: ARG002 - as in the base
        return rest_bytes >= MIN_BLOCK_BYTES


def _growing_bytes(block: Block) -> int:
    """Bytes of a block and of the unmapped block above it."""
    above = block.after
    return block.size_bytes + (0 if above is None or above.is_mapped else above.size_bytes)


def _fits(block: Block | None, size_bytes: int) -> bool:
    """Whether the consecutive free and unmapped blocks from here on are large enough."""
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
    """The allocator's settings: PYTORCH_CUDA_ALLOC_CONF."""

    expandable_segments: bool = False
    """``expandable_segments``: one segment per pool that grows page by page."""
    max_split_bytes: int | None = None
    """``max_split_size_mb``: larger blocks are never split; ``None`` sets no limit."""
    power2_divisions: int = 0
    """``roundup_power2_divisions``, one number for all sizes; below 2 it is off."""

    def __post_init__(self) -> None:
        """Refuse what PyTorch refuses (parseMaxSplitSize).

        :raises ValueError: a limit at which the shared segments of 20 MiB could not be split.
        """
        if self.max_split_bytes is not None and self.max_split_bytes <= LARGE_SEGMENT_BYTES:
            msg = f"max_split_bytes must be above {LARGE_SEGMENT_BYTES}, not {self.max_split_bytes}"
            raise ValueError(msg)


class BlockRange(NamedTuple):
    """The address range of a block."""

    is_small: bool
    """In the pool of small blocks."""
    address: int
    size_bytes: int


@dataclass(slots=True)
class CachingAllocator:
    """Serves allocations and frees, with the statistics of `torch.cuda.memory_stats`.

    If the device is out of memory, cached segments are released and the request is retried before
    it fails (DeviceCachingAllocator::malloc).
    """

    config: CachingConfig = field(default_factory=CachingConfig)
    capacity_bytes: int | None = None
    """Memory of the device that the allocator may reserve; ``None``: unlimited."""
    requested_bytes: int = 0
    """requested_bytes.all.current: before rounding."""
    requested_peak_bytes: int = 0
    allocated_bytes: int = 0
    """allocated_bytes.all.current: whole blocks, remainders too small to split off included."""
    allocated_peak_bytes: int = 0
    num_retries: int = 0
    """num_alloc_retries: requests that were retried after the caches were released."""
    _device: DeviceMemory = field(init=False)
    _small: Pool = field(init=False)
    _large: Pool = field(init=False)
    _blocks: dict[int, Block] = field(default_factory=dict)
    _rounded: dict[int, tuple[int, Pool]] = field(default_factory=dict)
    """Rounded bytes and pool by requested bytes: a training step has few distinct sizes."""

    def __post_init__(self) -> None:
        kind = ExpandablePool if self.config.expandable_segments else SegmentPool
        limit = self.config.max_split_bytes
        self._device = DeviceMemory(self.capacity_bytes)
        self._small = kind(is_small=True, device=self._device, max_split_bytes=limit)
        self._large = kind(is_small=False, device=self._device, max_split_bytes=limit)

    @property
    def reserved_bytes(self) -> int:
        """reserved_bytes.all.current: bytes reserved from the device."""
        return self._device.reserved_bytes

    @property
    def reserved_peak_bytes(self) -> int:
        """reserved_bytes.all.peak."""
        return self._device.reserved_peak_bytes

    @property
    def num_segments(self) -> int:
        """Segments reserved from the device; an expandable one counts once."""
        return self._small.num_segments + self._large.num_segments

    @property
    def inactive_split_bytes(self) -> int:
        """Free bytes of partly used segments, which empty_cache cannot release."""
        return self._small.split_bytes() + self._large.split_bytes()

    def layout(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of all blocks by segment: at equal layouts, equal requests get equal blocks."""
        return (*self._small.layout(), (), *self._large.layout())

    def malloc(self, number: int, size_bytes: int) -> None:
        """Allocate a block for `size_bytes`, at least 1, under the id `number` (malloc).

        :raises ValueError: the id is in use.
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
        # Local names: this is the hot path of a search, which serves millions of requests.
        self.requested_peak_bytes = max(self.requested_peak_bytes, requested_bytes)
        self.allocated_bytes = allocated_bytes = self.allocated_bytes + block.size_bytes
        self.allocated_peak_bytes = max(self.allocated_peak_bytes, allocated_bytes)

    def free(self, number: int) -> None:
        """Free the block with the id `number` (free).

        :raises ValueError: no block has this id.
        """
        block = self._blocks.pop(number, None)
        if block is None:
            msg = f"block {number} is freed and was not allocated"
            raise ValueError(msg)
        self.requested_bytes -= block.requested_bytes
        self.allocated_bytes -= block.size_bytes
        # A block's size tells its pool: a block of the small pool is always split to the rounded
        # request, and one of the large pool is at least as large as its request.
        self._pool(block.size_bytes).put_back(block)

    def range_of(self, number: int) -> BlockRange:
        """The address range of the block with the id `number`; each pool starts at address 0."""
        block = self._blocks[number]
        is_small = self._pool(block.size_bytes) is self._small
        return BlockRange(is_small, block.address, block.size_bytes)

    def rename(self, number: int, new_number: int) -> None:
        """Change the id of a block to one that is not in use."""
        self._blocks[new_number] = self._blocks.pop(number)

    def release_cached(self) -> None:
        """Release the memory that no allocated block shares (`torch.cuda.empty_cache`)."""
        self._large.release()
        self._small.release()

    def _retried(self, pool: Pool, rounded: int) -> Block:
        """Release cached memory and retry: oversize blocks first, then everything (malloc).

        :raises OutOfMemoryError: the device still has too little memory.
        """
        # ``release_available_cached_blocks``, then ``release_cached_blocks``; only the second
        # attempt counts as a retry (``alloc_block`` with ``isRetry``).
        if pool.release_oversize(rounded) and (block := pool.reserved(rounded)) is not None:
            return block
        self.release_cached()
        self.num_retries += 1
        found = pool.reserved(rounded)
        if found is None:
            raise OutOfMemoryError
        return found

    def _pool(self, size_bytes: int) -> Pool:
        """The pool of a rounded size (get_pool)."""
        return self._small if size_bytes <= SMALL_BYTES else self._large
