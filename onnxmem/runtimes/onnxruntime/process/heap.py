"""The C library's heap under onnxruntime, emulated for blocks of at least 1 KiB.

The resident memory of a process after a load exceeds its live blocks: freed blocks leave holes that
later blocks do not fill. Source: ``malloc/malloc.c`` of glibc 2.36 (2.26 and later behave the
same); other C libraries and preloaded allocators differ.

* The smallest free chunk that fits serves a request, or else the top of the heap
  (``_int_malloc``). If neither fits, a request of at least the mmap threshold is mapped, and a
  smaller one extends the heap (``sysmalloc``).
* Freeing a mapped block unmaps it and raises the threshold to its size, up to 32 MiB; the trim
  threshold is twice that (``__libc_free``). So the first large weight that is freed makes later
  ones of its size leave holes.
* A freed chunk merges with free neighbors. The heap shrinks only at its top, and only by at least
  the trim threshold (``_int_free``, ``systrim``). Holes remain resident.
* onnxruntime requests tensors aligned to 64 bytes (``AllocatorDefaultAllocAligned``), so a chunk is
  allocated 112 bytes too large, and its ends are freed (``_int_memalign``). An end does not merge
  while it is in the thread's cache, which has seven of a size (``tcache_put``), or while a small
  block of the program occupies it. A hole between two such ends is too small for the very request
  that left it. ``unmerged_ends`` is the number of such ends per size.
* A process that sets ``MALLOC_MMAP_THRESHOLD_`` or ``MALLOC_TRIM_THRESHOLD_`` keeps both thresholds
  for good (``do_set_mmap_threshold``). ``malloc_trim`` returns the whole pages of all free chunks
  and of the top (``mtrim``); the chunks stay, and a later block in one has new pages.
* Each further thread has an arena of its own (``arena_get2``), so it fills no hole that another
  thread left. Such an arena consists of heaps of up to 64 MiB, the last of which grows
  (``sysmalloc``). What is freed returns to the arena it came from; a heap that becomes empty is
  unmapped, and the last one shrinks at its top as the main one does (``heap_trim``). The thresholds
  are those of the process.

Verified on glibc 2.36, block by block: equal addresses and equal pages. Of arenas of several
heaps, 7 of 8 sequences of 200 steps in three threads were equal; one kept 45 MiB longer.
"""

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from onnxmem.allocators.bfc_arena import ByteRanges

PAGE_BYTES: Final = 4096
DEFAULT_MMAP_THRESHOLD_BYTES: Final = 128 << 10
"""``DEFAULT_MMAP_THRESHOLD_MIN``."""
MAX_MMAP_THRESHOLD_BYTES: Final = 32 << 20
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
_HEAD_BYTES: Final = 48
"""``sizeof (struct malloc_chunk)``: what a free chunk keeps in its first page."""
_ALIGNMENT_BYTES: Final = 64
"""``kAllocAlignment`` of onnxruntime's CPU allocator."""
CACHED_ENDS: Final = 7
"""``TCACHE_FILL_COUNT``."""
_THREAD_HEAP_BYTES: Final = 64 << 20
"""``HEAP_MAX_SIZE`` of 64-bit machines."""
_HEAP_INFO_BYTES: Final = 48
"""``sizeof (heap_info)``, in front of the chunks of a thread's heap."""
_ARENA_BYTES: Final = 2208
"""``sizeof (struct malloc_state)``, up to the next chunk: in a thread's first heap, after that."""


@dataclass(slots=True, eq=False)
class Block:
    """An allocated block."""

    address: int | None
    """In the heap; ``None``: mapped."""
    size_bytes: int
    """Of the whole chunk, or of the mapped pages."""
    resident_bytes: int = 0
    """Of a mapped block."""


@dataclass(slots=True)
class SystemHeap:
    """The chunks of the heap, and the resident pages of it and of mapped blocks.

    All addresses from 0 to ``_top`` belong to chunks, and no two free ones are adjacent, except for
    unmerged ends. From ``_top`` to ``_end`` the heap is free.
    """

    mmap_threshold_bytes: int = DEFAULT_MMAP_THRESHOLD_BYTES
    adapts: bool = True
    """False: the environment fixes the threshold, and a trim threshold of the same size."""
    unmerged_ends: int = CACHED_ENDS
    """So many ends of each size do not merge."""
    mapped_bytes: int = 0
    """Resident bytes of mapped blocks."""
    _top: int = 0
    _end: int = 0
    _resident: ByteRanges = field(default_factory=ByteRanges)
    _free: list[tuple[int, int]] = field(default_factory=list)
    """Size and address of the free chunks below the top, sorted."""
    _free_from: dict[int, int] = field(default_factory=dict)
    """Sizes of the free chunks by address."""
    _free_to: dict[int, int] = field(default_factory=dict)
    """Addresses of the free chunks by end."""
    _num_unmerged: Counter[int] = field(default_factory=Counter)
    """The number of unmerged ends by size."""
    _loose: list[tuple[int, int]] = field(default_factory=list)
    """Address and size of unmerged ends that may merge later."""
    _threads: "dict[int, ThreadHeap]" = field(default_factory=dict)
    """The arenas of further threads, by their number from 1 on."""

    @property
    def resident_bytes(self) -> int:
        """Bytes of the pages that were written and not returned to the system, of all threads."""
        own_bytes = self.mapped_bytes + self._resident.num_bytes
        return own_bytes + sum(each.resident_bytes for each in self._threads.values())

    def copied(self) -> "SystemHeap":
        """An independent copy, without the arenas of further threads."""
        return replace(
            self,
            _resident=ByteRanges([*self._resident.starts], [*self._resident.stops]),
            _free=[*self._free],
            _free_from={**self._free_from},
            _free_to={**self._free_to},
            _num_unmerged=self._num_unmerged.copy(),
            _loose=[*self._loose],
            _threads={},
        )

    def of_thread(self, number: int) -> "SystemHeap":
        """What a thread allocates from; 0 is the main thread."""
        if number == 0:
            return self
        if number not in self._threads:
            self._threads[number] = ThreadHeap(process=self)
        return self._threads[number]

    def allocate(self, size_bytes: int, *, is_aligned: bool = False) -> Block:
        """Allocate a block; its pages are not resident until they are written."""
        # _int_memalign requests the alignment and the smallest chunk on top, so that an aligned
        # chunk fits behind a lead that can be freed.
        needed = _chunk_bytes(size_bytes)
        request_bytes = (
            _chunk_bytes(needed + _ALIGNMENT_BYTES + _MIN_CHUNK_BYTES) if is_aligned else needed
        )
        taken = self._find_chunk(request_bytes)
        if taken is None and request_bytes >= self._process.mmap_threshold_bytes:
            return Block(None, _up(request_bytes + _WORD_BYTES, PAGE_BYTES))
        address, size = self._extend_top(request_bytes) if taken is None else taken
        return self._align(address, size, needed) if is_aligned else Block(address, size)

    def write(self, block: Block, size_bytes: int) -> None:
        """Write the first bytes of a block, which makes their pages resident."""
        if block.address is None:
            written = min(_up(size_bytes, PAGE_BYTES), block.size_bytes)
            self._process.mapped_bytes += max(0, written - block.resident_bytes)
            block.resident_bytes = max(written, block.resident_bytes)
        elif size_bytes:
            stop = block.address + min(size_bytes + _GRAIN_BYTES, block.size_bytes)
            first = block.address // PAGE_BYTES * PAGE_BYTES
            self._resident.add(first, _up(stop, PAGE_BYTES))

    def free(self, block: Block) -> None:
        """Free a block."""
        if block.address is None:
            # __libc_free: the threshold adapts to the largest mapped block that was freed.
            known = self._process
            known.mapped_bytes -= block.resident_bytes
            is_larger = known.mmap_threshold_bytes < block.size_bytes <= MAX_MMAP_THRESHOLD_BYTES
            if known.adapts and is_larger:
                known.mmap_threshold_bytes = block.size_bytes
            return
        if self._free_chunk(block.address, block.size_bytes) >= _CONSOLIDATION_BYTES:
            self._trim()

    def trim(self) -> None:
        """Return the pages of all free chunks to the system (``malloc_trim(0)``)."""
        for size, address in self._free:
            first = _up(address + _HEAD_BYTES, PAGE_BYTES)
            self._resident.remove(first, (address + size) // PAGE_BYTES * PAGE_BYTES)
        self._shrink(0)

    def pin_ends(self) -> None:
        """Keep the current unmerged ends forever."""
        self._loose.clear()

    def merge_loose_ends(self) -> None:
        """Merge the unmerged ends that are not pinned: the blocks that occupied them are freed."""
        for start, end_bytes in self._loose:
            self._num_unmerged[end_bytes] -= 1
            self._free_chunk(start, end_bytes)
        self._loose.clear()

    @property
    def _process(self) -> "SystemHeap":
        """The heap with the thresholds and the mapped blocks of the process."""
        return self

    def _find_chunk(self, needed: int) -> tuple[int, int] | None:
        """Allocate a chunk from a free one or from the top; ``None``: none fits."""
        index = bisect_left(self._free, (needed, 0))
        if index < len(self._free):
            size, address = self._free[index]
            self._remove_free(address, size)
            # A rest too small for a chunk stays with the block.
            if size - needed < _MIN_CHUNK_BYTES:
                return address, size
            self._add_free(address + needed, size - needed)
            return address, needed
        if self._end - self._top < needed + _MIN_CHUNK_BYTES:
            return None
        self._top += needed
        return self._top - needed, needed

    def _extend_top(self, needed: int) -> tuple[int, int]:
        """Extend the heap for a chunk (``sysmalloc``)."""
        # New memory of ``sbrk`` continues the old top, whose rest therefore counts.
        lacking = needed + _TOP_PAD_BYTES + _MIN_CHUNK_BYTES - (self._end - self._top)
        self._end += _up(lacking, PAGE_BYTES)
        self._top += needed
        return self._top - needed, needed

    def _align(self, address: int, size: int, needed: int) -> Block:
        """The aligned part of a chunk; the ends before and after it are freed
        (``_int_memalign``).
        """
        # An end must be a chunk of its own, so a lead that is too short skips to the next multiple.
        lead = -(address + _GRAIN_BYTES) % _ALIGNMENT_BYTES
        if 0 < lead < _MIN_CHUNK_BYTES:
            lead += _ALIGNMENT_BYTES
        rest = size - lead - needed
        block = Block(address + lead, needed)
        if rest <= _MIN_CHUNK_BYTES:
            block.size_bytes += rest
            rest = 0
        for start, end_bytes in ((address, lead), (address + lead + needed, rest)):
            if end_bytes and self._num_unmerged[end_bytes] < self.unmerged_ends:
                self._num_unmerged[end_bytes] += 1
                self._loose.append((start, end_bytes))
            elif end_bytes:
                self._free_chunk(start, end_bytes)
        return block

    def _free_chunk(self, address: int, size: int) -> int:
        """Free a chunk and merge it; returns the size of the resulting free chunk or top."""
        # Merge with the chunk below, then with the top or the chunk above: no two free chunks
        # remain adjacent.
        before = self._free_to.get(address)
        if before is not None:
            self._remove_free(before, address - before)
            address, size = before, size + address - before
        if address + size == self._top:
            self._top = address
            return self._end - self._top
        after = self._free_from.get(address + size)
        if after is not None:
            self._remove_free(address + size, after)
            size += after
        self._add_free(address, size)
        return size

    def _unmap_empty(self) -> None:
        """Unmap what a further thread's arena no longer uses."""

    def _trim(self) -> None:
        """Return the pages of a large top to the system (``systrim``)."""
        self._unmap_empty()
        top_bytes = self._end - self._top
        # __libc_free: once the mmap threshold has adapted, the trim threshold is twice that.
        threshold = self._process.mmap_threshold_bytes
        if self._process.adapts and threshold > DEFAULT_MMAP_THRESHOLD_BYTES:
            threshold *= 2
        if top_bytes >= threshold:
            self._shrink(_TOP_PAD_BYTES)

    def _shrink(self, pad_bytes: int) -> None:
        """Return the pages of the top but for so many bytes."""
        top_bytes = self._end - self._top
        # systrim: the top stays a chunk (``MINSIZE`` and one byte), with the padding and whole
        # pages.
        spare = (top_bytes - pad_bytes - _MIN_CHUNK_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
        if spare > 0:
            self._resident.remove(self._end - spare, self._end)
            self._end -= spare

    def _add_free(self, address: int, size: int) -> None:
        insort(self._free, (size, address))
        self._free_from[address] = size
        self._free_to[address + size] = address

    def _remove_free(self, address: int, size: int) -> None:
        self._free.pop(bisect_left(self._free, (size, address)))
        del self._free_from[address]
        del self._free_to[address + size]


@dataclass(slots=True, kw_only=True)
class ThreadHeap(SystemHeap):
    """The arena of a further thread: heaps of limited size, each at a multiple of that size."""

    process: SystemHeap
    _filled: list[int] = field(default_factory=list)
    """The ends of the heaps before the last one."""

    def __post_init__(self) -> None:
        self._top = self._end = self._start

    @property
    def _process(self) -> SystemHeap:
        return self.process

    @property
    def _start(self) -> int:
        """Of the chunks of the last heap."""
        first_bytes = _HEAP_INFO_BYTES if self._filled else _HEAP_INFO_BYTES + _ARENA_BYTES
        return len(self._filled) * _THREAD_HEAP_BYTES + first_bytes

    def _extend_top(self, needed: int) -> tuple[int, int]:
        limit = (len(self._filled) + 1) * _THREAD_HEAP_BYTES
        if self._top + needed + _MIN_CHUNK_BYTES > limit:
            # sysmalloc: the rest of the last heap is a free chunk, before a fence.
            rest = self._end - self._top - _MIN_CHUNK_BYTES
            if rest >= _MIN_CHUNK_BYTES:
                self._add_free(self._top, rest)
            self._filled.append(self._end)
            self._top = self._end = self._start
        self._end = _up(self._top + needed + _MIN_CHUNK_BYTES, PAGE_BYTES)
        self._top += needed
        return self._top - needed, needed

    def _unmap_empty(self) -> None:
        # heap_trim: an empty heap goes unless the one before it has little room left at its end.
        while self._filled and self._top == self._start:
            end = self._filled[-1]
            fence = end - _MIN_CHUNK_BYTES
            top = self._free_to.get(fence, fence)
            limit = len(self._filled) * _THREAD_HEAP_BYTES
            if limit - top < _TOP_PAD_BYTES + _MIN_CHUNK_BYTES + PAGE_BYTES:
                return
            self._resident.remove(limit, self._end)
            if top < fence:
                self._remove_free(top, fence - top)
            self._top, self._end = top, self._filled.pop()


def _chunk_bytes(size_bytes: int) -> int:
    """``checked_request2size``."""
    return max(_MIN_CHUNK_BYTES, _up(size_bytes + _WORD_BYTES, _GRAIN_BYTES))


def _up(size_bytes: int, multiple: int) -> int:
    return -(-size_bytes // multiple) * multiple
