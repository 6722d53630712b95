"""Offsets by gaps where pairs are too many to list: placed blocks lie in flat arrays.

Each block looks at all that are placed so far, a few array operations of it: 30,000 blocks of
which 43 million pairs are live together take seconds, where lists of pairs take a minute.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from onnxmem.allocators.packed.orders import Measures, tries

Ints = npt.NDArray[np.int64]

_NO_GAP = 2**63 - 1


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
