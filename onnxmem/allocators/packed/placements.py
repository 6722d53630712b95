"""Offsets from an order: blocks in turn, each in a gap between those live with it.

Orders are largest first by one measure or another. size, area and lifetime: Pisarchyk and Lee,
"Efficient Memory Management for Deep Neural Net Inference", 2020, and XLA's heap simulator
(``GlobalDecreasingSizeBestFitHeap``). Crowd, area and lifetime one after another: the static orders
TAW, TWA and WAT of google/minimalloc, where T (here the crowd) is the most bytes that are live at
one step of a block's lifetime. Classes are lifetimes by powers of two: blocks of a class lie beside
each other whatever their sizes, long ones lowest.

Gaps are looked for in three ways: in the order of time with a free list, in O(n log n) however many
are live together; among the pairs that are live together, where these are few enough to list; and
in flat arrays, where each block looks at all that are placed so far, a few array operations of it:
30,000 blocks of which 43 million pairs are live together take seconds, where lists of pairs take a
minute.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import accumulate, islice
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from onnxmem.allocators.free_list import FreeList

Ints = npt.NDArray[np.int64]
Fit = Callable[[Iterable[tuple[int, int]], int], int]
"""Where a size goes among sorted (start, stop) ranges: ``best_fit`` or ``first_fit``."""

BLOCK_WORK = 8
"""Pairs that take as long to look at as one block takes beside its pairs."""
_NO_GAP = 2**63 - 1
_ORDERS_AT_ONCE: Final = 4
"""Tried with one fit before the other: orders differ more than fits do."""


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

    def take(self, numbers: Iterable[int]) -> "Blocks":
        """Some of them, in that order."""
        order = list(numbers)
        return Blocks(*([column[each] for each in order] for column in self))


class Measures:
    """What orders go by, of each block."""

    def __init__(self, blocks: Blocks) -> None:
        """Compute all but the crowds, which take the longest."""
        self.sizes, self.starts, self.stops = blocks
        spans = zip(self.starts, self.stops, strict=True)
        self.lifetimes = [stop - start for start, stop in spans]
        self.classes = [life.bit_length() for life in self.lifetimes]
        self.firsts = [-start for start in self.starts]
        self.areas = [size * life for size, life in zip(self.sizes, self.lifetimes, strict=True)]
        self._crowds: list[int] | None = None

    @property
    def crowds(self) -> list[int]:
        """The most bytes that are live at one step of each block's lifetime."""
        if self._crowds is None:
            self._crowds = _crowds(self.starts, self.stops, self.sizes)
        return self._crowds


def orders(measures: Measures) -> Iterator[list[int]]:
    """One order after another, each worked out when it is asked for."""
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


def _crowds(starts: Sequence[int], stops: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Range maxima of the live bytes, by a table of the maxima of 1, 2, 4, ... steps.

    Steps at which nothing starts are left out: each sees no more bytes than the one before it.
    """
    steps = sorted({*starts})
    places = {step: place for place, step in enumerate(steps)}
    firsts = [places[start] for start in starts]
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
    crowds = []
    for first, last in zip(firsts, lasts, strict=True):
        power = (last - first).bit_length() - 1
        crowds.append(max(tables[power][first], tables[power][last - 2**power]))
    return crowds


_Key = Callable[[Measures], list[int]]
_SIZE: Final[_Key] = attrgetter("sizes")
_AREA: Final[_Key] = attrgetter("areas")
_LIFETIME: Final[_Key] = attrgetter("lifetimes")
_CROWD: Final[_Key] = attrgetter("crowds")
_CLASS: Final[_Key] = attrgetter("classes")
_FIRST: Final[_Key] = attrgetter("firsts")
_KEYS: Final = (
    (_SIZE,),
    (_CLASS, _CROWD, _LIFETIME),
    (_CROWD, _CLASS, _FIRST),
    (_CROWD, _LIFETIME, _AREA),
    (_CROWD, _AREA, _LIFETIME),
    (_LIFETIME, _AREA, _CROWD),
    (_CLASS, _FIRST),
    (_AREA,),
    (_LIFETIME, _SIZE),
    (_FIRST, _SIZE),
)


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
    placed: Sequence[int] = (),
) -> Sequence[int]:
    """Place each block in the smallest or the lowest gap that holds it among those placed.

    ``placed`` are the offsets of the first blocks, where these are placed already and stay.
    """
    offsets = [*placed, *[0] * len(order)]
    # One row each of offset, end, start and stop, its columns in the order of the offsets.
    columns = np.zeros((4, len(offsets)), dtype=np.int64)
    for column, i in enumerate(sorted(range(len(placed)), key=placed.__getitem__)):
        columns[:, column] = placed[i], placed[i] + sizes[i], starts[i], stops[i]
    for num_placed, i in enumerate(order, start=len(placed)):
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
    """The place of the gap to take; the last is above all and always fits."""
    fits = gaps >= size
    if not fits.any():
        return int(gaps.size)
    if takes_lowest:
        return int(fits.argmax())
    return int(np.where(fits, gaps, _NO_GAP).argmin())
