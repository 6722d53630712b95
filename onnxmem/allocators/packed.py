"""Packs all allocations of a program into one block (definition 5).

``pack`` gives each allocation an offset; allocations that are alive at once never overlap. The
block cannot be smaller than the peak of the live bytes, so a block of that size is optimal, and the
search ends there. Sizes are not padded to an alignment, which each runtime chooses for itself.
Finding the smallest block is NP-hard. The search goes from cheap to expensive:

1. Place blocks in the order of time, with a free list: O(n log n) for any number of live blocks.
2. Place them in ten other orders, largest first by different measures, each with best fit and with
   first fit. If the conflicting pairs are few enough, they are listed. Otherwise they are placed
   from the end of time to its start, and in flat arrays, in which each block is compared with all
   placed so far (30,000 blocks with 43 million conflicts take seconds; lists of pairs would take a
   minute).
3. Improve the best by ejection chains: blocks above a lower limit are placed again.

How far the search goes is its ``Effort``: ``QUICK`` is a part of an analysis, ``BEST`` takes up to
seconds. Work is counted in blocks and pairs, not in seconds, so a model gets the same packing on
every machine. docs/decisions/0019 measures which steps shrink the blocks of real models.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate, chain, islice
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from onnxmem.program.program import IntColumn, Program
from onnxmem.program.sizes import Sizes

Ints = npt.NDArray[np.int64]


Floats = npt.NDArray[np.float64]


Fit = Callable[[Iterable[tuple[int, int]], int], int]
"""The offset for a size among sorted (start, stop) ranges: ``best_fit`` or ``first_fit``."""


_Placement = tuple[int, Sequence[int]]
"""The size of the packed block and the offsets in it."""


_MAX_CONFLICTS = 300_000
"""Conflicts are listed up to so many pairs: some 6 MiB."""


_MAX_STEP_WORK = 200_000_000
"""Blocks that all steps of ejection chains together may visit."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How far the search for a smaller block goes."""

    pair_work: int
    """Pairs and blocks that all orders together may visit."""
    orders_of_all: int
    """So many orders are tried however many blocks there are, within ``pair_work`` or not."""
    flat_work: int
    """``pair_work`` for flat arrays, where a pair costs a few vector operations."""
    num_starts: int
    """Placements that ejection chains start from."""
    num_steps: int
    """Of ejection chains from one placement, for few blocks."""
    blocks_per_step: int
    """One more step for so many blocks whose conflicts are listed; 0: none."""

    @property
    def is_quick(self) -> bool:
        """Whether a longer search may find a smaller block."""
        return self == QUICK


_MOST_STARTS: Final = 2
"""Placements that are kept for ejection chains."""
QUICK: Final = Effort(
    pair_work=500_000,
    orders_of_all=4,
    flat_work=4_000_000,
    num_starts=1,
    num_steps=500,
    blocks_per_step=16,
)
"""Up to some 50 ms, or for many blocks some 20 microseconds a block."""
BEST: Final = Effort(
    pair_work=6_000_000,
    orders_of_all=1,
    flat_work=800_000_000,
    num_starts=_MOST_STARTS,
    num_steps=10_000,
    blocks_per_step=0,
)
"""Up to some seconds. With few blocks, the limit on work alone would allow millions of steps."""
EFFORTS: Final[Mapping[str, Effort]] = {"quick": QUICK, "best": BEST}
"""By the name in the settings."""


_LARGEST_SUM = 2**62
"""Of bytes that numpy adds without overflow: a hostile file may claim more."""


BLOCK_WORK = 8
"""The cost of placing a block, apart from its pairs, in pairs."""


_NO_GAP = 2**63 - 1


_ORDERS_AT_ONCE: Final = 4
"""So many orders are tried with one fit before the other: the order matters more than the fit."""


@dataclass(frozen=True, slots=True)
class Packing:
    """One block in which every allocation has an offset."""

    size_bytes: int
    lower_bound_bytes: int
    """Live bytes at the peak: no block can be smaller."""
    offsets: Mapping[int, int] = field(default_factory=dict)
    """Of each allocation, in bytes; allocations of 0 or unknown bytes have none."""
    effort: Effort = field(default=BEST, compare=False, repr=False)
    """How far the search went."""

    @property
    def gap_bytes(self) -> int:
        """Bytes above the lower bound."""
        return self.size_bytes - self.lower_bound_bytes

    @property
    def is_optimal(self) -> bool:
        """Whether no smaller block can exist."""
        return self.gap_bytes == 0


class Blocks(NamedTuple):
    """The blocks to be placed, as columns: bytes, and the steps ``[start, stop)`` of each."""

    sizes: Sequence[int]
    starts: Sequence[int]
    stops: Sequence[int]

    @property
    def peak_bytes(self) -> int:
        """The most bytes live at one step."""
        changes = [0] * (max(self.stops, default=0) + 1)
        for size, start, stop in zip(*self, strict=True):
            changes[start] += size
            changes[stop] -= size
        return max(accumulate(changes))


class Measures:
    """The sort keys of each block."""

    def __init__(self, blocks: Blocks) -> None:
        """Compute all but the overlaps, which are the most expensive and not always needed."""
        self.sizes, self.starts, self.stops = blocks
        spans = zip(self.starts, self.stops, strict=True)
        self.lifetimes = [stop - start for start, stop in spans]
        self.classes = [life.bit_length() for life in self.lifetimes]
        self.firsts = [-start for start in self.starts]
        self.areas = [size * life for size, life in zip(self.sizes, self.lifetimes, strict=True)]
        self._overlaps: list[int] | None = None

    @property
    def overlaps(self) -> list[int]:
        """The most bytes that are live at any step of each block's lifetime."""
        if self._overlaps is None:
            self._overlaps = _overlaps(self.starts, self.stops, self.sizes)
        return self._overlaps


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """``Blocks`` as arrays, and which of them are live at once."""

    sizes: Ints
    starts: Ints
    stops: Ints
    conflicts: Sequence[Ints] | None = None
    """The indices of the blocks that are live with each block, if the pairs are few enough."""

    @classmethod
    def of(cls, blocks: Blocks, conflicts: Sequence[Sequence[int]] | None = None) -> Self:
        """Convert columns to arrays."""
        sizes, starts, stops = (np.array(column, dtype=np.int64) for column in blocks)
        listed = None
        if conflicts is not None:
            listed = [np.array(others, dtype=np.int64) for others in conflicts]
        return cls(sizes, starts, stops, listed)

    def live_with(self, block: int) -> Ints:
        """The indices of the blocks that are live with a block, without it."""
        if self.conflicts is not None:
            return self.conflicts[block]
        is_live = (self.starts < self.stops[block]) & (self.stops > self.starts[block])
        is_live[block] = False
        return np.flatnonzero(is_live)

    def top(self, offsets: Ints) -> int:
        """The size of the packed block at these offsets."""
        return int((offsets + self.sizes).max())


@dataclass(slots=True)
class FreeList:
    """The holes of a block, filled best fit, in O(log n) for each request.

    Holes are always merged: no two are adjacent, and none is adjacent to ``top``, above which all
    is free.
    """

    top: int = 0
    by_size: list[tuple[int, int]] = field(default_factory=list)
    """(size, offset) of each hole, sorted."""
    ends: dict[int, int] = field(default_factory=dict)
    """The end of each hole, by its offset."""
    starts: dict[int, int] = field(default_factory=dict)
    """The offset of each hole, by its end."""

    def allocate(self, size: int) -> int:
        """Allocate in the smallest hole that fits, else at the top; returns the offset."""
        hole_size = self.smallest(size)
        if hole_size is None:
            return self.above(size)
        _, offset = self.by_size[bisect_left(self.by_size, (size, 0))]
        self._remove(offset, offset + hole_size)
        if hole_size > size:
            self._add(offset + size, offset + hole_size)
        return offset

    def smallest(self, size: int) -> int | None:
        """The size of the smallest hole that fits; ``None``: none does."""
        index = bisect_left(self.by_size, (size, 0))
        return None if index == len(self.by_size) else self.by_size[index][0]

    def above(self, size: int) -> int:
        """Allocate at the top; returns the offset."""
        offset = self.top
        self.top += size
        return offset

    def free(self, offset: int, size: int) -> None:
        """Free bytes, and merge them with adjacent holes."""
        # Merging with both neighbors keeps the invariant; a hole that would reach the top lowers
        # it.
        start, end = self.starts.get(offset, offset), offset + size
        end = self.ends.get(end, end)
        if start < offset:
            self._remove(start, offset)
        if end > offset + size:
            self._remove(offset + size, end)
        if end == self.top:
            self.top = start
        else:
            self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        insort(self.by_size, (end - start, start))
        self.ends[start] = end
        self.starts[end] = start

    def _remove(self, start: int, end: int) -> None:
        del self.by_size[bisect_left(self.by_size, (end - start, start))]
        del self.ends[start], self.starts[end]


def pack(
    program: Program, sizes: Sizes, together: Iterable[range] = (), effort: Effort = BEST
) -> Packing:
    """Find an offset for every allocation of known size.

    Each range in ``together`` has allocations of equal lifetimes, which are packed as one block,
    one after another.
    """
    # A range counts as one block in the search, and is cut up again when its offset is known.
    size_of = sizes.fixed_bytes.tolist()
    starts, stops = (column.tolist() for column in _moments(program))
    runs = [run for run in together if any(size_of[number] for number in run)]
    in_runs = {number for run in runs for number in run}
    numbers = [n for n, size in enumerate(size_of) if size and n not in in_runs]
    firsts = [*numbers, *(run.start for run in runs)]
    found, offsets, lower_bound = pack_blocks(
        Blocks(
            [*(size_of[n] for n in numbers), *(sum(size_of[n] for n in run) for run in runs)],
            [starts[n] for n in firsts],
            [stops[n] for n in firsts],
        ),
        effort,
    )
    placed = dict(zip(numbers, offsets, strict=False))
    for run, first in zip(runs, offsets[len(numbers) :], strict=True):
        ends = accumulate((size_of[n] for n in run), initial=first)
        placed |= {n: offset for n, offset in zip(run, ends, strict=False) if size_of[n]}
    return Packing(found, lower_bound, placed, effort)


def _moments(program: Program) -> tuple[IntColumn, IntColumn]:
    """The lifetimes of a program's allocations, which overlap if both are alive at once.

    They count steps, but a step that allocates after a release counts as several: two temporaries
    of one node, one released before the other is allocated, may share their bytes.
    """
    steps, is_release = program.event_steps, program.events < 0
    begins = is_release[:-1] & ~is_release[1:] & (steps[1:] == steps[:-1])
    num_before = np.concatenate(([0], np.cumsum(begins)))[: len(steps)]
    num_more = int(num_before[-1]) if len(steps) else 0
    return program.spans_over(steps + num_before, len(program.steps) + num_more)


def pack_blocks(blocks: Blocks, effort: Effort = BEST) -> tuple[int, Sequence[int], int]:
    """Pack blocks of at least one byte each: the size, the offsets, the lower bound of the size."""
    lower_bound = blocks.peak_bytes
    by_time = place_by_time(blocks)
    found: list[_Placement] = [(_top(by_time, blocks.sizes), by_time)]
    if found[0][0] > lower_bound:
        found += _better_placements(found[0], blocks, lower_bound, effort)
    return (*min(found, key=itemgetter(0)), lower_bound)


def _better_placements(
    by_time: _Placement, blocks: Blocks, lower_bound: int, effort: Effort
) -> Iterator[_Placement]:
    """Placements by orders and ejection chains, most of them smaller than that by time."""
    sizes = blocks.sizes
    conflicts, measures = find_conflicts(blocks, _MAX_CONFLICTS), Measures(blocks)
    is_large = sum(sizes) >= _LARGEST_SUM
    if conflicts is not None:
        placements = _pair_placements(measures, conflicts, effort)
    else:
        flat = () if is_large else flat_placements(measures, effort.flat_work)
        placements = chain((place_by_time(backwards(blocks)),), flat)
    starts = _best_placements(by_time, placements, sizes, lower_bound)
    yield from starts
    if starts[0][0] == lower_bound or is_large:
        return
    num_starts = effort.num_starts if conflicts else 1
    spans = Spans.of(blocks, conflicts)
    for lower in _improved(starts[:num_starts], spans, lower_bound, effort):
        yield lower
        if lower[0] == lower_bound:
            return
    if conflicts is not None:
        # Compared too, so that no search ends above the order of time or its reverse.
        from_the_end = place_by_time(backwards(blocks))
        yield _top(from_the_end, sizes), from_the_end


def backwards(blocks: Blocks) -> Blocks:
    """The blocks with time reversed: those that overlap are the same."""
    # Deep caches and experts whose outputs are all summed fall into place from their end.
    end = max(blocks.stops)
    return Blocks(
        blocks.sizes,
        [end - stop for stop in blocks.stops],
        [end - start for start in blocks.starts],
    )


def _best_placements(
    by_time: _Placement,
    placements: Iterable[Sequence[int]],
    sizes: Sequence[int],
    lower_bound: int,
) -> list[_Placement]:
    """The best few placements, the smallest first; one at the lower bound ends the search."""
    found = [by_time]
    for offsets in placements:
        found = sorted((*found, (_top(offsets, sizes), offsets)), key=itemgetter(0))[:_MOST_STARTS]
        if found[0][0] == lower_bound:
            break
    return found


def _improved(
    found: Iterable[_Placement], spans: Spans, lower_bound: int, effort: Effort
) -> Iterator[_Placement]:
    """Improve placements by ejection chains."""
    # Steps are counted, never seconds: one packing on every machine. A step costs up to one pass
    # over all blocks, so that a larger graph takes fewer.
    num_blocks, num_steps = len(spans.sizes), effort.num_steps
    if spans.conflicts is not None and effort.blocks_per_step:
        num_steps = max(num_steps, num_blocks // effort.blocks_per_step)
    num_steps = min(num_steps, _MAX_STEP_WORK // num_blocks)
    for _, offsets in found:
        best = np.array(offsets, dtype=np.int64)
        for smaller in improved(best, spans, lower_bound, num_steps):
            best = smaller
        yield spans.top(best), best.tolist()


def _top(offsets: Iterable[int], sizes: Iterable[int]) -> int:
    return max((offset + size for offset, size in zip(offsets, sizes, strict=True)), default=0)


def _pair_placements(
    measures: Measures, conflicts: Sequence[Sequence[int]], effort: Effort
) -> Iterator[Sequence[int]]:
    """Place by every order with both fits, within the limit on work."""
    work = 1 + sum(BLOCK_WORK + len(others) for others in conflicts)
    num_tries = max(effort.orders_of_all, effort.pair_work // work)
    ways = ((order, fit) for order in orders(measures) for fit in (best_fit, first_fit))
    for order, fit in islice(ways, num_tries):
        offsets = [-1] * len(order)
        place_blocks(order, measures.sizes, conflicts, fit, offsets)
        yield offsets


def place_by_time(blocks: Blocks) -> list[int]:
    """Place blocks as a run allocates them, best fit; the largest first within a step."""
    sizes, starts, stops = blocks
    offsets = [0] * len(sizes)
    free_list = FreeList()
    live: list[tuple[int, int]] = []
    for i in sorted(range(len(sizes)), key=lambda i: (starts[i], -sizes[i])):
        # A stop is exclusive: what ends at this step has already released its bytes.
        while live and live[0][0] <= starts[i]:
            _, dead = heappop(live)
            free_list.free(offsets[dead], sizes[dead])
        offsets[i] = free_list.allocate(sizes[i])
        heappush(live, (stops[i], i))
    return offsets


def orders(measures: Measures) -> Iterator[list[int]]:
    """Generate the orders, each when it is requested.

    Size, area and lifetime: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
    Inference", 2020, and XLA's heap simulator (``GlobalDecreasingSizeBestFitHeap``). Overlap, area
    and lifetime combined: the static orders TAW, TWA and WAT of google/minimalloc, where T (here
    the overlap) is the most bytes live at any step of a block's lifetime. Classes are lifetimes
    rounded to powers of two: blocks of a class are adjacent, long-lived ones lowest.
    """
    for keys in _KEYS:
        values = [key(measures) for key in keys]
        ranks = list(zip(*values, strict=True))
        yield sorted(range(len(measures.sizes)), key=ranks.__getitem__, reverse=True)


def attempts(measures: Measures) -> Iterator[tuple[list[int], bool]]:
    """Every order with both fits; True: first fit (the lowest gap), False: best fit."""
    untried = orders(measures)
    while few := list(islice(untried, _ORDERS_AT_ONCE)):
        for takes_lowest in (False, True):
            yield from ((order, takes_lowest) for order in few)


def _overlaps(starts: Sequence[int], stops: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Maxima of the live bytes over each lifetime, by a sparse table.

    Steps at which no block starts are omitted: their live bytes are at most those of the step
    before.
    """
    steps = sorted({*starts})
    indices = {step: index for index, step in enumerate(steps)}
    firsts = [indices[start] for start in starts]
    lasts = [bisect_left(steps, stop) for stop in stops]
    changes = [0] * (len(steps) + 1)
    for first, last, size in zip(firsts, lasts, sizes, strict=True):
        changes[first] += size
        changes[last] -= size
    # tables[k][i] is the maximum over the 2^k steps from i on.
    tables = [list(accumulate(changes))]
    longest = max((last - first for first, last in zip(firsts, lasts, strict=True)), default=0)
    while 2 ** len(tables) <= longest:
        row, half = tables[-1], 2 ** (len(tables) - 1)
        tables.append(list(map(max, row, row[half:])))
    # Two ranges of 2^power steps, one from each end, cover a lifetime; that they overlap does not
    # change the maximum.
    overlaps = []
    for first, last in zip(firsts, lasts, strict=True):
        power = (last - first).bit_length() - 1
        overlaps.append(max(tables[power][first], tables[power][last - 2**power]))
    return overlaps


_Key = Callable[[Measures], list[int]]
_SIZE: Final[_Key] = attrgetter("sizes")


_AREA: Final[_Key] = attrgetter("areas")


_LIFETIME: Final[_Key] = attrgetter("lifetimes")


_OVERLAP: Final[_Key] = attrgetter("overlaps")


_CLASS: Final[_Key] = attrgetter("classes")


_FIRST: Final[_Key] = attrgetter("firsts")


_KEYS: Final = (
    (_SIZE,),
    (_CLASS, _OVERLAP, _LIFETIME),
    (_OVERLAP, _CLASS, _FIRST),
    (_OVERLAP, _LIFETIME, _AREA),
    (_OVERLAP, _AREA, _LIFETIME),
    (_LIFETIME, _AREA, _OVERLAP),
    (_CLASS, _FIRST),
    (_AREA,),
    (_LIFETIME, _SIZE),
    (_FIRST, _SIZE),
)


def find_conflicts(blocks: Blocks, max_conflicts: int) -> list[list[int]] | None:
    """For each block the blocks that are live with it; ``None``: more than so many pairs."""
    _, starts, stops = blocks
    conflicts: list[list[int]] = [[] for _ in starts]
    # A sweep over the starts: `live` is a heap, by stop, of the blocks that have not ended.
    live: list[tuple[int, int]] = []
    num_conflicts = 0
    for i in sorted(range(len(starts)), key=starts.__getitem__):
        while live and live[0][0] <= starts[i]:
            heappop(live)
        num_conflicts += len(live)
        if num_conflicts > max_conflicts:
            return None
        conflicts[i].extend(other for _, other in live)
        for _, other in live:
            conflicts[other].append(i)
        heappush(live, (stops[i], i))
    return conflicts


def place_blocks(
    order: Iterable[int],
    sizes: Sequence[int],
    conflicts: Sequence[Sequence[int]],
    fit: Fit,
    offsets: list[int],
) -> None:
    """Place blocks in order, each among the conflicting ones with an offset; -1 is no offset."""
    for i in order:
        taken = [
            (offset, offset + sizes[other])
            for other in conflicts[i]
            if (offset := offsets[other]) >= 0
        ]
        taken.sort()
        offsets[i] = fit(taken, sizes[i])


def best_fit(taken: Iterable[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap that fits, else the end of all ranges."""
    top = 0
    best_gap, best_offset = None, None
    for start, stop in taken:
        gap = start - top
        if gap >= size and (best_gap is None or gap < best_gap):
            best_gap, best_offset = gap, top
        top = max(top, stop)
    return top if best_offset is None else best_offset


def first_fit(taken: Iterable[tuple[int, int]], size: int) -> int:
    """The start of the lowest gap that fits, else the end of all ranges."""
    top = 0
    for start, stop in taken:
        if start - top >= size:
            return top
        top = max(top, stop)
    return top


def place_flat(
    order: Sequence[int],
    sizes: Sequence[int],
    starts: Sequence[int],
    stops: Sequence[int],
    *,
    takes_lowest: bool,
) -> Sequence[int]:
    """Place blocks in order, each in the smallest or the lowest gap that fits, without a list of
    conflicts.
    """
    offsets = [0] * len(order)
    # Rows are offset, end, start and stop. The first num_placed columns are the blocks placed so
    # far, sorted by offset, so one pass over each row finds the gaps between the live ones.
    columns = np.zeros((4, len(order)), dtype=np.int64)
    for num_placed, i in enumerate(order):
        low, high, start, stop = columns[:, :num_placed]
        is_live = (start < stops[i]) & (stop > starts[i])
        tops, gaps = gaps_between(low[is_live], high[is_live])
        offset = int(tops[fitting(gaps, sizes[i], takes_lowest=takes_lowest)])
        offsets[i] = offset
        # Shift the columns above, so that they stay sorted by offset.
        column = int(np.searchsorted(low, offset))
        columns[:, column + 1 : num_placed + 1] = columns[:, column:num_placed]
        columns[:, column] = offset, offset + sizes[i], starts[i], stops[i]
    return offsets


def flat_placements(measures: Measures, max_work: int) -> Iterator[Sequence[int]]:
    """Place by orders with both fits, within the limit on work."""
    where = measures.sizes, measures.starts, measures.stops
    num_tries = max_work // (len(measures.sizes) ** 2 // 2 + 1)
    for order, takes_lowest in islice(attempts(measures), num_tries):
        yield place_flat(order, *where, takes_lowest=takes_lowest)


def gaps_between(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """The start and the size of each gap between sorted ranges, that below the first included.

    The space above all ranges has a start, but no size.
    """
    tops = np.zeros(low.size + 1, dtype=np.int64)
    np.maximum.accumulate(high, out=tops[1:])
    return tops, low - tops[:-1]


def fitting(gaps: Ints, size: int, *, takes_lowest: bool) -> int:
    """The index of the gap to use; one past the last gap is the space above all ranges."""
    fits = gaps >= size
    if not fits.any():
        return int(gaps.size)
    if takes_lowest:
        return int(fits.argmax())
    return int(np.where(fits, gaps, _NO_GAP).argmin())


_FIRST_PART: Final = 0.85
"""The lower bound is tried first as a limit, then so large a part of the gap above it."""


# The search ends there: half a percent of the gap is not worth its steps.
_LAST_PART: Final = 0.995


_ATTEMPTS: Final = 4
"""One limit gets at most this fraction of the steps, so that a limit too low leaves some."""


_FIRST_ATTEMPTS: Final = 16
"""The same for the lower bound, which is often too low."""


def improved(offsets: Ints, spans: Spans, lower_bound: int, num_steps: int) -> Iterator[Ints]:
    """Generate offsets of smaller and smaller blocks, down to the lower bound or for so many steps.

    A step places one block: some array operations with an element for each block that is live with
    it.
    """
    part, at_most = 0.0, num_steps // _FIRST_ATTEMPTS
    later = num_steps // _ATTEMPTS
    while num_steps > 0:
        # A limit that was met is followed by one at the same part of the smaller gap; a limit that
        # was not met, by one that leaves half of the distance to the size known to work.
        gap = spans.top(offsets) - lower_bound
        if gap <= 0:
            return
        walk = _EjectionChains(spans, lower_bound + int(gap * part))
        found = walk.improved(offsets, min(num_steps, at_most))
        num_steps -= walk.num_steps + 1
        if found is not None:
            offsets = found
            yield offsets
        elif part == 0:
            part, at_most = _FIRST_PART, later
        else:
            part = (1 + part) / 2
            if part > _LAST_PART:
                return


@dataclass(slots=True, eq=False)
class _EjectionChains:
    """Tries to place all blocks below one limit.

    Blocks that end above the limit are removed and placed again, the largest first, each in the
    smallest gap that fits below the limit. If none fits, the block replaces the blocks of the least
    total weight, which are ejected and placed again: ejection chains (Glover, "Ejection chains,
    reference structures and alternating path methods for traveling salesman problems", 1996). The
    weight is bytes times steps, and grows each time a block is ejected or ejects others, so that
    two blocks cannot replace each other forever. Invariant: no two placed blocks overlap.
    """

    spans: Spans
    limit: int
    num_steps: int = 0
    offsets: Ints = field(init=False)
    is_placed: npt.NDArray[np.bool_] = field(init=False)
    ranks: Ints = field(init=False)
    """Which of two blocks at the same offset comes first: the one that was placed last."""
    areas: Floats = field(init=False)
    weights: Floats = field(init=False)

    def improved(self, offsets: Ints, num_steps: int) -> Ints | None:
        """Place all blocks below the limit; ``None``: not within so many steps."""
        spans = self.spans
        self.offsets = offsets.copy()
        self.is_placed = offsets + spans.sizes <= self.limit
        self.ranks = np.arange(len(offsets))
        self.areas = spans.sizes.astype(np.float64) * (spans.stops - spans.starts)
        moves = np.ones(len(offsets))
        self.weights = self.areas.copy()
        waiting = [(-float(self.areas[i]), int(i)) for i in np.flatnonzero(~self.is_placed)]
        heapify(waiting)
        while waiting:
            if self.num_steps == num_steps:
                return None
            self.num_steps += 1
            _, block = heappop(waiting)
            ejected = self._place(block)
            if ejected.size:
                moved = np.append(ejected, block)
                # Quadratic growth, so that blocks that move often soon stay.
                moves[moved] += 1
                self.weights[moved] = self.areas[moved] * moves[moved] ** 2
            for i in ejected:
                heappush(waiting, (-float(self.areas[i]), int(i)))
        return self.offsets

    def _place(self, block: int) -> Ints:
        """Place a block in a gap or in place of others; returns the blocks that it ejects."""
        spans, size = self.spans, int(self.spans.sizes[block])
        live = spans.live_with(block)
        live = live[self.is_placed[live]]
        live = live[np.lexsort((self.ranks[live], self.offsets[live]))]
        low = self.offsets[live]
        high = low + spans.sizes[live]
        tops, gaps = gaps_between(low, high)
        # The space above all ranges counts as a gap that ends at the limit.
        gaps = np.append(gaps, self.limit - tops[-1])
        index = fitting(gaps, size, takes_lowest=False)
        ejected: Ints = live[:0]
        if index < gaps.size:
            offset = int(tops[index])
        else:
            offset = self._lightest_offset(tops, (low, high), self.weights[live], size)
            ejected = live[(low < offset + size) & (high > offset)]
            self.is_placed[ejected] = False
        self.is_placed[block] = True
        self.offsets[block] = offset
        self.ranks[block] = -self.num_steps
        return ejected

    def _lightest_offset(
        self, tops: Ints, ranges: tuple[Ints, Ints], weights: Floats, size: int
    ) -> int:
        """The offset at which the overlapped blocks weigh least; ranges are sorted by start."""
        low, high = ranges
        highest = self.limit - size
        offsets = np.append(tops[tops <= highest], highest)
        # Overlapped are the ranges that start before the block's end, less those that end before
        # its start. Candidates are the tops of the ranges and the highest offset.
        started = np.append(0.0, np.cumsum(weights))
        first = np.searchsorted(offsets, high, side="left")
        ended = np.cumsum(np.bincount(first, weights, minlength=offsets.size))[: offsets.size]
        in_the_way = started[np.searchsorted(low, offsets + size, side="left")] - ended
        return int(offsets[in_the_way.argmin()])
