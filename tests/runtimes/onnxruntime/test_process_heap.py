"""The C library's heap under onnxruntime: rules one by one, and against the C library itself."""

import json
import os
import platform
import subprocess
import sys
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmem.runtimes.onnxruntime.process.heap import PAGE_BYTES, Block, SystemHeap
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

KIB, MIB = 1 << 10, 1 << 20
Step = tuple[str, int, int]
"""What is done (``plain``, ``aligned``, ``free`` or ``trim``), to which block, and its size."""


def pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def written(heap: SystemHeap, size_bytes: int, *, is_aligned: bool = False) -> Block:
    block = heap.allocate(size_bytes, is_aligned=is_aligned)
    heap.write(block, size_bytes)
    return block


# Rules


def test_a_large_block_has_its_own_pages_and_frees_them() -> None:
    heap = SystemHeap()
    block = written(heap, 1_000_003)
    assert heap.resident_bytes == pages(1_000_003)
    heap.free(block)
    assert heap.resident_bytes == 0


def test_unwritten_bytes_have_no_pages() -> None:
    heap = SystemHeap()
    heap.write(heap.allocate(64 * MIB), 5)
    heap.write(heap.allocate(64 * KIB), 5)
    heap.write(heap.allocate(64 * KIB), 0)
    assert heap.resident_bytes == 2 * PAGE_BYTES


def test_a_block_is_resident_up_to_its_last_written_byte() -> None:
    heap = SystemHeap()
    block = heap.allocate(1_000_003)
    for size, resident in ((7919, 7919), (5003, 7919), (1_000_003, 1_000_003)):
        heap.write(block, size)
        assert heap.resident_bytes == pages(resident)


def test_a_freed_block_raises_the_threshold_so_that_the_next_leaves_a_hole() -> None:
    heap = SystemHeap()
    heap.free(heap.allocate(1_000_003))
    hole, _ = written(heap, 1_000_003), written(heap, 7919)
    resident = heap.resident_bytes
    heap.free(hole)
    assert heap.resident_bytes == resident
    written(heap, 900_001)
    assert heap.resident_bytes == resident, "the hole serves a smaller block"


@pytest.mark.parametrize(("freed", "is_raised"), [(31 * MIB, True), (33 * MIB, False)])
def test_the_threshold_is_raised_up_to_32_mib(*, freed: int, is_raised: bool) -> None:
    heap = SystemHeap()
    heap.free(heap.allocate(freed))
    assert (heap.allocate(30 * MIB).address is not None) is is_raised


def test_a_hole_with_a_few_bytes_left_over_is_taken_completely() -> None:
    heap = SystemHeap(mmap_threshold_bytes=MIB)
    hole, _ = heap.allocate(100_008), heap.allocate(7919)
    heap.free(hole)
    again = heap.allocate(99_992)
    assert (again.address, again.size_bytes) == (hole.address, hole.size_bytes)


def test_the_smaller_of_two_fitting_holes_is_taken() -> None:
    heap = SystemHeap(mmap_threshold_bytes=MIB)
    large, _, small, _ = (heap.allocate(size) for size in (200_003, 7919, 100_003, 7919))
    heap.free(large)
    heap.free(small)
    assert heap.allocate(90_001).address == small.address
    assert heap.allocate(150_001).address == large.address


def test_free_neighbors_merge() -> None:
    heap = SystemHeap(mmap_threshold_bytes=MIB)
    one, two, three, _ = (heap.allocate(100_003) for _ in range(4))
    for block in (one, three, two):
        heap.free(block)
    assert heap.allocate(300_007).address == one.address


def test_the_heap_shrinks_at_its_top_from_the_trim_threshold_on() -> None:
    heap = SystemHeap()
    blocks = [written(heap, 100_003) for _ in range(3)]
    before = heap.resident_bytes
    heap.free(blocks[0])
    assert heap.resident_bytes == before, "not at the top"
    for block in reversed(blocks[1:]):
        heap.free(block)
    assert heap.resident_bytes <= 132 * KIB


def test_pages_far_above_the_new_top_are_freed() -> None:
    heap = SystemHeap(mmap_threshold_bytes=MIB)
    block = heap.allocate(900_001)
    tail = Block(block.address, block.size_bytes)
    heap.write(tail, 5)
    apart = written(heap, 900_007)
    last = heap.allocate(900_019)
    heap.write(last, 900_019)
    for each in (block, last, apart):
        heap.free(each)
    assert heap.resident_bytes == PAGE_BYTES


@pytest.mark.parametrize(("unmerged_ends", "is_reused"), [(7, False), (0, True)])
def test_a_hole_between_unmerged_ends_is_too_small_for_the_block_that_left_it(
    *, unmerged_ends: int, is_reused: bool
) -> None:
    heap = SystemHeap(mmap_threshold_bytes=MIB, unmerged_ends=unmerged_ends)
    first, _ = (heap.allocate(100_003, is_aligned=True) for _ in range(2))
    heap.free(first)
    again = heap.allocate(100_003, is_aligned=True)
    assert (again.address == first.address) is is_reused


@pytest.mark.parametrize("is_fixed", [False, True])
def test_freed_ends_join_their_hole_and_pinned_ones_do_not(*, is_fixed: bool) -> None:
    heap = SystemHeap(mmap_threshold_bytes=MIB)
    first, _ = (heap.allocate(100_003, is_aligned=True) for _ in range(2))
    if is_fixed:
        heap.pin_ends()
    heap.free(first)
    heap.merge_loose_ends()
    again = heap.allocate(100_003, is_aligned=True)
    assert (again.address == first.address) is not is_fixed


def test_aligned_blocks_start_at_multiples_of_64_bytes() -> None:
    heap = SystemHeap(mmap_threshold_bytes=MIB)
    for size in (1009, 2003, 4001, 8009):
        block = heap.allocate(size, is_aligned=True)
        assert block.address is not None
        assert (block.address + 16) % 64 == 0


def test_a_fixed_threshold_does_not_rise_so_that_the_next_block_leaves_no_hole() -> None:
    heap = SystemHeap(200_003, adapts=False)
    heap.free(heap.allocate(1_000_003))
    block, _ = written(heap, 1_000_003), written(heap, 7919)
    heap.free(block)
    assert heap.resident_bytes == pages(7919)


def test_a_trim_returns_the_whole_pages_of_holes_and_of_the_top_and_keeps_the_holes() -> None:
    heap = SystemHeap(mmap_threshold_bytes=MIB)
    hole, _, top = (written(heap, size) for size in (500_009, 7919, 300_007))
    heap.free(hole)
    heap.free(top)
    heap.trim()
    # The hole's first page has its head, its last one is shared with the block behind it.
    assert heap.resident_bytes == PAGE_BYTES + 3 * PAGE_BYTES
    assert written(heap, 400_009).address == hole.address


# Properties

SIZES = st.integers(1, 400_000)


@given(st.lists(st.tuples(st.sampled_from(["plain", "aligned", "free"]), SIZES), max_size=60))
def test_blocks_never_overlap_and_live_bytes_are_resident(requested: list[tuple[str, int]]) -> None:
    heap = SystemHeap()
    alive: list[tuple[Block, int]] = []
    for how, size in requested:
        if how != "free":
            alive.append((written(heap, size, is_aligned=how == "aligned"), size))
        elif alive:
            heap.free(alive.pop(size % len(alive))[0])
        places = sorted(
            (block.address, block.address + block.size_bytes)
            for block, _ in alive
            if block.address is not None
        )
        assert all(one[1] <= other[0] for one, other in pairwise(places))
        assert heap.resident_bytes >= sum(size for _, size in alive)
    for block, _ in alive:
        heap.free(block)
    assert heap.mapped_bytes == 0


def test_a_thread_fills_no_hole_that_another_left() -> None:
    heap = SystemHeap(mmap_threshold_bytes=MIB)
    hole = written(heap, 500_009)
    written(heap, 5003)
    heap.free(hole)
    before = heap.resident_bytes
    written(heap.of_thread(1), 500_009)
    assert heap.resident_bytes >= before + 500_009
    written(heap, 500_009)
    assert heap.resident_bytes <= before + pages(500_009) + 2 * PAGE_BYTES


def test_threads_have_one_threshold_and_the_copy_of_a_heap_none_of_their_arenas() -> None:
    heap = SystemHeap()
    other = heap.of_thread(2)
    other.free(written(other, 1_000_003))
    assert (heap.mapped_bytes, heap.mmap_threshold_bytes) == (0, pages(1_000_003 + 16))
    written(heap.of_thread(1), 900_007)
    assert heap.mapped_bytes == 0
    assert heap.resident_bytes >= 900_007 > heap.copied().resident_bytes


def test_an_arena_of_a_thread_returns_an_empty_heap() -> None:
    """Three blocks of 30 MiB: the third has a heap of its own, which goes when it is freed."""
    heap = SystemHeap(31 * MIB, adapts=False)
    other = heap.of_thread(1)
    first, second, third = (written(other, 30 * MIB) for _ in range(3))
    other.free(third)
    assert 60 * MIB <= heap.resident_bytes <= 60 * MIB + 2 * PAGE_BYTES
    other.free(second)
    other.free(first)
    assert heap.resident_bytes <= PAGE_BYTES + 128 * KIB


# Against the C library

LIBRARY = """
import ctypes, json, os, sys
library = ctypes.CDLL(None)
for name, count in (("malloc", 1), ("memalign", 2)):
    function = getattr(library, name)
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_size_t] * count
library.free.argtypes = [ctypes.c_void_p]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
statm = os.open("/proc/self/statm", os.O_RDONLY)
steps = json.loads(sys.argv[1])
blocks, found = [None] * len(steps), [None] * len(steps)  # of full length: lists don't grow later
def resident():
    return int(os.pread(statm, 99, 0).split()[1])
"""
"""What a process calls of the C library, and how it reads its resident pages."""
REPLAY = f"""{LIBRARY}
for size in range(24, 136, 16):  # so that no small chunk is left, least of all in the cache
    for _ in range(4000):
        library.malloc(size)
library.memset(library.malloc(40_009), resident() % 2, 40_009)
library.free(library.malloc(1_000_003))
start = library.malloc(7903)
while start % 64 != 16:
    start = library.malloc(7903)
before = resident()
for place, (how, number, size) in enumerate(steps):
    if how == "free":
        library.free(blocks[number])
    elif how == "trim":
        library.malloc_trim(0)
    else:
        address = library.memalign(64, size) if how == "aligned" else library.malloc(size)
        library.memset(address, 1, size)
        blocks[number] = address
    found[place] = resident()
print(json.dumps([4096 * (pages - before) for pages in found]))
print(json.dumps([None if place is None else place - start for place in blocks]))
"""
"""Does the steps, and says what was resident after each and where each block lay."""


def steps_of(seed: int, kinds: tuple[str, ...], *, trims: bool) -> list[Step]:
    """A hundred steps: blocks of 40 kB to 1.4 MB, about as many freed as taken."""
    draw = Random(seed)  # noqa: S311 - no secret
    alive: list[int] = []
    steps: list[Step] = []
    for number in range(100):
        if trims and number % 17 == 16:
            steps.append(("trim", 0, 0))
        elif alive and draw.random() < 0.4:
            steps.append(("free", alive.pop(draw.randrange(len(alive))), 0))
        else:
            alive.append(number)
            steps.append((draw.choice(kinds), number, draw.randrange(40_009, 1_400_017)))
    return steps


def replayed(
    steps: list[Step], fixed_bytes: int | None = None
) -> tuple[list[int], list[int | None]]:
    """The same from the emulation; ``None`` for a block with its own pages."""
    heap = SystemHeap() if fixed_bytes is None else SystemHeap(fixed_bytes, adapts=False)
    heap.free(heap.allocate(1_000_003))
    start = heap.allocate(7903)
    assert start.address == 0
    blocks: dict[int, Block] = {}
    places: list[int | None] = [None] * len(steps)
    found = []
    for how, number, size in steps:
        if how == "free":
            heap.free(blocks.pop(number))
        elif how == "trim":
            heap.trim()
        else:
            blocks[number] = written(heap, size, is_aligned=how == "aligned")
            places[number] = blocks[number].address
        found.append(heap.resident_bytes)
    return found, places


@pytest.mark.skipif(platform.libc_ver() != ("glibc", "2.36"), reason="the heap is glibc 2.36's")
@pytest.mark.parametrize("kinds", [("plain",), ("plain", "aligned")])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("fixed_bytes", "trims"), [(None, False), (None, True), (128 * KIB, False), (500_009, True)]
)
def test_the_heap_agrees_with_the_c_library(
    seed: int, kinds: tuple[str, ...], fixed_bytes: int | None, *, trims: bool
) -> None:
    steps = steps_of(seed, kinds, trims=trims)
    command = [sys.executable, "-S", "-c", REPLAY, json.dumps(steps)]
    variables = SessionOptions(malloc_threshold_bytes=fixed_bytes).variables
    ran = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **variables}
    )
    resident, places = map(json.loads, ran.stdout.splitlines())
    expected_resident, expected_places = replayed(steps, fixed_bytes)
    in_heap = [None if place is None or abs(place) > 1 << 32 else place for place in places]
    assert in_heap == expected_places
    pairs = zip(resident, expected_resident, strict=True)
    assert all(abs(found - expected) <= 8 * PAGE_BYTES for found, expected in pairs)


REPLAY_IN_THREADS = f"""{LIBRARY}
from queue import SimpleQueue
from threading import Thread
waiting, done = [SimpleQueue() for _ in range(3)], SimpleQueue()
def work(queue):
    for size in range(24, 136, 16):
        for _ in range(4000):
            library.malloc(size)
    while library.malloc(7903) % 64 != 16:
        pass
    done.put(None)
    while (step := queue.get()) is not None:
        how, number, size = step
        if how == "free":
            library.free(blocks[number])
        else:
            address = library.memalign(64, size) if how == "aligned" else library.malloc(size)
            library.memset(address, 1, size)
            blocks[number] = address
        done.put(None)
for each in waiting:
    Thread(target=work, args=(each,), daemon=True).start()
    done.get()
library.free(library.malloc(1_000_003))
before = resident()
for place, (*step, thread) in enumerate(steps):
    waiting[thread].put(step)
    done.get()
    found[place] = resident()
print(json.dumps([4096 * (pages - before) for pages in found]))
"""
"""The same by three threads, of which one at a time does a step."""


def replayed_in_threads(steps: list[tuple[str, int, int, int]]) -> list[int]:
    """What is resident after each step, as emulated."""
    heap = SystemHeap()
    heap.free(heap.allocate(1_000_003))
    for thread in range(3):
        own = heap.of_thread(1 + thread)
        while (own.allocate(40).address or 0) % 64 != 16:
            pass
        own.allocate(7903)
    before_bytes = heap.resident_bytes
    blocks: dict[int, tuple[SystemHeap, Block]] = {}
    found = []
    for how, number, size, thread in steps:
        own = heap.of_thread(1 + thread)
        if how == "free":
            own, block = blocks.pop(number)
            own.free(block)
        else:
            blocks[number] = own, written(own, size, is_aligned=how == "aligned")
        found.append(heap.resident_bytes - before_bytes)
    return found


@pytest.mark.skipif(platform.libc_ver() != ("glibc", "2.36"), reason="the heap is glibc 2.36's")
@pytest.mark.parametrize("seed", range(3))
def test_arenas_of_threads_agree_with_the_c_library(seed: int) -> None:
    draw = Random(seed)  # noqa: S311 - no secret
    steps = [
        (*step, draw.randrange(3)) for step in steps_of(seed, ("plain", "aligned"), trims=False)
    ]
    command = [sys.executable, "-S", "-c", REPLAY_IN_THREADS, json.dumps(steps)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    pairs = zip(json.loads(ran.stdout), replayed_in_threads(steps), strict=True)
    assert all(abs(found - expected) <= 8 * PAGE_BYTES for found, expected in pairs)
