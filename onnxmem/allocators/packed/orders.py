"""Orders in which blocks may be placed, largest first by one measure or another.

size, area and lifetime: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
Inference", 2020, and XLA's heap simulator (``GlobalDecreasingSizeBestFitHeap``). Crowd, area and
lifetime one after another: the static orders TAW, TWA and WAT of google/minimalloc, where T (here
the crowd) is the most bytes that are live at one step of a block's lifetime. Classes are lifetimes
by powers of two: blocks of a class lie beside each other whatever their sizes, long ones lowest.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice
from operator import attrgetter
from typing import Final

from onnxmem.program.lifetimes import Lifetime

_ORDERS_AT_ONCE: Final = 4
"""Tried with one fit before the other: orders differ more than fits do."""


class Measures:
    """What orders go by, of each block."""

    def __init__(self, blocks: Sequence[Lifetime], sizes: Sequence[int]) -> None:
        """Work out all but the crowds, which take the longest."""
        self.sizes = sizes
        self.starts = [block.start for block in blocks]
        self.stops = [block.stop for block in blocks]
        self.lifetimes = [block.stop - block.start for block in blocks]
        self.classes = [life.bit_length() for life in self.lifetimes]
        self.firsts = [-start for start in self.starts]
        self.areas = [size * life for size, life in zip(sizes, self.lifetimes, strict=True)]
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
