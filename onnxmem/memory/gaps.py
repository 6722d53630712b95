"""Offsets by gaps: each buffer in turn goes into the smallest gap between those live with it."""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from onnxmem.memory.lifetimes import Lifetime


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


def place_in_order(
    order: Iterable[int], sizes: Sequence[int], conflicts: Sequence[Sequence[int]]
) -> Sequence[int]:
    """Place each block in the smallest gap that holds it among those placed before."""
    offsets = [-1] * len(sizes)
    for i in order:
        taken = sorted(
            (offsets[other], offsets[other] + sizes[other])
            for other in conflicts[i]
            if offsets[other] >= 0
        )
        offsets[i] = _best_fit(taken, sizes[i])
    return offsets


def _best_fit(taken: Iterable[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap between sorted (start, stop) ranges, else their end."""
    top = 0
    best_gap, best_offset = None, None
    for start, stop in taken:
        gap = start - top
        if gap >= size and (best_gap is None or gap < best_gap):
            best_gap, best_offset = gap, top
        top = max(top, stop)
    return top if best_offset is None else best_offset
