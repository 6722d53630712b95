"""Offsets by gaps: each buffer in turn goes into a gap between those live with it."""

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush

from onnxmem.program.lifetimes import Lifetime

Fit = Callable[[Iterable[tuple[int, int]], int], int]
"""Where a size goes among sorted (start, stop) ranges: ``best_fit`` or ``first_fit``."""


BLOCK_WORK = 8
"""Pairs that take as long to look at as one block takes beside its pairs."""


def find_conflicts(blocks: Sequence[Lifetime], max_conflicts: int) -> list[list[int]] | None:
    """For each block those that are live with it; ``None`` beyond so many pairs."""
    conflicts: list[list[int]] = [[] for _ in blocks]
    live: list[tuple[int, int]] = []
    num_conflicts = 0
    for i in sorted(range(len(blocks)), key=lambda i: blocks[i].start):
        while live and live[0][0] <= blocks[i].start:
            heappop(live)
        num_conflicts += len(live)
        if num_conflicts > max_conflicts:
            return None
        conflicts[i].extend(other for _, other in live)
        for _, other in live:
            conflicts[other].append(i)
        heappush(live, (blocks[i].stop, i))
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
