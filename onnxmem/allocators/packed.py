"""One block in which every allocation of a program has an offset (definition 5).

A program and its sizes go in, a ``Packing`` comes out. Two allocations that are alive at once never
share an address. No block is smaller than the peak of the live bytes, and one as small as that peak
is optimal: the search ends there. Sizes are taken as they are: nothing is padded to an alignment,
which each runtime chooses for itself. Finding the smallest block is NP-hard, so the search goes
from cheap to dear and ends at the first optimal block:

1. in the order of time, with a free list, in O(n log n) however many are alive together;
2. in ten orders, largest first by one measure or another, each with the smallest gap that fits and
   with the lowest: among the pairs that are alive together where these are few enough to list, and
   where they are more in flat arrays, in which each block looks at all that are placed so far
   (30,000 blocks of which 43 million pairs are alive together take seconds; lists of pairs take a
   minute);
3. by ejection chains from the best two: what stands out of a lower limit is placed anew.

Work is counted in pairs, not in seconds: a model is packed alike on every machine. Which of these
lower the block of a real model is measured in docs/decisions/0019.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate, islice
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from onnxmem.program.program import IntColumn, Program
from onnxmem.program.sizes import Sizes

Ints = npt.NDArray[np.int64]


Floats = npt.NDArray[np.float64]


Fit = Callable[[Iterable[tuple[int, int]], int], int]
"""Where a size goes among sorted (start, stop) ranges: ``best_fit`` or ``first_fit``."""


_Placed = tuple[int, Sequence[int]]
"""The size of an arena and the offsets of the blocks in it."""


_MAX_CONFLICTS = 300_000
"""Pairs of buffers live together up to which they are listed: some 6 MiB."""


_MAX_WORK = 6_000_000
"""Pairs and buffers that all orders together may look at: about a second."""


_MAX_FLAT_WORK = 800_000_000
"""The same of flat arrays, where a pair is a few operations of one element: some seconds."""


_MOST_FLAT = 56_000
"""Blocks in flat arrays: each looks at all others, so that the work grows with the square."""


_STARTS = 2
"""The best arenas of orders that are lowered."""


_MAX_STEPS = 10_000
"""At lowering one of them: a few buffers would use their work up by steps without number."""


_MAX_STEP_WORK = 200_000_000
"""Buffers that all of these steps together may look at."""


_LARGEST_SUM = 2**62
"""Of bytes that numpy adds: what a hostile file says may be past it."""


BLOCK_WORK = 8
"""Pairs that take as long to look at as one block takes beside its pairs."""


_NO_GAP = 2**63 - 1


_ORDERS_AT_ONCE: Final = 4
"""Tried with one fit before the other: orders differ more than fits do."""


@dataclass(frozen=True, slots=True)
class Packing:
    """One block in which every allocation has an offset."""

    size_bytes: int
    lower_bound_bytes: int
    """Live bytes at the peak: no block is smaller."""
    offsets: Mapping[int, int] = field(default_factory=dict)
    """Of each allocation, in bytes; allocations without bytes have none."""

    @property
    def gap_bytes(self) -> int:
        """Bytes above the lower bound."""
        return self.size_bytes - self.lower_bound_bytes

    @property
    def is_proven(self) -> bool:
        """Whether no smaller block exists."""
        return self.gap_bytes == 0


class Blocks(NamedTuple):
    """What is placed, as columns: bytes, and the steps ``[start, stop)`` of each block."""

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
    """What orders go by, of each block."""

    def __init__(self, blocks: Blocks) -> None:
        """Compute all but the overlaps, which take the longest."""
        self.sizes, self.starts, self.stops = blocks
        spans = zip(self.starts, self.stops, strict=True)
        self.lifetimes = [stop - start for start, stop in spans]
        self.classes = [life.bit_length() for life in self.lifetimes]
        self.firsts = [-start for start in self.starts]
        self.areas = [size * life for size, life in zip(self.sizes, self.lifetimes, strict=True)]
        self._overlaps: list[int] | None = None

    @property
    def overlaps(self) -> list[int]:
        """The most bytes that are live at one step of each block's lifetime."""
        if self._overlaps is None:
            self._overlaps = _overlaps(self.starts, self.stops, self.sizes)
        return self._overlaps


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Blocks by their bytes, the step at which each starts, and the one before which it stops."""

    sizes: Ints
    starts: Ints
    stops: Ints

    @classmethod
    def of(cls, blocks: Blocks) -> Self:
        """Those of some blocks, as arrays."""
        return cls(*(np.array(column, dtype=np.int64) for column in blocks))

    def top(self, offsets: Ints) -> int:
        """The size of the arena that offsets make."""
        return int((offsets + self.sizes).max())


@dataclass(slots=True)
class FreeList:
    """The free bytes of a block whose holes are filled best fit, in O(log n) for each request.

    Holes are kept merged: no two touch, and none touches ``top``, from where on all is free.
    """

    top: int = 0
    by_size: list[tuple[int, int]] = field(default_factory=list)
    """(size, offset) of each hole, in order."""
    ends: dict[int, int] = field(default_factory=dict)
    """Offset of each hole to its end."""
    starts: dict[int, int] = field(default_factory=dict)
    """End of each hole to its offset."""

    def allocate(self, size: int) -> int:
        """Take the smallest hole that is large enough, else the bytes above all: the offset."""
        hole_size = self.smallest(size)
        if hole_size is None:
            return self.above(size)
        _, offset = self.by_size[bisect_left(self.by_size, (size, 0))]
        self._remove(offset, offset + hole_size)
        if hole_size > size:
            self._add(offset + size, offset + hole_size)
        return offset

    def smallest(self, size: int) -> int | None:
        """Bytes of the smallest hole that is large enough."""
        index = bisect_left(self.by_size, (size, 0))
        return None if index == len(self.by_size) else self.by_size[index][0]

    def above(self, size: int) -> int:
        """Take the bytes above all: the offset."""
        offset = self.top
        self.top += size
        return offset

    def free(self, offset: int, size: int) -> None:
        """Give bytes back; they become one hole with those beside them."""
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


def pack(program: Program, sizes: Sizes, together: Iterable[range] = ()) -> Packing:
    """Find every allocation an offset; those of unknown size are left out.

    ``together`` are runs of allocations that live equally long: each is packed as one block, one
    allocation behind the other. From 56,000 blocks on the order by time is the only one, in
    O(n log n).
    """
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
        )
    )
    placed = dict(zip(numbers, offsets, strict=False))
    for run, first in zip(runs, offsets[len(numbers) :], strict=True):
        ends = accumulate((size_of[n] for n in run), initial=first)
        placed |= {n: offset for n, offset in zip(run, ends, strict=False) if size_of[n]}
    return Packing(found, lower_bound, placed)


def _moments(program: Program) -> tuple[IntColumn, IntColumn]:
    """The lifetimes of a program's allocations, in which two meet if they are alive at once.

    They are those over its steps, but a step in which something is allocated after a release is
    several: what lives in one part of it alone meets nothing of another.
    """
    steps, is_release = program.event_steps, program.events < 0
    begins = is_release[:-1] & ~is_release[1:] & (steps[1:] == steps[:-1])
    num_before = np.concatenate(([0], np.cumsum(begins)))[: len(steps)]
    num_more = int(num_before[-1]) if len(steps) else 0
    return program.spans_over(steps + num_before, len(program.steps) + num_more)


def pack_blocks(blocks: Blocks) -> tuple[int, Sequence[int], int]:
    """The size of an arena that holds the blocks, their offsets, and the lower bound of the size.

    Every block has a byte at least.
    """
    lower_bound = blocks.peak_bytes
    in_time = place_in_time(blocks)
    found: list[_Placed] = [(_top(in_time, blocks.sizes), in_time)]
    if found[0][0] > lower_bound:
        found += _smaller(found[0], blocks, lower_bound)
    return (*min(found, key=itemgetter(0)), lower_bound)


def _smaller(in_time: _Placed, blocks: Blocks, lower_bound: int) -> Iterator[_Placed]:
    """Other placements, most of them smaller than that of the order by time."""
    sizes = blocks.sizes
    conflicts, measures = find_conflicts(blocks, _MAX_CONFLICTS), Measures(blocks)
    is_large = sum(sizes) >= _LARGEST_SUM
    is_flat = conflicts is None and len(sizes) <= _MOST_FLAT and not is_large
    placements: Iterable[Sequence[int]] = ()
    if conflicts is not None:
        placements = _by_pairs(measures, conflicts)
    elif is_flat:
        placements = flat_placements(measures, _MAX_FLAT_WORK)
    starts = _smallest(in_time, placements, sizes, lower_bound)
    yield from starts
    if starts[0][0] == lower_bound or is_large:
        return
    num_starts = _STARTS if conflicts else 1
    for lower in _lowered(starts[:num_starts], blocks, lower_bound):
        yield lower
        if lower[0] == lower_bound:
            return


def _smallest(
    in_time: _Placed,
    placements: Iterable[Sequence[int]],
    sizes: Sequence[int],
    lower_bound: int,
) -> list[_Placed]:
    """The best few of some placements, the best first; one at the lower bound ends the search."""
    found = [in_time]
    for offsets in placements:
        found = sorted((*found, (_top(offsets, sizes), offsets)), key=itemgetter(0))[:_STARTS]
        if found[0][0] == lower_bound:
            break
    return found


def _lowered(found: Iterable[_Placed], blocks: Blocks, lower_bound: int) -> Iterator[_Placed]:
    """Smaller placements, each from one that orders have found."""
    spans = Spans.of(blocks)
    num_steps = min(_MAX_STEPS, _MAX_STEP_WORK // len(blocks.sizes))
    for _, offsets in found:
        best = np.array(offsets, dtype=np.int64)
        for smaller in lowered(best, spans, lower_bound, num_steps):
            best = smaller
        yield spans.top(best), best.tolist()


def _top(offsets: Iterable[int], sizes: Iterable[int]) -> int:
    return max((offset + size for offset, size in zip(offsets, sizes, strict=True)), default=0)


def _by_pairs(measures: Measures, conflicts: Sequence[Sequence[int]]) -> Iterator[Sequence[int]]:
    """Every order with both fits, as many as there is work for."""
    work = 1 + sum(BLOCK_WORK + len(others) for others in conflicts)
    num_tries = max(1, _MAX_WORK // work)
    ways = ((order, fit) for order in orders(measures) for fit in (best_fit, first_fit))
    for order, fit in islice(ways, num_tries):
        offsets = [-1] * len(order)
        place_blocks(order, measures.sizes, conflicts, fit, offsets)
        yield offsets


def place_in_time(blocks: Blocks) -> list[int]:
    """Offsets as a run would find them, best fit; of those that start at one step largest first."""
    sizes, starts, stops = blocks
    offsets = [0] * len(sizes)
    free_list = FreeList()
    live: list[tuple[int, int]] = []
    for i in sorted(range(len(sizes)), key=lambda i: (starts[i], -sizes[i])):
        while live and live[0][0] <= starts[i]:
            _, dead = heappop(live)
            free_list.free(offsets[dead], sizes[dead])
        offsets[i] = free_list.allocate(sizes[i])
        heappush(live, (stops[i], i))
    return offsets


def orders(measures: Measures) -> Iterator[list[int]]:
    """One order after another, each computed when it is requested.

    Size, area and lifetime: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
    Inference", 2020, and XLA's heap simulator (``GlobalDecreasingSizeBestFitHeap``). Overlap, area
    and lifetime one after another: the static orders TAW, TWA and WAT of google/minimalloc, where T
    (here the overlap) is the most bytes live at one step of a block's lifetime. Classes are
    lifetimes by powers of two: blocks of a class lie beside each other, long ones lowest.
    """
    for keys in _KEYS:
        values = [key(measures) for key in keys]
        ranks = list(zip(*values, strict=True))
        yield sorted(range(len(measures.sizes)), key=ranks.__getitem__, reverse=True)


def tries(measures: Measures) -> Iterator[tuple[list[int], bool]]:
    """Every order with both fits: whether the lowest gap is taken, or the smallest that fits."""
    untried = orders(measures)
    while few := list(islice(untried, _ORDERS_AT_ONCE)):
        for takes_lowest in (False, True):
            yield from ((order, takes_lowest) for order in few)


def _overlaps(starts: Sequence[int], stops: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Range maxima of the live bytes, by a table of the maxima of 1, 2, 4, ... steps.

    Steps at which nothing starts are left out: each sees no more bytes than the one before it.
    """
    steps = sorted({*starts})
    indices = {step: index for index, step in enumerate(steps)}
    firsts = [indices[start] for start in starts]
    lasts = [bisect_left(steps, stop) for stop in stops]
    changes = [0] * (len(steps) + 1)
    for first, last, size in zip(firsts, lasts, sizes, strict=True):
        changes[first] += size
        changes[last] -= size
    tables = [list(accumulate(changes))]
    longest = max((last - first for first, last in zip(firsts, lasts, strict=True)), default=0)
    while 2 ** len(tables) <= longest:
        row, half = tables[-1], 2 ** (len(tables) - 1)
        tables.append(list(map(max, row, row[half:])))
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
    """For each block those that are live with it; ``None`` beyond so many pairs."""
    _, starts, stops = blocks
    conflicts: list[list[int]] = [[] for _ in starts]
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
    """Place blocks in turn among those of ``offsets`` that have one; -1 stands for none."""
    for i in order:
        taken = [
            (offset, offset + sizes[other])
            for other in conflicts[i]
            if (offset := offsets[other]) >= 0
        ]
        taken.sort()
        offsets[i] = fit(taken, sizes[i])


def best_fit(taken: Iterable[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap that holds the size, else the end of all."""
    top = 0
    best_gap, best_offset = None, None
    for start, stop in taken:
        gap = start - top
        if gap >= size and (best_gap is None or gap < best_gap):
            best_gap, best_offset = gap, top
        top = max(top, stop)
    return top if best_offset is None else best_offset


def first_fit(taken: Iterable[tuple[int, int]], size: int) -> int:
    """The start of the lowest gap that holds the size, else the end of all."""
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
    """Place each block in the smallest or the lowest gap that holds it among those placed."""
    offsets = [0] * len(order)
    # One row each of offset, end, start and stop; the first num_placed columns are the blocks
    # placed so far, in the order of their offsets, so that the gaps between the live ones come out
    # of one pass over each row.
    columns = np.zeros((4, len(order)), dtype=np.int64)
    for num_placed, i in enumerate(order):
        low, high, start, stop = columns[:, :num_placed]
        is_live = (start < stops[i]) & (stop > starts[i])
        tops, gaps = gaps_between(low[is_live], high[is_live])
        offset = int(tops[fitting(gaps, sizes[i], takes_lowest=takes_lowest)])
        offsets[i] = offset
        column = int(np.searchsorted(low, offset))
        columns[:, column + 1 : num_placed + 1] = columns[:, column:num_placed]
        columns[:, column] = offset, offset + sizes[i], starts[i], stops[i]
    return offsets


def flat_placements(measures: Measures, max_work: int) -> Iterator[Sequence[int]]:
    """Every order with both fits, as many as there is work for, and one at least."""
    where = measures.sizes, measures.starts, measures.stops
    num_tries = max(1, max_work // (len(measures.sizes) ** 2 // 2 + 1))
    for order, takes_lowest in islice(tries(measures), num_tries):
        yield place_flat(order, *where, takes_lowest=takes_lowest)


def gaps_between(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Where each gap begins and its size, from 0 up; ranges come sorted, the last has no end."""
    tops = np.zeros(low.size + 1, dtype=np.int64)
    np.maximum.accumulate(high, out=tops[1:])
    return tops, low - tops[:-1]


def fitting(gaps: Ints, size: int, *, takes_lowest: bool) -> int:
    """The index of the gap to take; the last is above all and always fits."""
    fits = gaps >= size
    if not fits.any():
        return int(gaps.size)
    if takes_lowest:
        return int(fits.argmax())
    return int(np.where(fits, gaps, _NO_GAP).argmin())


_FIRST_PART: Final = 0.85
"""Of what an arena has above the lower bound: the limit that is tried first, after the bound."""


_LAST_PART: Final = 0.995


_ATTEMPTS: Final = 4
"""So many at least share the steps: a limit that is too low takes no more."""


_FIRST_ATTEMPTS: Final = 16
"""The same of the lower bound, which is often too low."""


def lowered(offsets: Ints, spans: Spans, lower_bound: int, num_steps: int) -> Iterator[Ints]:
    """Offsets of smaller and smaller arenas, until the lower bound or for so many steps.

    A step places one block: some array operations of as many elements as there are blocks.
    """
    part, at_most = 0.0, num_steps // _FIRST_ATTEMPTS
    later = num_steps // _ATTEMPTS
    while num_steps > 0:
        gap = spans.top(offsets) - lower_bound
        if gap <= 0:
            return
        walk = _Ejecting(spans, lower_bound + int(gap * part))
        found = walk.lowered(offsets, min(num_steps, at_most))
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
class _Ejecting:
    """One limit, and the blocks that are placed below it so far.

    The blocks that end above the limit are taken out and placed again, the largest first, each in
    the smallest gap that holds it below the limit. Where there is none, it takes the place of the
    blocks that weigh least, which are put out and placed again in their turn: such chains are
    ejection chains (Glover, "Ejection chains, reference structures and alternating path methods for
    traveling salesman problems", 1996). A block weighs its bytes times its steps, and more each
    time that it has put others out or was put out, so that no two change places for ever. At every
    step no two of the placed blocks share an address while both are alive.
    """

    spans: Spans
    limit: int
    num_steps: int = 0
    offsets: Ints = field(init=False)
    is_placed: npt.NDArray[np.bool_] = field(init=False)
    order: Ints = field(init=False)
    """The blocks that are placed, the lowest first."""
    areas: Floats = field(init=False)
    weights: Floats = field(init=False)

    def lowered(self, offsets: Ints, num_steps: int) -> Ints | None:
        """Bring all blocks below the limit; ``None``: not in so many steps."""
        spans = self.spans
        self.offsets = offsets.copy()
        self.is_placed = offsets + spans.sizes <= self.limit
        placed = np.flatnonzero(self.is_placed)
        self.order = placed[np.argsort(offsets[placed], kind="stable")]
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
            put_out = self._place(block)
            if put_out.size:
                moved = np.append(put_out, block)
                moves[moved] += 1
                self.weights[moved] = self.areas[moved] * moves[moved] ** 2
            for i in put_out:
                heappush(waiting, (-float(self.areas[i]), int(i)))
        return self.offsets

    def _place(self, block: int) -> Ints:
        """Place a block, in a gap or in the place of others: those that it puts out."""
        spans, size = self.spans, int(self.spans.sizes[block])
        is_live = spans.starts < spans.stops[block]
        is_live &= spans.stops > spans.starts[block]
        live = self.order[is_live[self.order]]
        low = self.offsets[live]
        high = low + spans.sizes[live]
        tops, gaps = gaps_between(low, high)
        # The last gap ends at the limit.
        gaps = np.append(gaps, self.limit - tops[-1])
        index = fitting(gaps, size, takes_lowest=False)
        put_out: Ints = live[:0]
        if index < gaps.size:
            offset = int(tops[index])
        else:
            offset = self._lightest(tops, (low, high), self.weights[live], size)
            put_out = live[(low < offset + size) & (high > offset)]
            self.is_placed[put_out] = False
            self.order = self.order[self.is_placed[self.order]]
        self.is_placed[block] = True
        self.offsets[block] = offset
        index = int(np.searchsorted(self.offsets[self.order], offset))
        self.order = np.insert(self.order, index, block)
        return put_out

    def _lightest(self, tops: Ints, ranges: tuple[Ints, Ints], weights: Floats, size: int) -> int:
        """The offset at which the blocks in the way weigh least; ranges come sorted by start."""
        low, high = ranges
        highest = self.limit - size
        offsets = np.append(tops[tops <= highest], highest)
        # In the way are those that start before the block's end, less those that end before it.
        started = np.append(0.0, np.cumsum(weights))
        first = np.searchsorted(offsets, high, side="left")
        ended = np.cumsum(np.bincount(first, weights, minlength=offsets.size))[: offsets.size]
        in_the_way = started[np.searchsorted(low, offsets + size, side="left")] - ended
        return int(offsets[in_the_way.argmin()])
