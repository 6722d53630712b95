"""Offsets for buffers in one block, as small a block as a few greedy orders find.

Definition 5: two buffers that are live at one step never share an address. No arena is smaller than
the peak of the live bytes, and one as small as that peak is proven least.

Sizes are taken as they are: nothing is padded to an alignment, which each runtime chooses for
itself. Finding the least arena is NP-hard. Orders by time, by size and by size x lifetime are tried
in turn, then the topmost buffer is placed earlier again and again; the best is kept. The orders are
those of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from onnxmem.memory.free_list import place_in_time
from onnxmem.memory.gaps import find_conflicts, place_in_order
from onnxmem.memory.lifetimes import Lifetime
from onnxmem.memory.timeline import timeline

_MAX_CONFLICTS = 1_000_000
"""Pairs of buffers live together up to which they are listed: some 20 MiB."""

_MAX_WORK = 1_500_000
"""Pairs and buffers that all orders together may look at: about a second."""

_MAX_RAISES = 32
"""Times that the topmost buffer of an order is placed first."""


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

    Where very many buffers are live together the order by time is the only one, in O(n log n).
    """
    blocks = [lifetime for lifetime in lifetimes if lifetime.buffer.size_bytes]
    sizes = [block.buffer.size_bytes or 0 for block in blocks]
    num_steps = max((block.stop for block in blocks), default=0)
    lower_bound = timeline(blocks, num_steps).peak_bytes
    best, best_size = _smallest(_placements(blocks, sizes), sizes, lower_bound)
    names = (block.buffer.tensors[0] for block in blocks)
    return Arena(best_size, lower_bound, tuple(zip(names, best, strict=True)))


def _smallest(
    placements: Iterable[Sequence[int]], sizes: Sequence[int], lower_bound: int
) -> tuple[Sequence[int], int]:
    """The best of some placements and its size; one at the lower bound ends the search."""
    best: Sequence[int] = ()
    best_size: int | None = None
    for offsets in placements:
        ends = (offset + size for offset, size in zip(offsets, sizes, strict=True))
        size_bytes = max(ends, default=0)
        if best_size is None or size_bytes < best_size:
            best, best_size = offsets, size_bytes
        if best_size == lower_bound:
            break
    return best, best_size or 0


def _placements(blocks: Sequence[Lifetime], sizes: Sequence[int]) -> Iterator[Sequence[int]]:
    """Offsets of each block in turn, by one order after another, as long as work is left."""
    yield place_in_time(blocks, sizes)
    conflicts = find_conflicts(blocks, _MAX_CONFLICTS)
    if conflicts is None:
        return
    by_size = sorted(range(len(blocks)), key=lambda i: -sizes[i])
    by_area = sorted(by_size, key=lambda i: -sizes[i] * (blocks[i].stop - blocks[i].start))
    num_tries = _MAX_WORK // (len(blocks) + sum(map(len, conflicts)) + 1)
    for order in (by_size, by_area)[: max(1, num_tries)]:
        yield from _place_topmost_first(order, sizes, conflicts, min(num_tries // 2, _MAX_RAISES))


def _place_topmost_first(
    order: Sequence[int], sizes: Sequence[int], conflicts: Sequence[Sequence[int]], num_raises: int
) -> Iterator[Sequence[int]]:
    """Place in an order; then place what came to lie on top before all others, and again."""
    offsets = place_in_order(order, sizes, conflicts)
    yield offsets
    for _ in range(num_raises):
        topmost = max(order, key=lambda i: offsets[i] + sizes[i])
        order = [topmost, *(i for i in order if i != topmost)]
        offsets = place_in_order(order, sizes, conflicts)
        yield offsets
