"""onnxruntime's arena: rounding, growth, splits, merges, shrinking; and a naive one beside it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmem.allocators.bfc_arena import ArenaOptions, BfcArena, ByteRanges, Chunk
from onnxmem.program.program import Category, ProgramBuilder
from onnxmem.program.replay import OutOfMemoryError
from onnxmem.program.replay import replay as replayed
from onnxmem.program.sizes import Sizes

RANGES = st.tuples(st.integers(0, 40), st.integers(1, 20))

KIB, MIB = 1 << 10, 1 << 20
SAME_AS_REQUESTED = ArenaOptions(doubles=False)


_NUMBERS = count()


def taken(arena: BfcArena, size_bytes: int) -> int:
    """The number of a new request."""
    number = next(_NUMBERS)
    arena.malloc(number, size_bytes)
    return number


def served(arena: BfcArena, size_bytes: int) -> Chunk:
    """The chunk that serves a new request."""
    return arena.chunk(taken(arena, size_bytes))


def region_sizes(arena: BfcArena) -> list[int]:
    return list(arena.regions.values())


# Rounding


@pytest.mark.parametrize(("asked", "rounded"), [(1, 256), (256, 256), (257, 512), (7919, 7936)])
def test_requests_are_rounded_up_to_256_bytes(asked: int, rounded: int) -> None:
    arena = BfcArena()
    assert served(arena, asked).size_bytes == rounded
    assert (arena.requested_bytes, arena.in_use_bytes, arena.reserved_bytes) == (
        asked,
        rounded,
        MIB,
    )


# Growth


def test_the_first_region_is_one_mebibyte_and_each_later_one_twice_as_large() -> None:
    arena = BfcArena()
    for size in (1, 2, 4, 8):
        taken(arena, size * MIB)
    assert region_sizes(arena) == [1 * MIB, 2 * MIB, 4 * MIB, 8 * MIB]


def test_a_region_doubles_until_the_request_fits_and_then_the_next_is_no_larger() -> None:
    arena = BfcArena()
    for size in (5, 7, 11):
        taken(arena, size * MIB)
    # 1 -> 8 for 5; 8 holds 7 at once, so the next is 16, which holds 11.
    assert region_sizes(arena) == [8 * MIB, 8 * MIB, 16 * MIB]


def test_regions_stop_doubling_at_the_largest_growth() -> None:
    arena = BfcArena(ArenaOptions(max_growth_bytes=4 * MIB))
    for size in (1, 2, 3, 4, 4):
        taken(arena, size * MIB)
    assert region_sizes(arena) == [1 * MIB, 2 * MIB, 4 * MIB, 4 * MIB, 4 * MIB]


def test_a_request_above_the_largest_growth_doubles_further_and_the_growth_falls_back() -> None:
    arena = BfcArena(ArenaOptions(max_growth_bytes=4 * MIB))
    for size in (5, 5, 3):
        taken(arena, size * MIB)
    assert region_sizes(arena) == [8 * MIB, 8 * MIB, 4 * MIB]


def test_the_largest_growth_is_a_gibibyte() -> None:
    arena = BfcArena()
    for _ in range(13):
        taken(arena, 600 * MIB)
    assert region_sizes(arena)[:2] == [1024 * MIB, 1024 * MIB]
    assert set(region_sizes(arena)) == {1024 * MIB}


def test_same_as_requested_adds_the_rounded_request() -> None:
    arena = BfcArena(SAME_AS_REQUESTED)
    taken(arena, 7919)
    taken(arena, 3 * MIB + 1)
    assert region_sizes(arena) == [7936, 3 * MIB + 256]
    assert arena.reserved_bytes == arena.in_use_bytes == 7936 + 3 * MIB + 256


# Splits


@pytest.mark.parametrize(
    ("asked", "in_use"),
    [
        (512 * KIB, 512 * KIB),  # twice the request: split
        (512 * KIB + 1, MIB),  # 256 bytes short of twice: whole
        (600 * KIB, MIB),
    ],
)
def test_a_chunk_of_twice_the_request_is_split(asked: int, in_use: int) -> None:
    arena = BfcArena()
    taken(arena, asked)
    assert (arena.requested_bytes, arena.in_use_bytes) == (asked, in_use)


@pytest.mark.parametrize(("asked", "in_use"), [(768, 768), (769, 1024)])
def test_a_chunk_with_too_much_unused_space_is_split(asked: int, in_use: int) -> None:
    options = ArenaOptions(initial_bytes=1024, max_dead_bytes=256)
    arena = BfcArena(options)
    taken(arena, asked)
    assert (arena.in_use_bytes, arena.reserved_bytes) == (in_use, 1024)


def test_a_chunk_with_128_mebibytes_unused_is_split() -> None:
    arena = BfcArena(ArenaOptions(initial_bytes=512 * MIB))
    assert served(arena, 384 * MIB).size_bytes == 384 * MIB
    arena = BfcArena(ArenaOptions(initial_bytes=512 * MIB))
    assert served(arena, 384 * MIB + 1).size_bytes == 512 * MIB


# The choice of a chunk


def test_the_smallest_chunk_that_holds_a_request_serves_it() -> None:
    arena = BfcArena()
    sizes = (4096, 256, 1280, 256, 2048, 256)
    first, _, second, _, third, _ = (taken(arena, size) for size in sizes)
    addresses = [arena.chunk(number).address for number in (first, second, third)]
    for number in (first, second, third):
        arena.free(number)
    assert served(arena, 1300).address == addresses[2]
    assert served(arena, 1200).address == addresses[1]
    assert served(arena, 1200).address == addresses[0]


def test_of_equal_chunks_the_one_at_the_lowest_address_is_taken() -> None:
    arena = BfcArena()
    first, _, second, _ = (taken(arena, 1024) for _ in range(4))
    addresses = [arena.chunk(number).address for number in (first, second)]
    arena.free(second)
    arena.free(first)
    assert [served(arena, 1024).address for _ in range(2)] == addresses


def addresses_of_regions(sizes: Iterable[int], mapped_from_bytes: int | None) -> list[int]:
    arena = BfcArena(ArenaOptions(doubles=False, mapped_from_bytes=mapped_from_bytes))
    return [served(arena, size).address for size in sizes]


def test_regions_are_at_ascending_addresses_in_allocation_order() -> None:
    found = addresses_of_regions((2048, 512, 1024), None)
    assert found == sorted(found)


def test_mapped_regions_are_at_descending_addresses_above_the_heap() -> None:
    first, small, second, smaller, third = addresses_of_regions((2048, 1792, 8192, 256, 2048), 2048)
    assert small < smaller < third < second < first


def test_of_equal_chunks_in_mapped_regions_the_last_one_is_taken() -> None:
    arena = BfcArena(ArenaOptions(doubles=False, mapped_from_bytes=1024))
    numbers = [taken(arena, 1024) for _ in range(3)]
    for number in numbers:
        arena.free(number)
    assert [served(arena, 1024).region for _ in numbers] == [2, 1, 0]


def test_of_equal_chunks_one_on_the_heap_is_taken_before_a_mapped_one() -> None:
    arena = BfcArena(ArenaOptions(initial_bytes=1024, max_dead_bytes=256, mapped_from_bytes=2048))
    first, second, third = taken(arena, 1024), taken(arena, 1024), taken(arena, 1024)
    assert region_sizes(arena) == [1024, 2048]
    assert [arena.chunk(number).region for number in (second, third)] == [1, 1]
    for number in (second, first):
        arena.free(number)
    assert [served(arena, 1024).region for _ in range(2)] == [0, 1]


def test_a_region_is_added_when_no_single_chunk_is_large_enough() -> None:
    arena = BfcArena(SAME_AS_REQUESTED)
    for number in [taken(arena, 1024), taken(arena, 1024)]:
        arena.free(number)
    taken(arena, 2048)
    assert region_sizes(arena) == [1024, 1024, 2048]


# Giving back


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 0, 2)])
def test_free_neighbors_become_one_chunk(order: tuple[int, ...]) -> None:
    arena = BfcArena(ArenaOptions(initial_bytes=3 * 1024, max_dead_bytes=256))
    numbers = [taken(arena, 1024) for _ in range(3)]
    for index in order:
        arena.free(numbers[index])
    assert served(arena, 3 * 1024).address == 0
    assert region_sizes(arena) == [3 * 1024]


def test_chunks_do_not_merge_across_a_chunk_in_use() -> None:
    arena = BfcArena(ArenaOptions(initial_bytes=3 * 1024, max_dead_bytes=256))
    first, _, third = (taken(arena, 1024) for _ in range(3))
    arena.free(first)
    arena.free(third)
    taken(arena, 2048)
    assert len(arena.regions) == 2


def test_a_chunk_is_freed_once() -> None:
    arena = BfcArena()
    number = taken(arena, 7919)
    arena.free(number)
    with pytest.raises(KeyError):
        arena.free(number)
    assert (arena.requested_bytes, arena.in_use_bytes, arena.reserved_bytes) == (0, 0, MIB)
    assert (arena.requested_peak_bytes, arena.in_use_peak_bytes) == (7919, 7936)


# Shrinking


def test_shrinking_frees_all_but_the_first_region_and_those_in_use() -> None:
    arena = BfcArena()
    first, second, third = (taken(arena, size * MIB) for size in (1, 2, 4))
    arena.free(first)
    arena.free(second)
    arena.shrink()
    assert arena.regions == {0: MIB, 2: 4 * MIB}
    assert arena.reserved_bytes == 5 * MIB
    arena.free(third)
    arena.shrink()
    assert arena.regions == {0: MIB}


def test_shrinking_does_not_free_a_region_in_partial_use() -> None:
    arena = BfcArena()
    taken(arena, MIB)
    part, _ = taken(arena, 512 * KIB), taken(arena, 256)
    arena.free(part)
    arena.shrink()
    assert arena.reserved_bytes == 3 * MIB


def test_after_a_shrink_regions_grow_from_two_mebibytes() -> None:
    arena = BfcArena()
    taken(arena, MIB)
    arena.free(taken(arena, 16 * MIB))
    arena.shrink()
    for size in (1, 3):
        taken(arena, size * MIB)
    assert region_sizes(arena) == [MIB, 2 * MIB, 4 * MIB]


def test_shrinking_frees_the_first_region_too_if_regions_do_not_double() -> None:
    arena = BfcArena(SAME_AS_REQUESTED)
    arena.free(taken(arena, 7919))
    arena.shrink()
    assert (arena.reserved_bytes, arena.resident_bytes) == (0, 0)
    taken(arena, 7907)
    assert region_sizes(arena) == [7936]


# Limits


def test_a_region_is_at_most_what_the_limit_leaves() -> None:
    arena = BfcArena(ArenaOptions(limit_bytes=5 * MIB))
    for size in (1, 2, 2):
        taken(arena, size * MIB)
    assert region_sizes(arena) == [1 * MIB, 2 * MIB, 2 * MIB]


def test_what_the_limit_leaves_is_rounded_down() -> None:
    arena = BfcArena(ArenaOptions(limit_bytes=2 * MIB - 1))
    taken(arena, MIB)
    with pytest.raises(OutOfMemoryError):
        taken(arena, MIB - 255)
    taken(arena, MIB - 256)
    assert arena.reserved_bytes == 2 * MIB - 256


def test_a_limit_below_the_first_region_makes_it_smaller() -> None:
    arena = BfcArena(ArenaOptions(limit_bytes=7919))
    taken(arena, 256)
    assert region_sizes(arena) == [7936 - 256]


def test_reserved_bytes_count_toward_the_limit() -> None:
    arena = BfcArena(ArenaOptions(limit_bytes=3 * MIB))
    arena.reserve(2 * MIB)
    taken(arena, MIB)
    with pytest.raises(OutOfMemoryError):
        taken(arena, 1)


# Reserving


def test_weights_are_reserved_outside_the_regions_without_rounding() -> None:
    arena = BfcArena()
    arena.reserve(7919)
    assert (arena.requested_bytes, arena.in_use_bytes, arena.reserved_bytes) == (7919, 7919, 7919)
    taken(arena, 257)
    assert (arena.requested_bytes, arena.in_use_bytes) == (7919 + 257, 7919 + 512)
    assert (arena.reserved_bytes, region_sizes(arena)) == (7919 + MIB, [MIB])
    assert (arena.requested_peak_bytes, arena.in_use_peak_bytes) == (7919 + 257, 7919 + 512)


# As an allocator of programs


def test_a_request_can_be_renumbered() -> None:
    arena = BfcArena()
    arena.malloc(7, 7919)
    chunk = arena.chunk(7)
    arena.rename(7, 11)
    assert arena.chunk(11) is chunk
    arena.malloc(7, 251)
    arena.free(11)
    assert arena.requested_bytes == 251


def test_the_reserved_peak_is_remembered() -> None:
    arena = BfcArena(SAME_AS_REQUESTED)
    arena.reserve(1009)
    arena.free(taken(arena, 7919))
    arena.shrink()
    assert (arena.reserved_bytes, arena.reserved_peak_bytes) == (1009, 1009 + 7936)


def test_equal_layouts_serve_later_requests_equally() -> None:
    one, other = BfcArena(), BfcArena()
    for arena in (one, other):
        for number, size in enumerate((7919, 251, 1009)):
            arena.malloc(number, size)
    assert one.layout() == other.layout()
    one.free(0)
    assert one.layout() != other.layout()
    one.malloc(0, 7907)
    assert one.layout() == other.layout()
    other.malloc(3, MIB)
    other.free(3)
    assert one.layout() != other.layout()


def test_a_second_iteration_reuses_the_chunks_of_the_first() -> None:
    builder = ProgramBuilder()
    first, second = (builder.malloc(label, Category.ACTIVATION) for label in "ab")
    builder.free(first)
    builder.free(second)
    program, sizes = builder.program(), Sizes.of([3 * MIB, 5 * MIB])
    arena = BfcArena()
    found = replayed(program, sizes, arena, iterations=3)
    # The first makes two regions; the second finds them as the first has left them.
    assert found.reserved is not None
    assert found.reserved.by_iteration_bytes == (4 * MIB + 8 * MIB,) * 2
    limited = BfcArena(ArenaOptions(limit_bytes=5 * MIB))
    assert replayed(program, sizes, limited).out_of_memory_at == 1


# What is resident


def test_resident_bytes_are_those_that_were_ever_requested() -> None:
    arena = BfcArena()
    low, high = taken(arena, 7919), taken(arena, 251)
    assert arena.resident_bytes == 7919 + 251
    arena.free(low)
    arena.free(high)
    taken(arena, 7907)
    assert arena.resident_bytes == 7919 + 251
    taken(arena, MIB)
    assert arena.resident_bytes == 7919 + 251 + MIB


def test_a_freed_region_is_not_resident() -> None:
    arena = BfcArena(SAME_AS_REQUESTED)
    chunk = taken(arena, 7919)
    taken(arena, 251)
    arena.free(chunk)
    arena.shrink()
    assert arena.resident_bytes == 251


def test_adjacent_ranges_are_joined() -> None:
    ranges = ByteRanges()
    for start, stop in ((7, 11), (2, 3), (11, 13), (17, 19)):
        ranges.add(start, stop)
    assert (ranges.starts, ranges.stops) == ([2, 7, 17], [3, 13, 19])
    ranges.add(3, 18)
    assert (ranges.starts, ranges.stops) == ([2], [19])


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9))))
def test_a_union_of_ranges_has_the_bytes_of_all_of_them(spans: list[tuple[int, int]]) -> None:
    ranges = ByteRanges()
    for start, length in spans:
        ranges.add(start, start + length)
    assert ranges.num_bytes == len({s + i for s, length in spans for i in range(length)})


# Laws


@dataclass
class Naive:
    """Regions as lists of pieces [bytes, owner]; every search scans every piece."""

    options: ArenaOptions
    regions: dict[int, list[tuple[int, int | None]]] = field(default_factory=dict)
    growth: int = 0
    made: int = 0

    def __post_init__(self) -> None:
        self.growth = self.options.initial_bytes

    def allocate(self, user: int, size: int) -> None:
        rounded = (size + 255) // 256 * 256
        free = [
            (piece, number, place)
            for number, pieces in self.regions.items()
            for place, (piece, owner) in enumerate(pieces)
            if owner is None and piece >= rounded
        ]
        if not free:
            self.regions[self.made] = [(self._new_region(rounded), None)]
            free = [(self.regions[self.made][0][0], self.made, 0)]
            self.made += 1
        piece, number, place = min(free, key=lambda it: (it[0], self._address(it[1]), it[2]))
        rest = piece - rounded
        if piece >= 2 * rounded or rest >= self.options.max_dead_bytes:
            self.regions[number][place : place + 1] = [(rounded, user), (rest, None)]
        else:
            self.regions[number][place] = (piece, user)

    def _address(self, number: int) -> tuple[bool, int]:
        """Heap regions at ascending addresses; mapped ones above them, at descending addresses."""
        size, mapped_from = sum(p for p, _ in self.regions[number]), self.options.mapped_from_bytes
        is_mapped = mapped_from is not None and size >= mapped_from
        return is_mapped, -number if is_mapped else number

    def _new_region(self, rounded: int) -> int:
        if not self.options.doubles:
            return rounded
        fits = self.growth >= rounded
        while self.growth < rounded:
            self.growth *= 2
        size = self.growth
        if fits:
            self.growth = min(2 * size, self.options.max_growth_bytes)
        return size

    def free(self, user: int) -> None:
        for number, pieces in self.regions.items():
            left: list[tuple[int, int | None]] = []
            for piece, owner in pieces:
                retained = None if owner == user else owner
                if retained is None and left and left[-1][1] is None:
                    left[-1] = (left[-1][0] + piece, None)
                else:
                    left.append((piece, retained))
            self.regions[number] = left

    def shrink(self) -> None:
        for number in list(self.regions):
            in_use = any(owner is not None for _, owner in self.regions[number])
            if not in_use and not (self.options.doubles and number == 0):
                del self.regions[number]
        self.growth = self.options.growth_bytes

    def in_use(self) -> int:
        return sum(piece for piece, owner in self._pieces() if owner is not None)

    def reserved_bytes(self) -> int:
        return sum(piece for piece, _ in self._pieces())

    def _pieces(self) -> Iterator[tuple[int, int | None]]:
        for pieces in self.regions.values():
            yield from pieces


SIZES = st.one_of(st.integers(1, 2000), st.integers(1, 6000).map(lambda n: n * 1021))
OPTIONS = st.builds(
    ArenaOptions,
    doubles=st.booleans(),
    initial_bytes=st.sampled_from((1024, MIB)),
    max_dead_bytes=st.sampled_from((1024, 128 * MIB)),
    max_growth_bytes=st.sampled_from((2 * MIB, 1024 * MIB)),
    mapped_from_bytes=st.sampled_from((None, 2048, 4 * MIB)),
)
STEPS = st.lists(st.one_of(SIZES, st.integers(-6, 0)), max_size=60)
"""A size to allocate; a negative number frees the chunk so far from the end; 0 shrinks."""


def replay(arena: BfcArena, naive: Naive, steps: Iterable[int]) -> Iterator[dict[int, Chunk]]:
    """Both arenas after each step; live chunks by owner."""
    alive: dict[int, Chunk] = {}
    for user, step in enumerate(steps):
        if step > 0:
            arena.malloc(user, step)
            alive[user] = arena.chunk(user)
            naive.allocate(user, step)
        elif step == 0:
            arena.shrink()
            naive.shrink()
        elif len(alive) >= -step:
            gone = list(alive)[step]
            arena.free(gone)
            del alive[gone]
            naive.free(gone)
        yield alive


@given(OPTIONS, STEPS)
def test_the_arena_agrees_with_a_naive_one(options: ArenaOptions, steps: list[int]) -> None:
    arena, naive = BfcArena(options), Naive(options)
    for _ in replay(arena, naive, steps):
        assert (arena.in_use_bytes, arena.reserved_bytes) == (
            naive.in_use(),
            naive.reserved_bytes(),
        )
        sizes = {number: sum(p for p, _ in pieces) for number, pieces in naive.regions.items()}
        assert arena.regions == sizes


@given(OPTIONS, STEPS)
def test_requested_is_at_most_allocated_and_allocated_at_most_reserved(
    options: ArenaOptions, steps: list[int]
) -> None:
    arena = BfcArena(options)
    for alive in replay(arena, Naive(options), steps):
        assert arena.requested_bytes == sum(chunk.requested_bytes or 0 for chunk in alive.values())
        assert arena.requested_bytes <= arena.in_use_bytes <= arena.reserved_bytes
        assert arena.in_use_bytes == sum(chunk.size_bytes for chunk in alive.values())
        assert arena.in_use_bytes <= arena.in_use_peak_bytes
        assert arena.requested_bytes <= arena.requested_peak_bytes
        assert arena.requested_bytes <= arena.resident_bytes <= arena.reserved_bytes


@given(OPTIONS, STEPS)
def test_no_two_live_chunks_overlap(options: ArenaOptions, steps: list[int]) -> None:
    for alive in replay(BfcArena(options), Naive(options), steps):
        chunks = sorted(alive.values(), key=lambda chunk: chunk.address)
        for one, other in pairwise(chunks):
            assert one.address + one.size_bytes <= other.address
        assert all(chunk.size_bytes >= (chunk.requested_bytes or 0) for chunk in chunks)


@given(OPTIONS, STEPS)
def test_each_region_is_one_chunk_after_everything_is_freed(
    options: ArenaOptions, steps: list[int]
) -> None:
    arena = BfcArena(options)
    for user in [{}, *replay(arena, Naive(options), steps)][-1]:
        arena.free(user)
    assert (arena.requested_bytes, arena.in_use_bytes) == (0, 0)
    before = dict(arena.regions)
    whole = [served(arena, size) for size in before.values()]
    assert sorted(chunk.size_bytes for chunk in whole) == sorted(before.values())
    assert arena.regions == before


@given(st.lists(st.tuples(st.booleans(), RANGES), max_size=20))
def test_a_union_of_ranges_is_the_set_of_its_bytes(
    changes: list[tuple[bool, tuple[int, int]]],
) -> None:
    ranges, expected = ByteRanges(), set[int]()
    for is_added, (start, size) in changes:
        each = range(start, start + size)
        if is_added:
            assert ranges.add(each.start, each.stop) == len({*each} - expected)
            expected |= {*each}
        else:
            ranges.remove(each.start, each.stop)
            expected -= {*each}
        pairs = zip(ranges.starts, ranges.stops, strict=True)
        assert {byte for first, last in pairs for byte in range(first, last)} == expected
        edges = [edge for pair in zip(ranges.starts, ranges.stops, strict=True) for edge in pair]
        assert edges == sorted(set(edges))
