"""PyTorch's caching allocator, rule by rule, and its laws against any requests."""

from dataclasses import dataclass, field

import pytest
from allocator_events import BARE, EXPANDABLE, Event, run
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from onnxmem.allocators.caching import (
    CachingAllocator,
    CachingConfig,
    rounded_bytes,
    segment_bytes,
)
from onnxmem.runtimes.torch.cuda import TorchRuntime

# PyTorch's caching allocator, worked by hand from the rules of CUDACachingAllocator.cpp.


KIB = 2**10


MIB = 2**20


def after(*events: Event, settings: TorchRuntime = BARE) -> CachingAllocator:
    allocator = CachingAllocator(settings.config)
    run(allocator, events)
    return allocator


@pytest.mark.parametrize(
    ("size_bytes", "rounded"),
    [(1, 512), (511, 512), (512, 512), (513, 1024), (7_919, 8_192), (MIB + 1, MIB + 512)],
)
def test_a_block_is_a_multiple_of_512_bytes(size_bytes: int, rounded: int) -> None:
    assert rounded_bytes(size_bytes) == rounded


@pytest.mark.parametrize(
    ("size_bytes", "divisions", "rounded"),
    [
        (1_200 * KIB, 4, 1_280 * KIB),  # the source's own example, in KiB
        (1_024 * KIB, 4, 1_024 * KIB),
        (2_048, 4, 2_048),  # not above 512 bytes times 4: rounded as ever
        (2_049, 4, 2_560),
        (9 * KIB, 5, 10 * KIB),  # 5 divisions count as 4
        (700, 0, 1_024),
        (700, 1, 1_024),
    ],
)
def test_a_block_is_rounded_up_to_a_division_of_a_power_of_2(
    size_bytes: int, divisions: int, rounded: int
) -> None:
    assert rounded_bytes(size_bytes, divisions) == rounded


@pytest.mark.parametrize(
    ("block_bytes", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (101 * MIB, 102 * MIB),
    ],
)
def test_a_segment_is_2_or_20_mib_or_of_the_requests_size(block_bytes: int, segment: int) -> None:
    assert segment_bytes(block_bytes) == segment


def test_small_requests_share_a_segment_of_2_mib() -> None:
    found = after((0, 3), (1, 701 * KIB), (2, 907 * KIB))
    assert found.allocated_bytes == 512 + 701 * KIB + 907 * KIB
    assert found.requested_bytes == 3 + 701 * KIB + 907 * KIB
    assert (found.reserved_bytes, found.num_segments) == (2 * MIB, 1)


def test_small_requests_take_a_second_segment_when_the_first_is_full() -> None:
    found = after((0, 3), (1, 701 * KIB), (2, 907 * KIB), (3, 443 * KIB))
    assert (found.reserved_bytes, found.num_segments) == (4 * MIB, 2)
    # 2048 - 0.5 - 701 - 907 KiB are left of the first, and 2048 - 443 KiB of the second.
    assert found.inactive_split_bytes == 2 * 2_048 * KIB - 512 - (701 + 907 + 443) * KIB


def test_a_remainder_of_512_bytes_is_split_off_a_small_block() -> None:
    found = after((0, MIB), (1, MIB - 512), (2, 3))
    assert found.allocated_bytes == found.reserved_bytes == 2 * MIB


def test_small_and_large_requests_never_share_a_segment() -> None:
    assert after((0, MIB), (1, 3)).reserved_bytes == 2 * MIB
    assert after((0, MIB + 1), (1, 3)).reserved_bytes == 22 * MIB
    assert after((0, 5 * MIB), (1, 3)).reserved_bytes == 22 * MIB


def test_requests_below_10_mib_share_a_segment_of_20_mib() -> None:
    found = after((0, 3 * MIB), (1, 7 * MIB), (2, 8 * MIB))
    assert found.reserved_bytes == 20 * MIB
    assert found.allocated_bytes == 18 * MIB


def test_a_remainder_up_to_1_mib_stays_with_a_large_block_and_counts_as_allocated() -> None:
    found = after((0, 11 * MIB))
    assert (found.requested_bytes, found.allocated_bytes) == (11 * MIB, 12 * MIB)
    assert found.inactive_split_bytes == 0


def test_a_remainder_above_1_mib_is_split_off_a_large_block() -> None:
    found = after((0, 11 * MIB - 512))
    assert found.allocated_bytes == 11 * MIB - 512
    assert found.inactive_split_bytes == MIB + 512


def test_the_best_fit_is_taken() -> None:
    # Holes of 5 and 3 MiB, each with a live block above it; 3 MiB fit the second exactly.
    made: list[Event] = [(0, 5 * MIB), (1, 2 * MIB), (2, 3 * MIB), (3, 9 * MIB)]
    found = after(*made, (0, -5 * MIB), (2, -3 * MIB), (4, 3 * MIB), (5, 5 * MIB))
    assert found.reserved_bytes == 20 * MIB
    assert found.allocated_bytes == 19 * MIB + 1 * MIB  # block 3 kept the last MiB


def test_the_lower_of_two_equal_holes_is_taken() -> None:
    # Were it the upper hole, its neighbor 9 MiB could not grow with it to 13 MiB.
    made: list[Event] = [(0, 4 * MIB), (1, 2 * MIB), (2, 4 * MIB), (3, 9 * MIB)]
    found = after(*made, (0, -1), (2, -1), (4, 4 * MIB), (3, -1), (5, 14 * MIB))
    assert found.reserved_bytes == 20 * MIB


def test_neighbors_merge_when_they_are_freed() -> None:
    made: list[Event] = [(0, 3 * MIB), (1, 7 * MIB), (2, 9 * MIB)]
    freed: list[Event] = [(0, -1), (2, -1), (1, -1)]
    found = after(*made, *freed, (3, 20 * MIB))
    assert (found.reserved_bytes, found.num_segments) == (20 * MIB, 1)


def test_segments_do_not_merge() -> None:
    found = after((0, 10 * MIB), (1, 12 * MIB), (0, -1), (1, -1), (2, 22 * MIB))
    assert (found.reserved_bytes, found.num_segments) == (44 * MIB, 3)


def test_a_freed_segment_stays_reserved() -> None:
    found = after((0, 37 * MIB), (0, -37 * MIB))
    assert (found.allocated_bytes, found.reserved_bytes) == (0, 38 * MIB)
    assert found.inactive_split_bytes == 0


def test_a_split_limit_keeps_large_blocks_whole() -> None:
    limited = TorchRuntime(config=CachingConfig(max_split_bytes=30 * MIB))
    made: list[Event] = [(0, 58 * MIB), (0, -1), (1, 16 * MIB)]
    assert after(*made).reserved_bytes == 58 * MIB
    # A small request takes none of a block above the limit, nor does one 20 MiB below it in size.
    assert after(*made, settings=limited).reserved_bytes == (58 + 16) * MIB
    assert after(*made[:2], (1, 38 * MIB), settings=limited).reserved_bytes == (58 + 38) * MIB
    near = after(*made[:2], (1, 40 * MIB), settings=limited)
    assert (near.reserved_bytes, near.allocated_bytes) == (58 * MIB, 58 * MIB)


def test_a_split_limit_must_be_above_the_size_of_a_shared_segment() -> None:
    with pytest.raises(ValueError, match="above 20971520, not 20971520"):
        CachingConfig(max_split_bytes=20 * MIB)


def test_an_expandable_segment_maps_20_mib_pages_at_its_end() -> None:
    found = after((0, 13 * MIB), (1, 11 * MIB), settings=EXPANDABLE)
    assert (found.reserved_bytes, found.num_segments) == (40 * MIB, 1)
    assert found.allocated_bytes == 24 * MIB  # what is above 512 bytes is split off


def test_an_expandable_segment_of_small_requests_maps_2_mib_pages() -> None:
    found = after((0, 701 * KIB), (1, 907 * KIB), (2, 443 * KIB), settings=EXPANDABLE)
    # The third lies across the two pages.
    assert (found.reserved_bytes, found.num_segments) == (4 * MIB, 1)


def test_only_the_missing_pages_are_mapped() -> None:
    # 20 MiB hold 13 + 7 free; 45 more need 38 above, so 2 pages: native takes 46 beside 14.
    made: list[Event] = [(0, 13 * MIB), (1, 45 * MIB)]
    assert after(*made, settings=EXPANDABLE).reserved_bytes == 60 * MIB
    assert after(*made).reserved_bytes == (14 + 46) * MIB
    freed: list[Event] = [*made, (0, -1), (1, -1), (2, 59 * MIB)]
    assert after(*freed, settings=EXPANDABLE).reserved_bytes == 60 * MIB
    assert after(*freed).reserved_bytes == 120 * MIB


def test_a_hole_is_preferred_to_the_end_that_can_grow() -> None:
    # Free: a hole of 9 MiB, and 6 MiB on top. 5 MiB fit the top best, but it counts as endless:
    # cut from the hole they leave 4 there and 6 on top.
    made: list[Event] = [(0, 9 * MIB), (1, 5 * MIB), (0, -1), (2, 5 * MIB)]
    found = after(*made, (3, 6 * MIB), (4, 4 * MIB), settings=EXPANDABLE)
    assert (found.reserved_bytes, found.allocated_bytes) == (20 * MIB, 20 * MIB)


def test_a_growing_segment_reuses_the_free_block_at_its_end() -> None:
    made: list[Event] = [(0, 4 * MIB), (1, 16 * MIB), (1, -1), (0, -1), (2, 57 * MIB)]
    assert after(*made, settings=EXPANDABLE).reserved_bytes == 60 * MIB


def test_a_block_is_allocated_once_and_freed_once() -> None:
    with pytest.raises(ValueError, match="block 5 is allocated twice"):
        after((5, 3), (5, 3))
    with pytest.raises(ValueError, match="block 5 is freed and was not allocated"):
        after((5, 3), (5, -3), (5, -3))


# The allocator against a naive one that is written anew, and laws that hold for every run.


ENDLESS = 2**50


SIZES = (
    st.integers(3, 19).map(lambda num_halves: num_halves * MIB // 2)
    | st.integers(1, 5_000)
    | st.integers(1, 3 * MIB)
    | st.integers(MIB, 30 * MIB)
    | st.sampled_from([512, 513, MIB, MIB + 1, 2 * MIB, 10 * MIB, 10 * MIB - 1, 20 * MIB])
)


@dataclass
class Cell:
    """A piece of a segment: free, unmapped, or owned by the named block."""

    size: int
    owner: str


@dataclass
class Naive:
    """Segments as lists of pieces, searched linearly."""

    expandable: bool
    limit: int = ENDLESS
    small: list[list[Cell]] = field(default_factory=list)
    large: list[list[Cell]] = field(default_factory=list)

    def pieces(self) -> list[Cell]:
        return [cell for segment in (*self.small, *self.large) for cell in segment]

    def reserved(self) -> int:
        return sum(cell.size for cell in self.pieces() if cell.owner != "unmapped")

    def allocated(self) -> int:
        return sum(cell.size for cell in self.pieces() if cell.owner not in {"free", "unmapped"})

    def malloc(self, owner: str, requested: int) -> None:
        size = 512
        while size < requested:
            size += 512 * max(1, (requested - size) // 512)
        is_small = size <= MIB
        segments = self.small if is_small else self.large
        if not self.fit(segments, owner, size, is_small=is_small):
            self.grow(segments, size, 2 * MIB if is_small else 20 * MIB)
            fitted = self.fit(segments, owner, size, is_small=is_small, is_new=True)
            assert fitted

    def fit(
        self,
        segments: list[list[Cell]],
        owner: str,
        size: int,
        *,
        is_small: bool,
        is_new: bool = False,
    ) -> bool:
        found = [
            (cell.size, number, place)
            for number, segment in enumerate(segments)
            for place, cell in enumerate(segment)
            if cell.owner == "free" and cell.size >= size
        ]
        if not found:
            return False
        found.sort()
        if is_new:  # what was just taken from the device is what is used
            found = [max(found, key=lambda item: (item[1], item[2]))]
        chosen = 0
        while chosen + 1 < len(found) and self.reach(segments, found[chosen + 1]) < self.reach(
            segments, found[chosen]
        ):
            chosen += 1
        have, number, place = found[chosen]
        if not is_new and size < self.limit <= have:
            return False
        if not is_new and size >= self.limit and have >= size + 20 * MIB:
            return False
        rest = have - size
        keeps = rest >= 512 if is_small or self.expandable else rest > MIB and size < self.limit
        pieces = [Cell(size, owner), Cell(rest, "free")] if keeps else [Cell(have, owner)]
        segments[number][place : place + 1] = pieces
        return True

    def reach(self, segments: list[list[Cell]], item: tuple[int, int, int]) -> int:
        size, number, place = item
        above = segments[number][place + 1 : place + 2]
        return size + sum(cell.size for cell in above if cell.owner == "unmapped")

    def grow(self, segments: list[list[Cell]], size: int, page: int) -> None:
        if not self.expandable:
            whole = page if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            segments.append([Cell(whole, "free")])
            return
        if not segments:
            segments.append([Cell(ENDLESS, "unmapped")])
        (segment,) = segments
        while segment[-2:-1] == [] or segment[-2].owner != "free" or segment[-2].size < size:
            segment[-1].size -= page
            segment.insert(-1, Cell(page, "free"))
            merge(segment)

    def free(self, owner: str) -> None:
        for segment in (*self.small, *self.large):
            for cell in segment:
                if cell.owner == owner:
                    cell.owner = "free"
            merge(segment)


def merge(segment: list[Cell]) -> None:
    place = 0
    while place + 1 < len(segment):
        if segment[place].owner == segment[place + 1].owner == "free":
            segment[place].size += segment.pop(place + 1).size
        else:
            place += 1


@st.composite
def events(draw: st.DrawFn, first: int = 0, most: int = 40) -> list[Event]:
    """Allocations and frees in a valid order."""
    made: list[Event] = []
    live: list[Event] = []
    for number in range(first, first + draw(st.integers(0, most))):
        made.append((number, draw(SIZES)))
        live.append(made[-1])
        while live and draw(st.integers(0, 9)) < 5:
            freed, size_bytes = live.pop(draw(st.integers(0, len(live) - 1)))
            made.append((freed, -size_bytes))
    return made


CONFIGS = st.builds(
    CachingConfig,
    expandable_segments=st.booleans(),
    max_split_bytes=st.none() | st.integers(20 * MIB + 1, 40 * MIB),
)


@given(events(), CONFIGS)
@hypothesis_settings(max_examples=50)
def test_the_caching_allocator_agrees_with_a_naive_one(
    made: list[Event], config: CachingConfig
) -> None:
    allocator = CachingAllocator(config)
    naive = Naive(config.expandable_segments, config.max_split_bytes or ENDLESS)
    for number, size_bytes in made:
        run(allocator, [(number, size_bytes)])
        if size_bytes > 0:
            naive.malloc(str(number), size_bytes)
        else:
            naive.free(str(number))
        assert allocator.reserved_bytes == naive.reserved()
        assert allocator.allocated_bytes == naive.allocated()


@given(events(), CONFIGS)
@hypothesis_settings(deadline=None)
def test_reserved_is_at_least_allocated_and_allocated_at_least_requested(
    made: list[Event], config: CachingConfig
) -> None:
    allocator = CachingAllocator(config)
    reserved_bytes = 0
    for event in made:
        run(allocator, [event])
        assert allocator.reserved_bytes >= allocator.allocated_bytes >= allocator.requested_bytes
        assert allocator.reserved_bytes >= reserved_bytes
        assert allocator.reserved_bytes % (2 * MIB) == 0
        assert allocator.inactive_split_bytes <= (
            allocator.reserved_bytes - allocator.allocated_bytes
        )
        reserved_bytes = allocator.reserved_bytes
    assert allocator.requested_peak_bytes <= allocator.allocated_peak_bytes <= reserved_bytes
    # Freeing everything leaves the reserved bytes.
    alive = {number for number, size in made if size > 0} - {n for n, size in made if size < 0}
    for number in alive:
        allocator.free(number)
    assert (allocator.allocated_bytes, allocator.requested_bytes) == (0, 0)
    assert allocator.reserved_bytes == reserved_bytes
    assert allocator.inactive_split_bytes == 0
