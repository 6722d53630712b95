"""The allocator against a naive one that is written anew, and laws that hold for every run."""

from dataclasses import dataclass, field

from allocator_events import Event, run
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from onnxmem.allocators.caching import CachingAllocator, CachingConfig

KIB = 2**10
MIB = 2**20
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
    """A piece of a segment: free, unmapped, or of the block that is named."""

    size: int
    owner: str


@dataclass
class Naive:
    """Segments as lists of pieces that are looked through from end to end."""

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

    def malloc(self, owner: str, asked: int) -> None:
        size = 512
        while size < asked:
            size += 512 * max(1, (asked - size) // 512)
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
    """Allocations and frees in an order that makes sense."""
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
@hypothesis_settings(max_examples=200, deadline=None)
def test_it_does_what_a_naive_allocator_does(made: list[Event], config: CachingConfig) -> None:
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
def test_reserved_is_at_least_allocated_and_that_at_least_what_is_asked(
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
