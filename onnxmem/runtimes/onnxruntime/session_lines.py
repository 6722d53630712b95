"""A session's arena at every batch of a stretch, read off sessions at three batches.

The plan of a session, what its kernels pack and the order of its requests are those of the
optimised graph, which keeps its symbols; sizes are lines in the batch. Both ends of the stretch and
a batch between them are worked out in full, and prove it. Graphs with subgraphs are left out: their
runs may differ from batch to batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from onnxmem.allocators.bfc_arena import ArenaExhaustedError
from onnxmem.runtimes.onnxruntime.allocation.request_log import (
    LoggedSession,
    Recorder,
    RequestLog,
)
from onnxmem.runtimes.onnxruntime.packing import on_cuda
from onnxmem.runtimes.onnxruntime.prediction import Replay, ReplayError
from onnxmem.runtimes.onnxruntime.process import Region, arena_regions

Line = tuple[int, int]
"""Bytes at batch 0, and per sample."""


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

    replay: Replay
    log: RequestLog
    sizes_bytes: Sequence[int]
    """Of all requests."""

    def steady(self) -> Steady:
        """What the arena has when the session is steady, on a device that is large enough.

        :raises ReplayError: it asks for more bytes than there are addresses, or than its limit.
        """
        try:
            arena = self.replay.loaded_arena()
            base_bytes = arena.requested_bytes
            self.replay.run(LoggedSession(arena, self.log, self.sizes_bytes))
        except ArenaExhaustedError as fault:
            raise ReplayError(self.replay.exhausted) from fault
        requested_peak_bytes = base_bytes + self.log.requested_peak_bytes(self.sizes_bytes)
        return Steady(arena.held_bytes, arena_regions(arena), requested_peak_bytes)

    def runs_in(self, capacity_bytes: int) -> bool:
        """Whether it gets by on a device that has so many bytes for its arena."""
        running = partial(LoggedSession, log=self.log, sizes_bytes=self.sizes_bytes)
        return not self.replay.pressure(capacity_bytes, running).is_out_of_memory


@dataclass(frozen=True, slots=True)
class SessionLines:
    """What a session asks of its arena at the batches from ``first`` to ``last``."""

    first: int
    last: int
    replay: Replay
    """At the first batch."""
    log: RequestLog
    lines: tuple[Line, ...]
    """Of each request."""
    weights: tuple[Line, ...] | None
    """Of each weight on CUDA, where constants may follow the batch; ``None``: all stay."""

    @classmethod
    def through(cls, walked: Sequence[tuple[int, Replay]]) -> Self | None:
        """Draw lines through three batches, in order; ``None`` where something is on none."""
        batches = [batch for batch, _ in walked]
        replays = [each for _, each in walked]
        if any(not _is_alike(replays[0], each) for each in replays[1:]):
            return None
        found = [_requests(each) for each in replays]
        known = [each for each in found if each is not None]
        if len(known) < len(found) or len({log for log, _ in known}) > 1:
            return None
        lines = [line_through(batches, sizes) for sizes in zip(*(s for _, s in known), strict=True)]
        drawn = tuple(line for line in lines if line is not None)
        if len(drawn) < len(lines):
            return None
        weights = None
        if any(each.packed != replays[0].packed for each in replays):
            weights = _weight_lines(batches, replays)
            if weights is None:
                return None
        return cls(batches[0], batches[-1], replays[0], known[0][0], drawn, weights)

    def holds_at(self, batch: int) -> bool:
        """Whether the lines were drawn for a batch."""
        return self.first <= batch <= self.last

    def at(self, batch: int) -> SessionAt:
        """The session at a batch."""
        replay, sizes_bytes = self.replay, _at(self.lines, batch)
        if self.weights is not None:
            replay = replace(replay, packed=on_cuda(_at(self.weights, batch), replay.options))
        return SessionAt(replay, self.log, self.log.with_block(sizes_bytes))


def _at(lines: Sequence[Line], batch: int) -> list[int]:
    return [fixed + slope * batch for fixed, slope in lines]


def _weight_lines(batches: Sequence[int], replays: Sequence[Replay]) -> tuple[Line, ...] | None:
    """Lines through the sizes of weights on CUDA; ``None`` on CPU, or where one is on none."""
    if replays[0].kernels.provider != "cuda":
        return None
    names = [[weight.name for weight in each.graph.graph.weights] for each in replays]
    if any(each != names[0] for each in names):
        return None
    sizes = zip(
        *([w.size_bytes or 0 for w in each.graph.graph.weights] for each in replays), strict=True
    )
    lines = [line_through(batches, each) for each in sizes]
    drawn = tuple(line for line in lines if line is not None)
    return drawn if len(drawn) == len(lines) else None


def line_through(batches: Sequence[int], numbers: Sequence[int]) -> Line | None:
    """The line through numbers at three batches or more; ``None``: they are on none."""
    slope, rest = divmod(numbers[-1] - numbers[0], batches[-1] - batches[0])
    fixed = numbers[0] - slope * batches[0]
    at = zip(batches, numbers, strict=True)
    is_met = not rest and all(fixed + slope * batch == number for batch, number in at)
    return (fixed, slope) if is_met else None


def _requests(replay: Replay) -> tuple[RequestLog, Sequence[int]] | None:
    """What a session requests, and the bytes of it; ``None`` where a size is unknown."""
    recorder = Recorder()
    session = replay.session(recorder, uses_pattern=replay.options.enable_mem_pattern)
    log = recorder.log_of(session)
    return None if session.unsized else (log, recorder.sizes_bytes)


def _is_alike(one: Replay, other: Replay) -> bool:
    """Whether two sessions of a model plan, pack and run the same."""
    plan, others = one.plan, other.plan
    is_plain = not any(step.bodies for step in plan.steps) and not one.is_decided
    steps = [(step.node.name, step.allocates, step.releases) for step in plan.steps]
    return (
        is_plain
        and not other.is_decided
        and steps == [(step.node.name, step.allocates, step.releases) for step in others.steps]
        and plan.outputs == others.outputs
        and plan.stored_outputs == others.stored_outputs
        and plan.buffers == others.buffers
    )
