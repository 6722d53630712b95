"""The C library's heap under onnxruntime, emulated for blocks of a KiB and more.

What a process holds after a load is not what is alive in it: freed blocks leave holes that later
ones do not fill. Source: ``malloc/malloc.c`` of glibc 2.36 (2.26 and later behave alike); another C
library, or another allocator preloaded, holds less or more.

* A request is served by the smallest free chunk that holds it, then by the top of the heap
  (``_int_malloc``). If neither does, requests from the mmap threshold on get pages of their own,
  and others let the heap grow (``sysmalloc``).
* Freeing a block with pages of its own gives them back, and raises the threshold to its size, up to
  32 MiB; the trim threshold is twice that (``__libc_free``). So the first large weight that is
  freed decides that later ones of its size leave holes.
* A freed chunk merges with free neighbours; the heap shrinks only at its top, and only from the
  trim threshold on (``_int_free``, ``systrim``). Holes keep their pages.
* onnxruntime asks for tensors aligned to 64 bytes (``AllocatorDefaultAllocAligned``), so a chunk is
  taken 112 bytes too large, and its ends are given back (``_int_memalign``). An end does not merge
  with its neighbours while the thread's cache has it, which keeps seven of a size
  (``tcache_put``), or a small block of the program: a hole between two such ends is too small for
  the very request that left it. How many are kept so is told from outside.

Verified on glibc 2.36, block by block: the same addresses and the same pages.
"""

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from onnxmem.allocators.bfc_arena import ByteRanges

PAGE_BYTES: Final = 4096
DEFAULT_MMAP_THRESHOLD_BYTES: Final = 128 << 10
"""``DEFAULT_MMAP_THRESHOLD_MIN``."""
_MAX_MMAP_THRESHOLD_BYTES: Final = 32 << 20
"""``DEFAULT_MMAP_THRESHOLD_MAX`` of 64-bit machines."""
_TOP_PAD_BYTES: Final = 128 << 10
"""``DEFAULT_TOP_PAD``."""
_CONSOLIDATION_BYTES: Final = 64 << 10
"""``FASTBIN_CONSOLIDATION_THRESHOLD``: smaller frees never shrink the heap."""
_GRAIN_BYTES: Final = 16
"""``MALLOC_ALIGNMENT``; also the head of a chunk."""
_WORD_BYTES: Final = 8
"""``SIZE_SZ``: a chunk's own size lies in it."""
_MIN_CHUNK_BYTES: Final = 32
"""``MINSIZE``."""
_ALIGNMENT_BYTES: Final = 64
"""``kAllocAlignment`` of onnxruntime's CPU allocator."""
CACHED_ENDS: Final = 7
"""``TCACHE_FILL_COUNT``."""


@dataclass(slots=True, eq=False)
class Block:
    """Bytes that were asked for."""

    address: int | None
    """In the heap; ``None``: pages of its own."""
    size_bytes: int
    """Of the whole chunk, or of its pages."""
    touched_bytes: int = 0
    """Of a block with pages of its own."""


@dataclass(slots=True)
class SystemHeap:
    """Chunks of the main heap, and what of it and beside it has pages."""

    mmap_threshold_bytes: int = DEFAULT_MMAP_THRESHOLD_BYTES
    kept_ends: int = CACHED_ENDS
    """Of each size: ends that never merge."""
    mapped_bytes: int = 0
    """Touched, of blocks with pages of their own."""
    _top: int = 0
    _end: int = 0
    _touched: ByteRanges = field(default_factory=ByteRanges)
    _free: list[tuple[int, int]] = field(default_factory=list)
    """Size and address of the free chunks below the top."""
    _free_from: dict[int, int] = field(default_factory=dict)
    """Their sizes by address."""
    _free_to: dict[int, int] = field(default_factory=dict)
    """Their addresses by end."""
    _kept: Counter[int] = field(default_factory=Counter)
    """Ends of aligned chunks that are kept, by size."""
    _loose: list[tuple[int, int]] = field(default_factory=list)
    """Address and size of those that may still be given back."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of the pages that were ever written and are still the process's."""
        return self.mapped_bytes + self._touched.num_bytes

    def copied(self) -> "SystemHeap":
        """The same heap, which changes apart from this one."""
        return replace(
            self,
            _touched=ByteRanges([*self._touched.starts], [*self._touched.stops]),
            _free=[*self._free],
            _free_from={**self._free_from},
            _free_to={**self._free_to},
            _kept=self._kept.copy(),
            _loose=[*self._loose],
        )

    def allocate(self, size_bytes: int, *, is_aligned: bool = False) -> Block:
        """Take a block that nobody has written to yet."""
        needed = _chunk_bytes(size_bytes)
        asked = _chunk_bytes(needed + _ALIGNMENT_BYTES + _MIN_CHUNK_BYTES) if is_aligned else needed
        taken = self._taken(asked)
        if taken is None and asked >= self.mmap_threshold_bytes:
            return Block(None, _up(asked + _WORD_BYTES, PAGE_BYTES))
        address, size = self._grown(asked) if taken is None else taken
        return self._aligned(address, size, needed) if is_aligned else Block(address, size)

    def touch(self, block: Block, size_bytes: int) -> None:
        """Write the first bytes of a block."""
        if block.address is None:
            touched = min(_up(size_bytes, PAGE_BYTES), block.size_bytes)
            self.mapped_bytes += max(0, touched - block.touched_bytes)
            block.touched_bytes = max(touched, block.touched_bytes)
        elif size_bytes:
            stop = block.address + min(size_bytes + _GRAIN_BYTES, block.size_bytes)
            first = block.address // PAGE_BYTES * PAGE_BYTES
            self._touched.add(first, _up(stop, PAGE_BYTES))

    def free(self, block: Block) -> None:
        """Give a block back."""
        if block.address is None:
            self.mapped_bytes -= block.touched_bytes
            if self.mmap_threshold_bytes < block.size_bytes <= _MAX_MMAP_THRESHOLD_BYTES:
                self.mmap_threshold_bytes = block.size_bytes
            return
        if self._merged(block.address, block.size_bytes) >= _CONSOLIDATION_BYTES:
            self._trim()

    def fix_ends(self) -> None:
        """Let the ends that are kept by now be kept for good."""
        self._loose.clear()

    def give_ends_back(self) -> None:
        """Free the kept ends that are not fixed: what had taken them is gone."""
        for start, end_bytes in self._loose:
            self._kept[end_bytes] -= 1
            self._merged(start, end_bytes)
        self._loose.clear()

    def _taken(self, needed: int) -> tuple[int, int] | None:
        """A chunk of the heap, off a free one or off the top."""
        index = bisect_left(self._free, (needed, 0))
        if index < len(self._free):
            size, address = self._free[index]
            self._forget(address, size)
            if size - needed < _MIN_CHUNK_BYTES:
                return address, size
            self._keep(address + needed, size - needed)
            return address, needed
        if self._end - self._top < needed + _MIN_CHUNK_BYTES:
            return None
        self._top += needed
        return self._top - needed, needed

    def _grown(self, needed: int) -> tuple[int, int]:
        lacking = needed + _TOP_PAD_BYTES + _MIN_CHUNK_BYTES - (self._end - self._top)
        self._end += _up(lacking, PAGE_BYTES)
        self._top += needed
        return self._top - needed, needed

    def _aligned(self, address: int, size: int, needed: int) -> Block:
        """The part of a chunk that begins at a multiple of the alignment; its ends go back."""
        lead = -(address + _GRAIN_BYTES) % _ALIGNMENT_BYTES
        if 0 < lead < _MIN_CHUNK_BYTES:
            lead += _ALIGNMENT_BYTES
        rest = size - lead - needed
        block = Block(address + lead, needed)
        if rest <= _MIN_CHUNK_BYTES:
            block.size_bytes += rest
            rest = 0
        for start, end_bytes in ((address, lead), (address + lead + needed, rest)):
            if end_bytes and self._kept[end_bytes] < self.kept_ends:
                self._kept[end_bytes] += 1
                self._loose.append((start, end_bytes))
            elif end_bytes:
                self._merged(start, end_bytes)
        return block

    def _merged(self, address: int, size: int) -> int:
        """Free a chunk; the bytes of the free chunk, or of the top, that it is then part of."""
        before = self._free_to.get(address)
        if before is not None:
            self._forget(before, address - before)
            address, size = before, size + address - before
        if address + size == self._top:
            self._top = address
            return self._end - self._top
        after = self._free_from.get(address + size)
        if after is not None:
            self._forget(address + size, after)
            size += after
        self._keep(address, size)
        return size

    def _trim(self) -> None:
        """Give the pages of a large top back."""
        top_bytes = self._end - self._top
        threshold = self.mmap_threshold_bytes
        if threshold > DEFAULT_MMAP_THRESHOLD_BYTES:
            threshold *= 2
        if top_bytes < threshold:
            return
        spare = (top_bytes - _TOP_PAD_BYTES - _MIN_CHUNK_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
        self._end -= max(spare, 0)
        _cut(self._touched, self._end)

    def _keep(self, address: int, size: int) -> None:
        insort(self._free, (size, address))
        self._free_from[address] = size
        self._free_to[address + size] = address

    def _forget(self, address: int, size: int) -> None:
        self._free.pop(bisect_left(self._free, (size, address)))
        del self._free_from[address]
        del self._free_to[address + size]


def _cut(ranges: ByteRanges, end: int) -> None:
    while ranges.starts and ranges.starts[-1] >= end:
        ranges.starts.pop()
        ranges.stops.pop()
    if ranges.stops:
        ranges.stops[-1] = min(ranges.stops[-1], end)


def _chunk_bytes(size_bytes: int) -> int:
    """``checked_request2size``."""
    return max(_MIN_CHUNK_BYTES, _up(size_bytes + _WORD_BYTES, _GRAIN_BYTES))


def _up(size_bytes: int, multiple: int) -> int:
    return -(-size_bytes // multiple) * multiple
