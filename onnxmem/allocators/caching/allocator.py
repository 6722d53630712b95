"""PyTorch's caching allocator of one device and one stream, with its statistics.

Source of every rule: DeviceCachingAllocator of c10/cuda/CUDACachingAllocator.cpp, PyTorch 2; the
function is named at each.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from onnxmem.allocators.caching.blocks import Block
from onnxmem.allocators.caching.pools import DeviceMemory, ExpandablePool, Pool, SegmentPool
from onnxmem.allocators.caching.rounding import LARGE_SEGMENT_BYTES, SMALL_BYTES, rounded_bytes
from onnxmem.program import OutOfMemoryError


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
    """What the device has for the allocator; ``None``: as much as is asked for."""
    asked_bytes: int = 0
    """requested_bytes.all.current: what tensors asked for."""
    asked_peak_bytes: int = 0
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
    """Rounded bytes and pool by the bytes asked for: a step asks for few sizes."""

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
        block.asked_bytes = size_bytes
        self.asked_bytes = asked_bytes = self.asked_bytes + size_bytes
        self.asked_peak_bytes = max(self.asked_peak_bytes, asked_bytes)
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
        self.asked_bytes -= block.asked_bytes
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
