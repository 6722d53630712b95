"""A session's arena at every batch of a stretch, read off sessions at three batches.

The plan of a session, what its kernels pack and the order of its requests are those of the
optimised graph, which keeps its symbols; sizes are lines in the batch. Both ends of the stretch and
a batch between them are worked out in full, and prove it. Graphs with subgraphs are left out: their
runs may differ from batch to batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from onnxmem.model import Graph, Node
from onnxmem.runtimes.onnxruntime.prediction import Pressure, Replay, Steady
from onnxmem.runtimes.onnxruntime.scratch import Scratch

Line = tuple[int, int]
"""Bytes at batch 0, and per sample."""


@dataclass(frozen=True, slots=True)
class _Figures:
    """All sizes of one session, in the order of its plan."""

    tensors: Mapping[str, int]
    scratches: tuple[Scratch, ...]

    def numbers(self) -> list[int]:
        """Every number that may grow with the batch."""
        found = [*self.tensors.values()]
        for each in self.scratches:
            found += (*each.blocks, *each.per_pass, each.passes)
        return found

    def with_numbers(self, numbers: Sequence[int]) -> "_Figures":
        """The same with other numbers, in the order of ``numbers``."""
        left = iter(numbers)
        tensors = {name: next(left) for name in self.tensors}
        scratches = tuple(
            replace(
                each,
                blocks=tuple(next(left) for _ in each.blocks),
                per_pass=tuple(next(left) for _ in each.per_pass),
                passes=next(left),
            )
            for each in self.scratches
        )
        return _Figures(tensors, scratches)


@dataclass(frozen=True, slots=True)
class SessionLines:
    """What a session asks of its arena at the batches from ``first`` to ``last``."""

    first: int
    last: int
    replay: Replay
    figures: _Figures
    """At the first batch."""
    lines: tuple[Line, ...]

    @classmethod
    def through(cls, walked: Sequence[tuple[int, Replay]]) -> Self | None:
        """Draw lines through three batches, in order; ``None`` where something is on none."""
        batches = [batch for batch, _ in walked]
        replays = [each for _, each in walked]
        if any(not _is_alike(replays[0], each) for each in replays[1:]):
            return None
        figures = [_figures(each) for each in replays]
        known = [each for each in figures if each is not None]
        if len(known) < len(figures):
            return None
        if any(not _is_same_form(known[0], each) for each in known[1:]):
            return None
        lines = []
        for numbers in zip(*(each.numbers() for each in known), strict=True):
            line = line_through(batches, numbers)
            if line is None:
                return None
            lines.append(line)
        return cls(batches[0], batches[-1], replays[0], known[0], tuple(lines))

    def holds_at(self, batch: int) -> bool:
        """Whether the lines were drawn for a batch."""
        return self.first <= batch <= self.last

    def at(self, batch: int) -> Replay:
        """The session at a batch."""
        found = self.figures.with_numbers([fixed + slope * batch for fixed, slope in self.lines])
        nodes = (id(step.node) for step in self.replay.plan.steps)
        scratches = dict(zip(nodes, found.scratches, strict=True))

        def scratch(graph: Graph, node: Node) -> Scratch:  # noqa: ARG001 - as rules are asked
            return scratches[id(node)]

        return replace(self.replay, scratch=scratch, sizes=found.tensors)

    def steady(self, batch: int) -> Steady:
        """What the arena has when a session at a batch is steady."""
        return self.at(batch).steady()

    def pressure(self, batch: int, capacity_bytes: int) -> Pressure:
        """What a device of some capacity does to a session at a batch."""
        return self.at(batch).pressure(capacity_bytes)


def line_through(batches: Sequence[int], numbers: Sequence[int]) -> Line | None:
    """The line through numbers at three batches or more; ``None``: they are on none."""
    slope, rest = divmod(numbers[-1] - numbers[0], batches[-1] - batches[0])
    fixed = numbers[0] - slope * batches[0]
    at = zip(batches, numbers, strict=True)
    is_met = not rest and all(fixed + slope * batch == number for batch, number in at)
    return (fixed, slope) if is_met else None


def _figures(replay: Replay) -> _Figures | None:
    """All sizes of a session that is run once; ``None`` where one is unknown."""
    session = replay.session(uses_pattern=False)
    session.run()
    graph, steps = replay.plan.graph, replay.plan.steps
    tensors = {name: size for name, size in session.sizes.items() if size is not None}
    if len(tensors) < len(session.sizes) or session.unsized:
        return None
    return _Figures(tensors, tuple(replay.scratch(graph, step.node) for step in steps))


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
        and one.packed == other.packed
    )


def _is_same_form(one: _Figures, other: _Figures) -> bool:
    """Whether two sessions have the same tensors and scratch of the same form."""
    forms = [
        [
            (len(s.blocks), len(s.per_pass), s.num_before_outputs, s.freed_after)
            for s in each.scratches
        ]
        for each in (one, other)
    ]
    return [*one.tensors] == [*other.tensors] and forms[0] == forms[1]
