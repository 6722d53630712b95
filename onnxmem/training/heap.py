"""The allocations of a training step in order: what is alive when, and where it is most.

An eager framework counts the references to a storage and frees it with the last. The heap does the
same and writes down every allocation and release, so that a peak can be explained and the order
replayed by an allocator.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum


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


@dataclass(frozen=True, slots=True)
class Block:
    """One allocation."""

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


@dataclass(frozen=True, slots=True)
class StepTrace:
    """All allocations of a step, from its steady state to the end of its optimizer."""

    blocks: tuple[Block, ...]
    events: tuple[Event, ...]
    peaks: dict[Phase, PhasePeak]
    num_held_events: int
    """The first events: what is held through the step, and was before it."""

    def live_at(self, peak: PhasePeak) -> tuple[Block, ...]:
        """The blocks alive at a peak, largest first."""
        alive: dict[int, None] = {}
        for event in self.events[: peak.num_events]:
            if event.is_allocation:
                alive[event.block] = None
            else:
                del alive[event.block]
        return tuple(
            sorted((self.blocks[place] for place in alive), key=lambda block: -block.size_bytes)
        )

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Each event as (block, bytes): bytes allocated, or released below 0."""
        for event in self.events:
            size_bytes = self.blocks[event.block].size_bytes
            yield event.block, size_bytes if event.is_allocation else -size_bytes


@dataclass(slots=True)
class Heap:
    """Counts references to blocks, and writes down what is allocated and released."""

    phase: Phase = Phase.FORWARD
    node: str = ""
    live_bytes: int = 0
    _blocks: list[Block] = field(default_factory=list)
    _references: list[int] = field(default_factory=list)
    _events: list[Event] = field(default_factory=list)
    _peaks: dict[Phase, PhasePeak] = field(default_factory=dict)
    _num_held_events: int = 0

    def begin_step(self) -> None:
        """Count what is allocated so far as held before the step, and through it."""
        self._num_held_events = len(self._events)
        self.enter(Phase.FORWARD)

    def enter(self, phase: Phase) -> None:
        """Begin a phase: what is alive now counts in its peak."""
        self.phase, self.node = phase, ""
        self._note_peak()

    def allocate(self, label: str, kind: Kind, size_bytes: int) -> int:
        """Allocate a block with one reference; say its number."""
        number = len(self._blocks)
        self._blocks.append(Block(label, kind, size_bytes))
        self._references.append(1)
        self._events.append(Event(number, True, self.phase, self.node))  # noqa: FBT003 - a record
        self.live_bytes += size_bytes
        self._note_peak()
        return number

    def retain(self, number: int) -> None:
        """Count one more reference."""
        self._references[number] += 1

    def release(self, number: int) -> None:
        """Count one reference less; the last frees the block."""
        self._references[number] -= 1
        if self._references[number] == 0:
            self._events.append(Event(number, False, self.phase, self.node))  # noqa: FBT003
            self.live_bytes -= self._blocks[number].size_bytes

    def is_unique(self, number: int) -> bool:
        """Whether a block has one reference."""
        return self._references[number] == 1

    def relabel(self, number: int, label: str, kind: Kind) -> None:
        """Say what a block has become."""
        self._blocks[number] = Block(label, kind, self._blocks[number].size_bytes)

    def trace(self) -> StepTrace:
        """What was written down."""
        blocks, events = tuple(self._blocks), tuple(self._events)
        return StepTrace(blocks, events, dict(self._peaks), self._num_held_events)

    def _note_peak(self) -> None:
        peak = self._peaks.get(self.phase)
        if peak is None or self.live_bytes > peak.size_bytes:
            self._peaks[self.phase] = PhasePeak(self.live_bytes, self.node, len(self._events))
