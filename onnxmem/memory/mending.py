"""A better order for placing blocks, found by moving those that hold the topmost one up.

The blocks under the topmost one, each on the one below and live with it, are why it lies there. One
of them, drawn at random, is placed earlier; the order is kept if the arena is no larger. What lies
before the moved block stays where it is, and an attempt ends at the first block that would lie
higher than before. This is an iterated local search, as the hill climbing of TVM's memory planner.
"""

from collections.abc import Iterator, Sequence
from random import Random

from onnxmem.memory.gaps import BLOCK_WORK, Fit, place_blocks

_EARLIER_ALL = 0.25
"""How often a block goes before all others, not to a place drawn at random."""


def mended(
    order: Sequence[int],
    offsets: Sequence[int],
    sizes: Sequence[int],
    conflicts: Sequence[Sequence[int]],
    fit: Fit,
) -> Iterator[tuple[Sequence[int], int]]:
    """Attempts without end: offsets, no higher than any before, and the pairs looked at."""
    # Seeded: the same model has the same arena on every machine.
    draws = Random(0)  # noqa: S311 - nothing is kept secret by it
    order, offsets = list(order), list(offsets)
    while True:
        tops = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
        chain = _chain(tops, offsets, conflicts)
        moved = chain[int(draws.random() * len(chain))]
        place = order.index(moved)
        to = 0 if draws.random() < _EARLIER_ALL else int(draws.random() * place)
        attempt = [*order[:to], moved, *order[to:place], *order[place + 1 :]]
        placed = list(offsets)
        for i in attempt[to:]:
            placed[i] = -1
        is_whole = place_blocks(attempt[to:], sizes, conflicts, fit, placed, max(tops))
        if is_whole:
            order, offsets = attempt, placed
        seen = [i for i in attempt[to:] if is_whole or placed[i] >= 0]
        yield offsets, len(order) + sum(BLOCK_WORK + len(conflicts[i]) for i in seen)


def _chain(
    tops: Sequence[int], offsets: Sequence[int], conflicts: Sequence[Sequence[int]]
) -> list[int]:
    """A topmost block and all that hold it up, sorted."""
    topmost = max(range(len(tops)), key=tops.__getitem__)
    found, stack = {topmost}, [topmost]
    while stack:
        block = stack.pop()
        below = [i for i in conflicts[block] if tops[i] == offsets[block] and i not in found]
        found.update(below)
        stack.extend(below)
    return sorted(found)
