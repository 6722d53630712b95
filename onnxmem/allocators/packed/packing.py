"""Offsets for allocations in one block, as small a block as is found in a bounded number of steps.

Definition 5: two allocations that are alive at once never share an address. No block is smaller
than the peak of the live bytes, and one as small as that peak is optimal: the search ends there.

Sizes are taken as they are: nothing is padded to an alignment, which each runtime chooses for
itself. Finding the smallest block is NP-hard. Several orders are tried, each with the smallest gap
that fits and with the lowest (``placements``), then the best is lowered (``ejecting``); where pairs
of allocations are too many to list, they are placed and lowered in tiers too (``tiers``). Work is
counted in pairs, not in seconds: a model is packed alike on every machine.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from operator import itemgetter

import numpy as np

from onnxmem.allocators.packed.ejecting import Spans, lowest
from onnxmem.allocators.packed.placements import (
    BLOCK_WORK,
    Blocks,
    Measures,
    best_fit,
    find_conflicts,
    first_fit,
    flat_placements,
    orders,
    place_blocks,
    place_in_time,
)
from onnxmem.allocators.packed.tiers import place_in_tiers
from onnxmem.program import OutOfMemoryError, Program, Sizes
from onnxmem.program.program import IntColumn

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
"""The size of an arena and the offsets of the blocks in it."""


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


class Packed:
    """Serves one program, known ahead, from one block that is reserved before it runs.

    It serves each allocation where it is packed, and none that lies in bytes of what is alive.
    """

    num_retries = 0

    def __init__(self, program: Program, sizes: Sizes, together: Iterable[range] = ()) -> None:
        """Pack the program; ``together`` as ``pack`` has it."""
        self.packing = pack(program, sizes, together)
        self._alive: list[tuple[int, int]] = []
        """Offset and end of what is alive, in order: no two of them meet."""
        self._spans: dict[int, tuple[int, int]] = {}
        """The same by number."""

    @property
    def reserved_bytes(self) -> int:
        """The block."""
        return self.packing.size_bytes

    @property
    def reserved_peak_bytes(self) -> int:
        """The block."""
        return self.packing.size_bytes

    def malloc(self, number: int, size_bytes: int) -> None:
        """Serve an allocation of the program.

        :raises OutOfMemoryError: it is not the program's, or its bytes are not free.
        """
        offset = self.packing.offsets.get(number)
        if offset is None:
            message = f"allocation {number} has no offset in the block"
            raise OutOfMemoryError(message)
        span = (offset, offset + size_bytes)
        index = bisect_left(self._alive, span)
        is_free = index == 0 or self._alive[index - 1][1] <= span[0]
        is_free &= index == len(self._alive) or self._alive[index][0] >= span[1]
        if not is_free:
            message = f"bytes {span[0]:,} to {span[1]:,} of the block are not free"
            raise OutOfMemoryError(message)
        self._alive.insert(index, span)
        self._spans[number] = span

    def free(self, number: int) -> None:
        """Take back what was served by a number."""
        del self._alive[bisect_left(self._alive, self._spans.pop(number))]

    def rename(self, number: int, new_number: int) -> None:
        """Call what was served by a number by another one from now on."""
        self._spans[new_number] = self._spans.pop(number)

    def layout(self) -> object:
        """Where everything lies."""
        return tuple(self._alive)


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
    if is_flat:
        offsets = place_in_tiers(blocks, lower_bound)
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


def _lowered(found: Iterable[_Placed], blocks: Blocks, lower_bound: int) -> Iterator[_Placed]:
    """Smaller placements, each from one that orders have found."""
    spans = Spans.of(blocks)
    num_steps = min(_MAX_STEPS, _MAX_STEP_WORK // len(blocks.sizes))
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
