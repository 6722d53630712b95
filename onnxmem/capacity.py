"""Budgets: the largest batch, and the law by which bytes grow with the batch.

The room takes a function from a batch to bytes and knows no stage. Bytes are assumed not to fall
as the batch grows, and each buffer's bytes to be affine in the batch; a peak is the largest of
several sums of buffers, hence convex.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Final

BytesAt = Callable[[int], int | None]
"""Bytes at a batch; ``None`` where they are unknown."""

LARGEST_BATCH: Final = 2**31
"""Where the search ends: what fits at this batch is said to fit at every batch."""

LAW_BATCH: Final = 128
"""A law is sought from batch 1 to this one at least."""


@dataclass(frozen=True, slots=True)
class BatchLaw:
    """``fixed_bytes + bytes_per_sample x batch``."""

    fixed_bytes: int
    bytes_per_sample: int
    largest_batch: int | None = field(default=None, compare=False)
    """It is sought, and holds, from batch 1 to this one."""

    def bytes_at(self, batch: int) -> int:
        """Evaluate the law."""
        return self.fixed_bytes + self.bytes_per_sample * batch


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """The largest batch that fits: it fits at ``batch`` and not at ``batch + 1``."""

    batch: int | None
    """0 where not even one sample fits; ``None`` where even ``LARGEST_BATCH`` does."""
    budget_bytes: int
    peak_bytes: int | None
    """Bytes at ``batch``, evaluated there; ``None`` where ``batch`` is 0."""
    limiting_phase: str | None = None
    over_bytes: int | None = None
    """Bytes at ``batch + 1``, evaluated there; ``None`` where there is no limit."""


def batch_law(bytes_at: BytesAt, largest: int) -> BatchLaw | None:
    """Find the affine law that holds from batch 1 to ``largest``; ``None`` where none does.

    Three evaluated points prove it: a convex function that meets a line at both ends of a stretch
    and once between them is that line all along. Up to batch 2 two points are the whole stretch,
    and a single point has no law.
    """
    if largest <= 1:
        return None
    ends = bytes_at(1), bytes_at(largest)
    if ends[0] is None or ends[1] is None:
        return None
    slope, rest = divmod(ends[1] - ends[0], largest - 1)
    law = BatchLaw(ends[0] - slope, slope, largest)
    middle = (1 + largest) // 2
    return law if rest == 0 and bytes_at(middle) == law.bytes_at(middle) else None


def largest_batch(bytes_at: BytesAt, budget_bytes: int) -> BatchLimit | None:
    """Find the largest batch within a budget; ``None`` where bytes are unknown at it or above it.

    Where bytes are affine, four evaluations find it: two give the line, and the batch at which
    the line meets the budget is tried with its neighbour. Elsewhere the line through the two
    largest batches tried, doubling at least, brackets it, and bisection ends the search.
    """
    at = cache(bytes_at)
    one_sample = at(1)
    if one_sample is None:
        return None
    if one_sample > budget_bytes:
        return BatchLimit(0, budget_bytes, None, over_bytes=one_sample)
    fits = _bracket(at, budget_bytes)
    if fits is None:
        return BatchLimit(None, budget_bytes, at(LARGEST_BATCH))
    batch = _narrowed(at, budget_bytes, *fits)
    over_bytes = at(batch + 1)
    if over_bytes is None:
        return None
    return BatchLimit(batch, budget_bytes, at(batch), over_bytes=over_bytes)


def _fits(bytes_at: BytesAt, batch: int, budget_bytes: int) -> bool:
    """Whether the batch is known to fit."""
    num_bytes = bytes_at(batch)
    return num_bytes is not None and num_bytes <= budget_bytes


def _bracket(bytes_at: BytesAt, budget_bytes: int) -> tuple[int, int] | None:
    """Find a batch that fits and a larger one that does not; ``None`` if all fit."""
    low, high = 1, 2
    while _fits(bytes_at, high, budget_bytes):
        if high == LARGEST_BATCH:
            return None
        beyond = _crossing(bytes_at, low, high, budget_bytes) + 1
        low, high = high, min(max(2 * high, beyond), LARGEST_BATCH)
    return low, high


def _narrowed(bytes_at: BytesAt, budget_bytes: int, low: int, high: int) -> int:
    """Move the ends together until they are neighbours: by the line between them and by halves."""
    by_halves = False
    while high - low > 1:
        crossing = _crossing(bytes_at, low, high, budget_bytes)
        # Where the line meets the budget at ``low`` itself, its neighbour ends the search.
        guess = (low + high) // 2 if by_halves else min(max(crossing, low + 1), high - 1)
        by_halves = not by_halves
        if _fits(bytes_at, guess, budget_bytes):
            low = guess
        else:
            high = guess
    return low


def _crossing(bytes_at: BytesAt, low: int, high: int, budget_bytes: int) -> int:
    """Last batch at which the line through two batches is within the budget; 0 if it is flat."""
    low_bytes, high_bytes = bytes_at(low), bytes_at(high)
    if low_bytes is None or high_bytes is None or high_bytes <= low_bytes:
        return 0
    return low + (budget_bytes - low_bytes) * (high - low) // (high_bytes - low_bytes)
