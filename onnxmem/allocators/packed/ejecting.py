"""A smaller arena from one that was found: what stands out of it is placed anew.

A limit is set below the arena. The blocks that end above it are taken out and placed again, the
largest first, each in the smallest gap that holds it below the limit. Where there is none, it takes
the place of the blocks that weigh least, which are put out and placed again in their turn: such
chains are ejection chains (Glover, "Ejection chains, reference structures and alternating path
methods for traveling salesman problems", 1996). A block weighs its bytes times its steps, and more
each time that it has put others out or was put out, so that no two change places for ever.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from onnxmem.allocators.packed.placements import Blocks, Ints, fitting, gaps_between

Floats = npt.NDArray[np.float64]

_FIRST_PART: Final = 0.85
"""Of what an arena has above the lower bound: the limit that is tried first, after the bound."""
_LAST_PART: Final = 0.995
_ATTEMPTS: Final = 4
"""So many at least share the steps: a limit that is too low takes no more."""
_FIRST_ATTEMPTS: Final = 16
"""The same of the lower bound, which is often too low."""


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


def lowest(offsets: Ints, spans: Spans, lower_bound: int, num_steps: int) -> Ints:
    """The smallest of those arenas, or the one that it begins with."""
    for lower in lowered(offsets, spans, lower_bound, num_steps):
        offsets = lower
    return offsets


@dataclass(slots=True, eq=False)
class _Ejecting:
    """One limit, and the blocks that are placed below it so far."""

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
        place = fitting(gaps, size, takes_lowest=False)
        put_out: Ints = live[:0]
        if place < gaps.size:
            offset = int(tops[place])
        else:
            offset = self._lightest(tops, (low, high), self.weights[live], size)
            put_out = live[(low < offset + size) & (high > offset)]
            self.is_placed[put_out] = False
            self.order = self.order[self.is_placed[self.order]]
        self.is_placed[block] = True
        self.offsets[block] = offset
        place = int(np.searchsorted(self.offsets[self.order], offset))
        self.order = np.insert(self.order, place, block)
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
