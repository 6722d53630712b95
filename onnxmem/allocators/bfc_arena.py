"""onnxruntime's arena (``BFCArena``), emulated chunk by chunk.

Source: ``core/framework/bfc_arena.cc`` and ``.h`` of onnxruntime 1.31:

* A request is rounded up to 256 bytes (``RoundedBytes``).
* The smallest free chunk that fits serves it, of equal ones the one at the lowest address
  (``FindChunkPtr``; bins only speed up the search).
* A chunk is split if it is at least twice the request, or if 128 MiB would be left unused
  (``SplitChunk``). So the allocated chunks may hold nearly twice what was requested.
* If no chunk fits, the arena adds a region (``Extend``). With ``kNextPowerOfTwo``, the default, its
  size starts at 1 MiB and doubles until the request fits; a region that fits without doubling
  doubles the next one, up to 1 GiB. With ``kSameAsRequested`` it is the request.
* If the device has too little memory for a region, the arena tries nine tenths of it, repeatedly,
  while the request still fits and 8 KiB remain (``Extend``, ``kBackpedalFactor``).
* A freed chunk merges with its free neighbors in the region (``FreeAndMaybeCoalesce``).
* Regions are freed only by ``Shrink``: those without an allocated chunk, except the first one with
  ``kNextPowerOfTwo``.
* Weights are reserved outside the regions, without rounding (``Reserve``).
"""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import Final

from onnxmem.program.replay import OutOfMemoryError

MINIMUM_BYTES: Final = 256
"""``kMinAllocationSize``."""
_MIB: Final = 1 << 20
_NO_LIMIT: Final = (1 << 63) - 1
_BACKPEDAL: Final = 0.8999999761581421
"""``kBackpedalFactor``: 0.9 as a float of 32 bits."""
# ``BFCArena::Extend`` gives up below this size, as it does below that of the request.
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
    """A chunk that would leave at least this much unused is split."""
    max_growth_bytes: int = 1024 * _MIB
    """``max_power_of_two_extend_bytes``."""
    limit_bytes: int = _NO_LIMIT
    """``gpu_mem_limit``."""
    capacity_bytes: int = _NO_LIMIT
    """Memory of the device for regions and ``reserve``."""
    mapped_from_bytes: int | None = None
    """The C library maps regions of at least this size separately, and Linux puts each mapping
    below the previous one. Smaller regions have rising addresses; ``None``: all of them do."""


@dataclass(slots=True, eq=False)
class Chunk:
    """Consecutive bytes of one region, linked to its neighbors (``BFCArena::Chunk``)."""

    address: int
    size_bytes: int
    region: int
    requested_bytes: int | None = None
    """``None``: the chunk is free."""
    before: "Chunk | None" = None
    after: "Chunk | None" = None


@dataclass(frozen=True, slots=True)
class FreedRegion:
    """A region that a shrink gave back."""

    size_bytes: int
    resident_bytes: int
    num_before: int
    """How many regions had been added by then."""


@dataclass(slots=True)
class ByteRanges:
    """A union of half-open byte ranges, disjoint and sorted."""

    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)

    def add(self, start: int, stop: int) -> int:
        """Add a range to the union; how many bytes of it were not there before."""
        first = bisect_left(self.stops, start)
        # The common case: an allocation of the same size was here before.
        if first < len(self.stops) and self.starts[first] <= start and stop <= self.stops[first]:
            return 0
        # Every range that overlaps or touches the new one becomes part of it, so that the ranges
        # stay disjoint: they are those from `first` up to `last`.
        last = first
        while last < len(self.starts) and self.starts[last] <= stop:
            last += 1
        before = sum(self.stops[first:last]) - sum(self.starts[first:last])
        if first < last:
            start = min(start, self.starts[first])
            stop = max(stop, self.stops[last - 1])
        self.starts[first:last] = [start]
        self.stops[first:last] = [stop]
        return stop - start - before

    def remove(self, start: int, stop: int) -> None:
        """Remove a range from the union."""
        first = bisect_right(self.stops, start)
        last = bisect_left(self.starts, stop)
        if first >= last:
            return
        # What is left of the first and of the last range that overlap the removed one.
        head, tail = self.starts[first], self.stops[last - 1]
        left = [(head, start)] if head < start else []
        left += [(stop, tail)] if stop < tail else []
        self.starts[first:last] = [each for each, _ in left]
        self.stops[first:last] = [each for _, each in left]

    @property
    def num_bytes(self) -> int:
        """Bytes of the union."""
        return sum(self.stops) - sum(self.starts)


@dataclass(slots=True)
class BfcArena:
    """The chunks and statistics of one arena, in bytes; an ``Allocator``.

    The chunks of a region cover it without gaps, linked in the order of their addresses, and no two
    free chunks are neighbors.
    """

    options: ArenaOptions = field(default_factory=ArenaOptions)
    requested_bytes: int = 0
    in_use_bytes: int = 0
    """Allocated chunks (``bytes_in_use`` of ``AllocatorStats``)."""
    in_use_peak_bytes: int = 0
    requested_peak_bytes: int = 0
    reserved_bytes: int = 0
    """Regions, and what is reserved outside them (``total_allocated_bytes``)."""
    reserved_peak_bytes: int = 0
    num_retries: int = 0
    """Regions that are smaller than planned because the device had too little memory."""
    regions: dict[int, int] = field(default_factory=dict)
    """Size of each region, by number."""
    resident: dict[int, ByteRanges] = field(default_factory=dict)
    """The bytes of each region that were ever requested, and are resident once written. The rest of
    a chunk that is larger than its request is never written."""
    freed: dict[int, FreedRegion] = field(default_factory=dict)
    """The regions that shrinks gave back, by number."""
    threads: dict[int, int] = field(default_factory=dict)
    """The thread that added each region, by the region's number."""
    thread: int = 0
    """The one that requests now."""
    new_bytes: int = 0
    """Of the last request, the bytes that none had before in its region."""
    _in_use: dict[int, Chunk] = field(default_factory=dict)
    """The chunk of each live request, by the request's number."""
    _free: list[tuple[int, int]] = field(default_factory=list)
    """Size and address of the free chunks, sorted: best fit, then lowest address."""
    _chunks: dict[int, Chunk] = field(default_factory=dict)
    """All chunks, by address."""
    growth_bytes: int = field(init=False)
    """Size of the next region, before a request for more doubles it."""
    _num_regions: int = 0

    def __post_init__(self) -> None:
        self.growth_bytes = _rounded_up(min(self.options.initial_bytes, self.options.limit_bytes))

    def reserve(self, size_bytes: int) -> None:
        """Reserve bytes outside the regions, as for weights (``Reserve``).

        :raises OutOfMemoryError: the device has too little memory.
        """
        if size_bytes > self.options.capacity_bytes - self.reserved_bytes:
            raise OutOfMemoryError
        self._count_reserved(size_bytes)
        self.requested_bytes += size_bytes
        self._count_allocated(size_bytes)

    def malloc(self, number: int, size_bytes: int) -> None:
        """Serve a request for at least one byte (``AllocateRawInternal``).

        :raises OutOfMemoryError: the limit is reached, or the device is full.
        """
        rounded = _rounded_up(size_bytes)
        chunk = self._find_chunk(rounded) or self._extend(rounded)
        # FindChunkPtr: a small remainder stays with the chunk, for it would fragment the arena.
        if chunk.size_bytes >= 2 * rounded or (
            chunk.size_bytes - rounded >= self.options.max_dead_bytes
        ):
            self._split(chunk, rounded)
        chunk.requested_bytes = size_bytes
        self._in_use[number] = chunk
        self.requested_bytes += size_bytes
        self._count_allocated(chunk.size_bytes)
        if chunk.region not in self.resident:
            self.resident[chunk.region] = ByteRanges()
        stop = chunk.address + size_bytes
        self.new_bytes = self.resident[chunk.region].add(chunk.address, stop)

    def free(self, number: int) -> None:
        """Free the chunk of a request and merge it with its free neighbors
        (``FreeAndMaybeCoalesce``).
        """
        chunk = self._in_use.pop(number)
        self.requested_bytes -= chunk.requested_bytes or 0
        self.in_use_bytes -= chunk.size_bytes
        chunk.requested_bytes = None
        if chunk.after is not None and chunk.after.requested_bytes is None:
            self._remove_free(chunk.after)
            self._merge(chunk, chunk.after)
        if chunk.before is not None and chunk.before.requested_bytes is None:
            self._remove_free(chunk.before)
            self._merge(chunk.before, chunk)
            chunk = chunk.before
        # The order of ``Bin::ChunkComparator``: by size, then by address.
        insort(self._free, (chunk.size_bytes, chunk.address))

    def rename(self, number: int, new_number: int) -> None:
        """Give the chunk of a request another number."""
        self._in_use[new_number] = self._in_use.pop(number)

    def layout(self) -> object:
        """Allocated chunks, free chunks, regions, and the size of the next region.

        Arenas of equal layout serve the same requests in the same way.
        """
        chunks = sorted((number, each.address) for number, each in self._in_use.items())
        return chunks, [*self._free], {**self.regions}, self.growth_bytes

    def chunk(self, number: int) -> Chunk:
        """The chunk that serves a request."""
        return self._in_use[number]

    def shrink(self) -> None:
        """Free the regions without an allocated chunk (``Shrink``)."""
        # Free neighbors are always merged, so a region is unused if one free chunk has its size.
        unused = [
            chunk
            for chunk in (self._chunks[address] for _, address in self._free)
            if chunk.size_bytes == self.regions[chunk.region]
            and not (self.options.doubles and chunk.region == 0)
        ]
        for chunk in unused:
            self._remove_free(chunk)
            del self._chunks[chunk.address]
            size_bytes = self.regions.pop(chunk.region)
            self.reserved_bytes -= size_bytes
            resident = self.resident.pop(chunk.region, ByteRanges())
            freed = FreedRegion(size_bytes, resident.num_bytes, self._num_regions)
            self.freed[chunk.region] = freed
        self.growth_bytes = self.options.growth_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of the regions that were ever requested, and are resident."""
        return sum(ranges.num_bytes for ranges in self.resident.values())

    def restart_peaks(self) -> None:
        """Count peaks from what there is now."""
        self.reserved_peak_bytes = self.reserved_bytes
        self.in_use_peak_bytes = self.in_use_bytes
        self.requested_peak_bytes = self.requested_bytes

    def _count_reserved(self, size_bytes: int) -> None:
        self.reserved_bytes += size_bytes
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)

    def _count_allocated(self, size_bytes: int) -> None:
        self.in_use_bytes += size_bytes
        self.in_use_peak_bytes = max(self.in_use_peak_bytes, self.in_use_bytes)
        self.requested_peak_bytes = max(self.requested_peak_bytes, self.requested_bytes)

    def _find_chunk(self, rounded: int) -> Chunk | None:
        """Take the best fit out of the free chunks (``FindChunkPtr``)."""
        index = bisect_left(self._free, (rounded, 0))
        return self._chunks[self._free.pop(index)[1]] if index < len(self._free) else None

    def _extend(self, rounded: int) -> Chunk:
        """Add a region, which is one chunk, and not free (``Extend``)."""
        available = self.options.limit_bytes - self.reserved_bytes
        available -= available % MINIMUM_BYTES
        if rounded > available:
            raise OutOfMemoryError
        # A region that would exceed the limit is cut to what is left of it.
        size = self._backpedaled(min(self._next_region_bytes(rounded), available), rounded)
        number = self._num_regions
        self._num_regions += 1
        self.regions[number] = size
        self.threads[number] = self.thread
        self._count_reserved(size)
        chunk = Chunk(self._region_address(number, size), size, number)
        self._chunks[chunk.address] = chunk
        return chunk

    def _backpedaled(self, size: int, rounded: int) -> int:
        """Reduce a region to what the device has left (``Extend``, ``kBackpedalFactor``)."""
        left = self.options.capacity_bytes - self.reserved_bytes
        if size <= left:
            return size
        while size > left:
            # Each attempt is rounded up, so the sizes are not plain powers of 0.9.
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
        """The size of a new region before limits apply (``Extend``)."""
        if not self.options.doubles:
            return rounded
        size = self.growth_bytes
        while rounded > size:
            size *= 2
        limit = self.options.max_growth_bytes
        # A size that had to be doubled for this request stays; one that fits doubles for the next.
        if size > self.growth_bytes:
            self.growth_bytes = size
        else:
            self.growth_bytes = 2 * size if size < limit // 2 else limit
        return size

    def _split(self, chunk: Chunk, rounded: int) -> None:
        """Cut a chunk to a size; the rest becomes a free chunk above it (``SplitChunk``)."""
        rest = Chunk(chunk.address + rounded, chunk.size_bytes - rounded, chunk.region)
        rest.before, rest.after = chunk, chunk.after
        if chunk.after is not None:
            chunk.after.before = rest
        chunk.after = rest
        chunk.size_bytes = rounded
        self._chunks[rest.address] = rest
        insort(self._free, (rest.size_bytes, rest.address))

    def _merge(self, chunk: Chunk, after: Chunk) -> None:
        """Make two neighbors one chunk (``Merge``)."""
        chunk.size_bytes += after.size_bytes
        chunk.after = after.after
        if after.after is not None:
            after.after.before = chunk
        del self._chunks[after.address]

    def _remove_free(self, chunk: Chunk) -> None:
        self._free.pop(bisect_left(self._free, (chunk.size_bytes, chunk.address)))


_REGION_BITS: Final = 48
"""Regions have made-up addresses, in the order of the real ones: only their order matters."""
_FIRST_MAPPED: Final = 1 << 24
"""Above all regions of the heap; each mapped region is below the previous one."""


def _rounded_up(size_bytes: int) -> int:
    return -(-size_bytes // MINIMUM_BYTES) * MINIMUM_BYTES
