"""The allocations of a training step in order: what is alive when, and where it is most.

An eager framework counts the references to a storage and frees it with the last. The heap does the
same and writes down every allocation and release, so that a peak can be explained and the order
replayed by an allocator.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import chain, repeat
from typing import NamedTuple, Self


class Phase(StrEnum):
    """A part of a training step, in order."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Kind(StrEnum):
    """What an allocation holds."""

    WEIGHT = "weights"
    BUFFER = "buffers"
    STATE = "optimizer state"
    INPUT = "inputs, targets"
    ACTIVATION = "activations"
    GRADIENT = "gradients"
    """Of parameters."""
    ACTIVATION_GRADIENT = "activation gradients"
    TEMPORARY = "temporaries"


class Block(NamedTuple):
    """One allocation: a tuple, which is made in a third of a frozen dataclass's time."""

    label: str
    """The tensor, or what the bytes are for."""
    kind: Kind
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Event:
    """A block that is allocated or released, and the node that does it."""

    block: int
    """Its place among the blocks."""
    is_allocation: bool
    phase: Phase
    node: str


@dataclass(frozen=True, slots=True)
class PhasePeak:
    """The most that is alive at once in one phase."""

    size_bytes: int
    node: str
    """The node that allocates the last of it; ``""`` where the phase only holds."""
    num_events: int
    """Events up to the peak."""


@dataclass(frozen=True)
class StepTrace:
    """All allocations of a step, from its steady state to the end of its optimizer."""

    labels: tuple[str, ...]
    """Of each block, with its kind and its bytes beside it: a large step has a million numbers."""
    kinds: tuple[Kind, ...]
    sizes_bytes: tuple[int, ...]
    log: tuple[int, ...]
    """An event each: the place of a block that is allocated, ``~place`` where it is released."""
    nodes: tuple[str, ...]
    """The node of each event."""
    starts: dict[Phase, int]
    """Events before each phase."""
    peaks: dict[Phase, PhasePeak]
    num_held_events: int
    """The first events: what is held through the step, and was before it."""

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Every allocation, in order."""
        return tuple(map(Block, self.labels, self.kinds, self.sizes_bytes))

    @property
    def events(self) -> tuple[Event, ...]:
        """All events in order."""
        ends = (*tuple(self.starts.values())[1:], len(self.log))
        phases = chain.from_iterable(
            repeat(phase, end - start)
            for (phase, start), end in zip(self.starts.items(), ends, strict=True)
        )
        happened = zip(self.log, phases, self.nodes, strict=True)
        return tuple(
            Event(max(each, ~each), each >= 0, phase, node) for each, phase, node in happened
        )

    def live_at(self, peak: PhasePeak) -> tuple[Block, ...]:
        """The blocks alive at a peak, largest first; of equal ones the first allocated."""
        alive: dict[int, None] = {}
        for each in self.log[: peak.num_events]:
            if each >= 0:
                alive[each] = None
            else:
                del alive[~each]
        labels, kinds, sizes = self.labels, self.kinds, self.sizes_bytes
        order = sorted(alive, key=sizes.__getitem__, reverse=True)
        return tuple([Block(labels[place], kinds[place], sizes[place]) for place in order])

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Each event as (block, bytes): bytes allocated, or released below 0."""
        sizes = self.sizes_bytes
        return ((n, sizes[n]) if n >= 0 else (~n, -sizes[~n]) for n in self.log)


@dataclass(slots=True)
class Heap:
    """Counts references to blocks, and writes down what is allocated and released."""

    phase: Phase = Phase.FORWARD
    node: str = ""
    live_bytes: int = 0
    _labels: list[str] = field(default_factory=list)
    """Of the blocks, and what a ``StepTrace`` has beside it; their references."""
    _kinds: list[Kind] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _references: list[int] = field(default_factory=list)
    _log: list[int] = field(default_factory=list)
    """As a ``StepTrace`` has it, and the nodes."""
    _nodes: list[str] = field(default_factory=list)
    _starts: dict[Phase, int] = field(default_factory=lambda: {Phase.FORWARD: 0})
    _peak_bytes: int = 0
    _peak_at: tuple[str, int] = ("", 0)
    """Of the phase under way: the rest of what a ``PhasePeak`` has."""
    _peaks: dict[Phase, PhasePeak] = field(default_factory=dict)
    _num_held_events: int = 0

    @classmethod
    def holding(cls, blocks: Iterable[Block]) -> Self:
        """A heap as a step begins, with what is held before it and through it."""
        held = [block for block in blocks if block.size_bytes]
        live_bytes = sum(block.size_bytes for block in held)
        return cls(
            live_bytes=live_bytes,
            _labels=[block.label for block in held],
            _kinds=[block.kind for block in held],
            _sizes=[block.size_bytes for block in held],
            _references=[1] * len(held),
            _log=list(range(len(held))),
            _nodes=[""] * len(held),
            _peak_bytes=live_bytes,
            _peak_at=("", len(held)),
            _num_held_events=len(held),
        )

    def enter(self, phase: Phase) -> None:
        """Begin a phase: what is alive now counts in its peak."""
        self._peaks[self.phase] = PhasePeak(self._peak_bytes, *self._peak_at)
        self.phase, self.node = phase, ""
        self._starts[phase] = len(self._log)
        self._peak_bytes, self._peak_at = self.live_bytes, ("", len(self._log))

    def allocate(self, label: str, kind: Kind, size_bytes: int) -> int:
        """Allocate a block with one reference; say its number."""
        number = len(self._sizes)
        self._labels.append(label)
        self._kinds.append(kind)
        self._sizes.append(size_bytes)
        self._references.append(1)
        self._log.append(number)
        self._nodes.append(self.node)
        self.live_bytes = live_bytes = self.live_bytes + size_bytes
        if live_bytes > self._peak_bytes:
            self._peak_bytes, self._peak_at = live_bytes, (self.node, len(self._log))
        return number

    def retain(self, number: int) -> None:
        """Count one more reference."""
        self._references[number] += 1

    def release(self, number: int) -> None:
        """Count one reference less; the last frees the block."""
        references = self._references
        references[number] -= 1
        if not references[number]:
            self._log.append(~number)
            self._nodes.append(self.node)
            self.live_bytes -= self._sizes[number]

    def is_unique(self, number: int) -> bool:
        """Whether a block has one reference."""
        return self._references[number] == 1

    def relabel(self, number: int, label: str, kind: Kind) -> None:
        """Say what a block has become."""
        self._labels[number], self._kinds[number] = label, kind

    def trace(self) -> StepTrace:
        """What was written down."""
        return StepTrace(
            labels=tuple(self._labels),
            kinds=tuple(self._kinds),
            sizes_bytes=tuple(self._sizes),
            log=tuple(self._log),
            nodes=tuple(self._nodes),
            starts=dict(self._starts),
            peaks={**self._peaks, self.phase: PhasePeak(self._peak_bytes, *self._peak_at)},
            num_held_events=self._num_held_events,
        )
