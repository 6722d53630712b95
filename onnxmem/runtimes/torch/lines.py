"""A step's allocations as lines in the batch, read off the traces of two batches.

Every block takes ``fixed + slope x batch`` bytes where its tensor has the batch in one dim at most.
Where two batches allocate and release the same blocks in the same order, the bytes alive after each
event are a sum of such lines, and the peak at a batch is the largest of the sums.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

from onnxmem.runtimes.torch.heap import StepTrace


@dataclass(frozen=True, slots=True)
class StepLines:
    """The bytes of a step's blocks at every batch of a stretch."""

    first: int
    """The batch from which on they hold."""
    trace: StepTrace
    """At one batch; its order is that of all."""
    fixed: tuple[int, ...]
    """Bytes of each block that do not grow."""
    slopes: tuple[int, ...]
    """Bytes of each block per sample."""

    @classmethod
    def through(cls, one: tuple[int, StepTrace], other: tuple[int, StepTrace]) -> Self | None:
        """Draw lines through two batches, the smaller first.

        ``None`` where the order of allocations depends on the batch, or a block is on no line of
        whole bytes, neither of which falls.
        """
        (batch, trace), (other_batch, other_trace) = one, other
        if not _is_same_order(trace, other_trace):
            return None
        slopes, fixed = [], []
        apart = other_batch - batch
        for size, other_size in zip(trace.sizes_bytes, other_trace.sizes_bytes, strict=True):
            slope, rest = divmod(other_size - size, apart)
            start = size - slope * batch
            if rest or slope < 0 or start < 0:
                return None
            slopes.append(slope)
            fixed.append(start)
        return cls(batch, trace, tuple(fixed), tuple(slopes))

    def meet(self, batch: int, trace: StepTrace) -> bool:
        """Whether a trace is the one that the lines give at its batch."""
        return _is_same_order(self.trace, trace) and [*trace.sizes_bytes] == self._sizes(batch)

    def peak_bytes(self, batch: int) -> int:
        """The most that is alive at once."""
        sizes = self._sizes(batch)
        return max(accumulate(_changes(self.trace.log, sizes)), default=0)

    def events(self, batch: int) -> Iterable[tuple[int, int]]:
        """Each event as (block, bytes): bytes allocated, or released below 0."""
        sizes = self._sizes(batch)
        return ((n, sizes[n]) if n >= 0 else (~n, -sizes[~n]) for n in self.trace.log)

    def _sizes(self, batch: int) -> list[int]:
        lines = zip(self.fixed, self.slopes, strict=True)
        return [fixed + slope * batch for fixed, slope in lines]


def _is_same_order(one: StepTrace, other: StepTrace) -> bool:
    """Whether two steps allocate and release the same, node by node."""
    return (
        one.log == other.log
        and one.nodes == other.nodes
        and one.labels == other.labels
        and one.starts == other.starts
    )


def _changes(log: Iterable[int], sizes: list[int]) -> Iterable[int]:
    return (sizes[each] if each >= 0 else -sizes[~each] for each in log)
