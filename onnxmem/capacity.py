"""Budgets: the largest batch, and the law by which bytes grow with the batch.

The room takes a function from a batch to bytes and knows no stage.
"""

from collections.abc import Callable
from dataclasses import dataclass

BytesAt = Callable[[int], int | None]
"""Bytes at a batch; ``None`` where they are unknown."""


@dataclass(frozen=True, slots=True)
class BatchLaw:
    """``fixed_bytes + bytes_per_sample x batch``."""

    fixed_bytes: int
    bytes_per_sample: int

    def bytes_at(self, batch: int) -> int:
        """Evaluate the law."""
        return self.fixed_bytes + self.bytes_per_sample * batch


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """The largest batch that fits: it fits at ``batch`` and not at ``batch + 1``."""

    batch: int
    """0 where not even one sample fits."""
    budget_bytes: int
    peak_bytes: int | None
    """Bytes at ``batch``; ``None`` where ``batch`` is 0."""
    limiting_phase: str | None = None


def batch_law(bytes_at: BytesAt, largest: int) -> BatchLaw | None:
    """Find the affine law that holds from batch 1 to ``largest``; ``None`` where none does."""
    raise NotImplementedError


def largest_batch(bytes_at: BytesAt, budget_bytes: int) -> BatchLimit | None:
    """Find the largest batch within a budget; ``None`` where bytes are unknown."""
    raise NotImplementedError
