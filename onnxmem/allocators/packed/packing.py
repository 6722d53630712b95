"""Offsets for buffers in one block, as small a block as is found in a bounded number of steps.

Definition 5: two buffers that are live at one step never share an address. No arena is smaller than
the peak of the live bytes, and one as small as that peak is proven least: the search ends there.

Sizes are taken as they are: nothing is padded to an alignment, which each runtime chooses for
itself. Finding the least arena is NP-hard. Several orders are tried, each with the smallest gap
that fits and with the lowest, then the best arena is lowered (``ejecting``); where pairs of buffers
are too many to list, buffers are placed and lowered in tiers too (``tiers``). Work is counted in
pairs, not in seconds: a model has the same arena on every machine.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

import numpy as np

from onnxmem.allocators.free_list import place_in_time
from onnxmem.allocators.packed.ejecting import Spans, lowest
from onnxmem.allocators.packed.flat_gaps import flat_placements
from onnxmem.allocators.packed.gaps import (
    BLOCK_WORK,
    best_fit,
    find_conflicts,
    first_fit,
    place_blocks,
)
from onnxmem.allocators.packed.orders import Measures, orders
from onnxmem.allocators.packed.tiers import place_in_tiers
from onnxmem.program.lifetimes import Lifetime, timeline

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

_Placed = tuple[int, Sequence[int]]
"""The size of an arena and its offsets."""


@dataclass(frozen=True, slots=True)
class Arena:
    """One block in which every buffer has an offset."""

    size_bytes: int
    lower_bound_bytes: int
    """Live bytes at the peak: no arena is smaller."""
    offsets: tuple[tuple[str, int], ...] = ()
    """(name of the buffer's first tensor, offset in bytes); buffers without bytes have none."""

    @property
    def gap_bytes(self) -> int:
        """Bytes above the lower bound."""
        return self.size_bytes - self.lower_bound_bytes

    @property
    def is_proven(self) -> bool:
        """Whether no smaller arena exists."""
        return self.gap_bytes == 0


def pack(lifetimes: Iterable[Lifetime]) -> Arena:
    """Find every buffer an offset; buffers of unknown size are left out.

    From 56,000 buffers on the order by time is the only one, in O(n log n).
    """
    blocks = [lifetime for lifetime in lifetimes if lifetime.buffer.size_bytes]
    sizes = [block.buffer.size_bytes or 0 for block in blocks]
    num_steps = max((block.stop for block in blocks), default=0)
    lower_bound = timeline(blocks, num_steps).peak_bytes
    in_time = place_in_time(blocks, sizes)
    found = [(_top(in_time, sizes), in_time)]
    if found[0][0] > lower_bound:
        found += _smaller(found[0], blocks, sizes, lower_bound)
    best_size, best = min(found, key=itemgetter(0))
    names = (block.buffer.tensors[0] for block in blocks)
    return Arena(best_size, lower_bound, tuple(zip(names, best, strict=True)))


def _smaller(
    in_time: _Placed, blocks: Sequence[Lifetime], sizes: Sequence[int], lower_bound: int
) -> Iterator[_Placed]:
    """Other arenas, most of them smaller than that of the order by time."""
    conflicts, measures = find_conflicts(blocks, _MAX_CONFLICTS), Measures(blocks, sizes)
    is_large = sum(sizes) >= _LARGEST_SUM
    is_flat = conflicts is None and len(blocks) <= _MOST_FLAT and not is_large
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
    for lower in _lowered(starts[:num_starts], blocks, sizes, lower_bound):
        yield lower
        if lower[0] == lower_bound:
            return
    if is_flat:
        offsets = place_in_tiers(blocks, sizes, lower_bound)
        yield _top(offsets, sizes), offsets


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


def _lowered(
    found: Iterable[_Placed],
    blocks: Sequence[Lifetime],
    sizes: Sequence[int],
    lower_bound: int,
) -> Iterator[_Placed]:
    """Smaller arenas, each from one that orders have found."""
    spans = Spans.of(blocks, sizes)
    num_steps = min(_MAX_STEPS, _MAX_STEP_WORK // len(blocks))
    for _, offsets in found:
        best = lowest(np.array(offsets, dtype=np.int64), spans, lower_bound, num_steps)
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
