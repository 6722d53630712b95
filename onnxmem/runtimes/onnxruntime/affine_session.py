"""A session at every batch of a range: one program, and sizes through those at three batches.

The plan of a session, what its kernels pack and the order of its requests are those of the
optimized graph, which keeps its symbols; sizes are affine in the batch. Both ends of the range and
a batch between them are simulated, and prove it. Graphs with subgraphs are left out: their runs may
differ from batch to batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from onnxmem.program import Category, OutOfMemoryError, Sizes
from onnxmem.program.sizes import ByteColumn
from onnxmem.runtimes.onnxruntime.allocation.pattern import PatternTrace
from onnxmem.runtimes.onnxruntime.allocation.recording import Run
from onnxmem.runtimes.onnxruntime.prediction import PlannedSession, ReplayError, Runs
from onnxmem.runtimes.onnxruntime.process.loading import Region, arena_regions


@dataclass(frozen=True, slots=True)
class Steady:
    """What an arena has after its third run, with the session's own settings; bytes."""

    held_bytes: int
    regions: tuple[Region, ...]
    requested_peak_bytes: int
    """The most that is requested at the end of a node of the first run, the base included."""


@dataclass(frozen=True, slots=True)
class SessionAt:
    """A session at one batch, ready to be replayed."""

    session: PlannedSession
    runs: Runs

    def steady(self) -> Steady:
        """What the arena has when the session is steady, on a device that is large enough.

        :raises ReplayError: it asks for more bytes than there are addresses, or than its limit.
        """
        try:
            arena = self.session.steady_arena(self.runs)
        except OutOfMemoryError as fault:
            raise ReplayError(self.session.exhausted) from fault
        requested_peak_bytes = self.session.packed.requested_bytes
        requested_peak_bytes += self.runs.plain.requested_peak.size_bytes
        return Steady(arena.reserved_bytes, arena_regions(arena), requested_peak_bytes)

    def runs_in(self, capacity_bytes: int) -> bool:
        """Whether it gets by on a device that has so many bytes for its arena."""
        return self.session.runs_in(capacity_bytes, self.runs)


@dataclass(frozen=True, slots=True)
class AffineSession:
    """A session at the batches for which its sizes hold."""

    session: PlannedSession
    """At the first batch."""
    first: Sizes
    """Of the first run, with the memory pattern or without."""
    later: Sizes
    """Of a later run with it; 0 for the pattern's block, which follows from the first run's."""
    traced: tuple[int, ...]
    """The events of the first run by which the pattern is learned."""
    weights: Sizes | None
    """Of the weights where what is packed grows with the batch, as it may on CUDA."""

    @classmethod
    def through(cls, walked: Sequence[tuple[int, PlannedSession]]) -> Self | None:
        """Through sessions at three batches, in order; ``None``: they differ, or are not affine."""
        sessions = [each for _, each in walked]
        if not all(each.recorded.is_plain for each in sessions):
            return None
        found = [(batch, each.recorded.runs) for batch, each in walked]
        if not _are_alike([runs for _, runs in found]):
            return None
        first = Sizes.through([(batch, runs.plain.sizes) for batch, runs in found])
        later = Sizes.through([(batch, _without_block(runs.later)) for batch, runs in found])
        if first is None or later is None:
            return None
        weights = None
        if any(each.packed != sessions[0].packed for each in sessions):
            weights = _weights_through(walked)
            if weights is None:
                return None
        traced = tuple(_traced(found[0][1].plain))
        return cls(sessions[0], first, later, traced, weights)

    def holds_at(self, batch: int) -> bool:
        """Whether the sizes were shown to hold at a batch."""
        return self.first.holds_at(batch)

    @property
    def num_events(self) -> int:
        """Requests and releases of the runs until the session is steady."""
        uses_pattern = self.session.options.enable_mem_pattern
        steady = self.session.recorded.runs.until_steady(uses_pattern=uses_pattern)
        return sum(len(run.program.events) for run in steady)

    def at(self, batch: int) -> SessionAt:
        """The session at a batch."""
        session, runs = self.session, self.session.recorded.runs
        plain = replace(runs.plain, sizes=self.first.at(batch))
        pattern_bytes = _block_bytes(self.traced, plain.sizes)
        later_bytes = _with_block(runs.later, self.later.at(batch).fixed_bytes, pattern_bytes)
        later = replace(runs.later, sizes=Sizes(later_bytes))
        if self.weights is not None:
            sizes_bytes = self.weights.at(batch).fixed_bytes.tolist()
            packed = session.recorded.provider.packing_of(sizes_bytes, session.options)
            session = replace(session, packed=packed or session.packed)
        runs = replace(runs, plain=plain, learning=plain, later=later, pattern_bytes=pattern_bytes)
        return SessionAt(session, runs)


def _are_alike(runs: Sequence[Runs]) -> bool:
    """Whether sessions request and release the same, and each size is known."""
    one = runs[0]
    return not any(each.unsized for each in runs) and all(
        one.plain.program == each.plain.program
        and one.later.program == each.later.program
        and one.plain.traced == each.plain.traced
        and np.array_equal(one.plain.node_ends, each.plain.node_ends)
        for each in runs[1:]
    )


def _with_block(later: Run, sizes_bytes: ByteColumn, block_bytes: int) -> ByteColumn:
    is_block = [category is Category.PATTERN_BUFFER for category in later.program.categories]
    return np.where(is_block, block_bytes, sizes_bytes)


def _without_block(later: Run) -> Sizes:
    return Sizes(_with_block(later, later.sizes.fixed_bytes, 0))


def _traced(first: Run) -> Iterator[int]:
    """The events of a run by which it learns the pattern."""
    traced = frozenset(first.traced)
    return (each for each in first.program.events.tolist() if max(each, ~each) in traced)


def _block_bytes(traced: Iterable[int], sizes: Sizes) -> int:
    """The block of the pattern that a run learns."""
    trace, sizes_bytes = PatternTrace(), sizes.fixed_bytes.tolist()
    for event in traced:
        if event >= 0:
            trace.allocate(str(event), sizes_bytes[event])
        else:
            trace.free(str(~event))
    return trace.size_bytes


def _weights_through(walked: Sequence[tuple[int, PlannedSession]]) -> Sizes | None:
    """Sizes of the weights; ``None``: they are not affine, or do not decide what is packed."""
    session = walked[0][1]
    if session.recorded.provider.packing_of((), session.options) is None:
        return None
    weights = [each.recorded.graph.graph.weights for _, each in walked]
    names = [[weight.name for weight in each] for each in weights]
    if any(each != names[0] for each in names):
        return None
    sizes = (Sizes.of(weight.size_bytes or 0 for weight in each) for each in weights)
    return Sizes.through([(batch, each) for (batch, _), each in zip(walked, sizes, strict=True)])
