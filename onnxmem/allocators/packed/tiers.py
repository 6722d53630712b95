"""Offsets where pairs are too many to list, those first that take the most bytes for most steps.

A block's area is its bytes times its steps. Of a long run few blocks take nearly all of it: they
are placed and lowered (``ejecting``) by themselves, in a fraction of the time. The next tier is
placed in the gaps between them, and all of both are lowered together; so are the small ones in the
end.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from onnxmem.allocators.packed.ejecting import Spans, lowest
from onnxmem.allocators.packed.placements import (
    Blocks,
    Ints,
    Measures,
    flat_placements,
    place_flat,
)

_SHARES: Final = (0.95, 0.999, 1.0)
"""Of all areas, what a tier takes together with those before it."""
_MAX_FLAT_WORK: Final = 400_000_000
"""Pairs of blocks that all orders of the first tier together may look at."""
_MAX_STEPS: Final = 25_000
_MAX_STEP_WORK: Final = 160_000_000
"""Blocks that all steps of one tier together may look at."""


def place_in_tiers(blocks: Blocks, lower_bound: int) -> list[int]:
    """Offsets of the blocks, as low as they are found in a bounded number of steps."""
    areas = [size * (stop - start) for size, start, stop in zip(*blocks, strict=True)]
    order = sorted(range(len(areas)), key=areas.__getitem__, reverse=True)
    spans = Spans.of(blocks.take(order))
    found: Ints = np.zeros(0, dtype=np.int64)
    for num_blocks in tier_ends([areas[place] for place in order]):
        tier = Spans(spans.sizes[:num_blocks], spans.starts[:num_blocks], spans.stops[:num_blocks])
        found = _in_gaps(found, tier) if found.size else _by_orders(tier)
        num_steps = min(_MAX_STEPS, _MAX_STEP_WORK // num_blocks)
        found = lowest(found, tier, lower_bound, num_steps)
    offsets = np.zeros(len(order), dtype=np.int64)
    offsets[order] = found
    placed: list[int] = offsets.tolist()
    return placed


def tier_ends(areas: Sequence[int]) -> Iterator[int]:
    """How many blocks each tier has with those before it; areas come largest first."""
    sums = list(accumulate(areas))
    ends = [min(bisect_left(sums, share * sums[-1]) + 1, len(sums)) for share in _SHARES]
    yield from sorted({*ends[:-1], len(sums)})


def _by_orders(spans: Spans) -> Ints:
    """The lowest offsets of some orders; the first that are as low as any can be end them."""
    blocks = Blocks(spans.sizes.tolist(), spans.starts.tolist(), spans.stops.tolist())
    found = flat_placements(Measures(blocks), _MAX_FLAT_WORK)
    placements = (np.array(offsets, dtype=np.int64) for offsets in found)
    lowest_bytes = blocks.peak_bytes
    best = next(placements)
    for offsets in placements:
        if spans.top(best) == lowest_bytes:
            break
        best = min(best, offsets, key=spans.top)
    return best


def _in_gaps(placed: Ints, spans: Spans) -> Ints:
    """The blocks after those that are placed, each in the smallest gap that holds it."""
    others = range(len(placed), len(spans.sizes))
    where = spans.sizes.tolist(), spans.starts.tolist(), spans.stops.tolist()
    offsets = place_flat(others, *where, takes_lowest=False, placed=placed.tolist())
    return np.array(offsets, dtype=np.int64)
