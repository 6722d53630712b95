"""The arena that onnxruntime allocates from, emulated chunk by chunk.

Source: ``core/framework/bfc_arena.cc`` and ``.h`` of onnxruntime 1.31:

* requests are rounded up to 256 bytes (``RoundedBytes``);
* the smallest free chunk that holds a request serves it, the lowest address first among equals
  (``FindChunkPtr``; bins only speed that up);
* a chunk is split if it is twice the request or leaves 128 MiB over (``SplitChunk``), so what is in
  use may be nearly twice what was requested;
* where no chunk fits, a region is added: by default of the region size, which starts at 1 MiB and
  doubles until the request fits; after a region that fitted at once it doubles up to 1 GiB
  (``Extend``, ``kNextPowerOfTwo``), or else of just the request (``kSameAsRequested``);
* where the device has too little left for a region, nine tenths of it are tried, again and again,
  as long as the request fits and 8 KiB are left (``Extend``, ``kBackpedalFactor``);
* freed chunks merge with free neighbors of their region (``FreeAndMaybeCoalesce``);
* regions stay until the arena shrinks, which frees wholly unused ones, but never the first one
  where regions double (``Shrink``);
* weights are reserved beside the regions, byte for byte (``Reserve``).
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Final

from onnxmem.program.replay import OutOfMemoryError

MINIMUM_BYTES: Final = 256
"""``kMinAllocationSize``."""
_MIB: Final = 1 << 20
_NO_LIMIT: Final = (1 << 63) - 1
_BACKPEDAL: Final = 0.8999999761581421
"""``kBackpedalFactor``: 0.9 as a float of 32 bits."""
_LEAST_REGION_BYTES: Final = 8 * 1024


@dataclass(frozen=True, slots=True)
class ArenaOptions:
    """``OrtArenaCfg``, with its defaults."""

    doubles: bool = True
    """``arena_extend_strategy`` kNextPowerOfTwo; else kSameAsRequested."""
    initial_bytes: int = _MIB
    growth_bytes: int = 2 * _MIB
    """Region size after a shrink."""
    max_dead_bytes: int = 128 * _MIB
    """A chunk that would leave more than this unused is split."""
    max_growth_bytes: int = 1024 * _MIB
    """``max_power_of_two_extend_bytes``."""
    limit_bytes: int = _NO_LIMIT
    """``gpu_mem_limit``."""
    capacity_bytes: int = _NO_LIMIT
    """What the device has for regions and reserved bytes."""
    mapped_from_bytes: int | None = None
    """Regions of this size and more get pages of their own from the C library, and Linux puts each
    mapping below the last one; smaller ones, or without it all, stand in the order of making."""


@dataclass(slots=True, eq=False)
class Chunk:
    """Consecutive bytes of one region."""

    address: int
    size_bytes: int
    region: int
    requested_bytes: int | None = None
    """``None``: free."""
    before: "Chunk | None" = None
    after: "Chunk | None" = None


@dataclass(slots=True)
class TouchedRanges:
    """What of a region was ever written, and is resident: a union of half-open byte ranges."""

    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)

    def add(self, start: int, stop: int) -> None:
        """Join a range to the union."""
        first = bisect_left(self.stops, start)
        # Most chunks serve again where one of their size has served before.
        if first < len(self.stops) and self.starts[first] <= start and stop <= self.stops[first]:
            return
        last = first
        while last < len(self.starts) and self.starts[last] <= stop:
            last += 1
        if first < last:
            start = min(start, self.starts[first])
            stop = max(stop, self.stops[last - 1])
        self.starts[first:last] = [start]
        self.stops[first:last] = [stop]

    @property
    def num_bytes(self) -> int:
        """Bytes of the union."""
        return sum(self.stops) - sum(self.starts)


@dataclass(slots=True)
class BfcArena:
    """The chunks of one arena and what it counts, in bytes; an ``Allocator``."""

    options: ArenaOptions = field(default_factory=ArenaOptions)
    requested_bytes: int = 0
    in_use_bytes: int = 0
    in_use_peak_bytes: int = 0
    requested_peak_bytes: int = 0
    reserved_bytes: int = 0
    """Regions, and what is reserved beside them."""
    reserved_peak_bytes: int = 0
    num_retries: int = 0
    """Regions that were made smaller because the device had too little left."""
    regions: dict[int, int] = field(default_factory=dict)
    """Size of each region, by number."""
    touched: dict[int, TouchedRanges] = field(default_factory=dict)
    """What of each region was ever requested: a chunk may be larger than what is written to it."""
    _in_use: dict[int, Chunk] = field(default_factory=dict)
    """By the number of the request that each serves."""
    _free: list[tuple[int, int]] = field(default_factory=list)
    """Size and address of the free chunks."""
    _chunks: dict[int, Chunk] = field(default_factory=dict)
    _growth_bytes: int = field(init=False)
    _num_regions: int = 0

    def __post_init__(self) -> None:
        self._growth_bytes = _rounded_up(min(self.options.initial_bytes, self.options.limit_bytes))

    def reserve(self, size_bytes: int) -> None:
        """Hold bytes beside the regions, as for weights.

        :raises OutOfMemoryError: the device has fewer.
        """
        if size_bytes > self.options.capacity_bytes - self.reserved_bytes:
            raise OutOfMemoryError
        self._hold(size_bytes)
        self.requested_bytes += size_bytes
        self._use(size_bytes)

    def malloc(self, number: int, size_bytes: int) -> None:
        """Serve a request for at least one byte.

        :raises OutOfMemoryError: the limit is reached, or the device is full.
        """
        rounded = _rounded_up(size_bytes)
        chunk = self._taken(rounded) or self._extended(rounded)
        if chunk.size_bytes >= 2 * rounded or (
            chunk.size_bytes - rounded >= self.options.max_dead_bytes
        ):
            self._split(chunk, rounded)
        chunk.requested_bytes = size_bytes
        self._in_use[number] = chunk
        self.requested_bytes += size_bytes
        self._use(chunk.size_bytes)
        if chunk.region not in self.touched:
            self.touched[chunk.region] = TouchedRanges()
        self.touched[chunk.region].add(chunk.address, chunk.address + size_bytes)

    def free(self, number: int) -> None:
        """Free the chunk of a request and merge it with its free neighbors."""
        chunk = self._in_use.pop(number)
        self.requested_bytes -= chunk.requested_bytes or 0
        self.in_use_bytes -= chunk.size_bytes
        chunk.requested_bytes = None
        if chunk.after is not None and chunk.after.requested_bytes is None:
            self._forget(chunk.after)
            self._merge(chunk, chunk.after)
        if chunk.before is not None and chunk.before.requested_bytes is None:
            self._forget(chunk.before)
            self._merge(chunk.before, chunk)
            chunk = chunk.before
        insort(self._free, (chunk.size_bytes, chunk.address))

    def rename(self, number: int, new_number: int) -> None:
        """Give the chunk of a request another number."""
        self._in_use[new_number] = self._in_use.pop(number)

    def layout(self) -> object:
        """Where each chunk lies and what is free, and how large the next region is."""
        chunks = sorted((number, each.address) for number, each in self._in_use.items())
        return chunks, [*self._free], {**self.regions}, self._growth_bytes

    def chunk(self, number: int) -> Chunk:
        """The chunk that serves a request."""
        return self._in_use[number]

    def shrink(self) -> None:
        """Free the regions of which nothing is in use."""
        whole = [
            chunk
            for chunk in (self._chunks[address] for _, address in self._free)
            if chunk.size_bytes == self.regions[chunk.region]
            and not (self.options.doubles and chunk.region == 0)
        ]
        for chunk in whole:
            self._forget(chunk)
            del self._chunks[chunk.address]
            self.reserved_bytes -= self.regions.pop(chunk.region)
            self.touched.pop(chunk.region, None)
        self._growth_bytes = self.options.growth_bytes

    @property
    def touched_bytes(self) -> int:
        """Bytes of the regions that were ever requested: what of them is resident."""
        return sum(ranges.num_bytes for ranges in self.touched.values())

    def _hold(self, size_bytes: int) -> None:
        self.reserved_bytes += size_bytes
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)

    def _use(self, size_bytes: int) -> None:
        self.in_use_bytes += size_bytes
        self.in_use_peak_bytes = max(self.in_use_peak_bytes, self.in_use_bytes)
        self.requested_peak_bytes = max(self.requested_peak_bytes, self.requested_bytes)

    def _taken(self, rounded: int) -> Chunk | None:
        index = bisect_left(self._free, (rounded, 0))
        return self._chunks[self._free.pop(index)[1]] if index < len(self._free) else None

    def _extended(self, rounded: int) -> Chunk:
        available = self.options.limit_bytes - self.reserved_bytes
        available -= available % MINIMUM_BYTES
        if rounded > available:
            raise OutOfMemoryError
        size = self._given(min(self._next_region_bytes(rounded), available), rounded)
        number = self._num_regions
        self._num_regions += 1
        self.regions[number] = size
        self._hold(size)
        chunk = Chunk(self._region_address(number, size), size, number)
        self._chunks[chunk.address] = chunk
        return chunk

    def _given(self, size: int, rounded: int) -> int:
        """Bytes of a region that the device has: less than requested where it is nearly full."""
        left = self.options.capacity_bytes - self.reserved_bytes
        if size <= left:
            return size
        while size > left:
            size = _rounded_up(int(size * _BACKPEDAL))
            if size < rounded or size < _LEAST_REGION_BYTES:
                raise OutOfMemoryError
        self.num_retries += 1
        return size

    def _region_address(self, number: int, size_bytes: int) -> int:
        mapped_from = self.options.mapped_from_bytes
        is_mapped = mapped_from is not None and size_bytes >= mapped_from
        return (_FIRST_MAPPED - number if is_mapped else number) << _REGION_BITS

    def _next_region_bytes(self, rounded: int) -> int:
        """Double until the request fits; a region that fitted at once doubles the next one."""
        if not self.options.doubles:
            return rounded
        size = self._growth_bytes
        while rounded > size:
            size *= 2
        limit = self.options.max_growth_bytes
        if size > self._growth_bytes:
            self._growth_bytes = size
        else:
            self._growth_bytes = 2 * size if size < limit // 2 else limit
        return size

    def _split(self, chunk: Chunk, rounded: int) -> None:
        rest = Chunk(chunk.address + rounded, chunk.size_bytes - rounded, chunk.region)
        rest.before, rest.after = chunk, chunk.after
        if chunk.after is not None:
            chunk.after.before = rest
        chunk.after = rest
        chunk.size_bytes = rounded
        self._chunks[rest.address] = rest
        insort(self._free, (rest.size_bytes, rest.address))

    def _merge(self, chunk: Chunk, after: Chunk) -> None:
        chunk.size_bytes += after.size_bytes
        chunk.after = after.after
        if after.after is not None:
            after.after.before = chunk
        del self._chunks[after.address]

    def _forget(self, chunk: Chunk) -> None:
        self._free.pop(bisect_left(self._free, (chunk.size_bytes, chunk.address)))


_REGION_BITS: Final = 48
"""A region's address is not a real one, but keeps the order of the real ones."""
_FIRST_MAPPED: Final = 1 << 24
"""Above the heap, and above as many regions as may follow."""


def _rounded_up(size_bytes: int) -> int:
    return -(-size_bytes // MINIMUM_BYTES) * MINIMUM_BYTES
