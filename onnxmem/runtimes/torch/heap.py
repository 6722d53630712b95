"""The storages of a training step: references counted, allocations and releases written down.

An eager framework counts the references to a storage and frees it with the last. The heap does the
same; every allocation and release becomes an event of a ``Program``.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from onnxmem.program.program import Allocation, Category, ProgramBuilder
from onnxmem.program.replay import Replay
from onnxmem.program.sizes import Sizes


class Phase(StrEnum):
    """A part of a training step, in order."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(slots=True)
class Heap:
    """Counts references to allocations while a step is simulated."""

    node: str = ""
    """The node that runs; ``""``: none does."""
    _builder: ProgramBuilder = field(default_factory=ProgramBuilder)
    _sizes_bytes: list[int] = field(default_factory=list)
    _references: list[int] = field(default_factory=list)

    @classmethod
    def holding(cls, allocations: Iterable[Allocation]) -> Self:
        """A heap as the forward phase begins, with what is held before the step and through it."""
        heap = cls()
        heap.enter_phase(Phase.FORWARD)
        for allocation in allocations:
            if allocation.size_bytes:
                heap.allocate(*allocation)
        heap._builder.end_setup()
        return heap

    @property
    def num_events(self) -> int:
        """Allocations and releases so far."""
        return len(self._builder.events)

    def enter_phase(self, phase: Phase) -> None:
        """Begin a phase: what is alive now counts in its peak."""
        self.node = ""
        self._builder.enter_phase(phase.value)

    def enter_node(self, node: str) -> None:
        """Begin what a node does."""
        self.node = node
        self._builder.enter_step(node)

    def allocate(self, label: str, category: Category, size_bytes: int) -> int:
        """Allocate with one reference; the number of the allocation comes out."""
        self._sizes_bytes.append(size_bytes)
        self._references.append(1)
        return self._builder.malloc(label, category)

    def retain(self, number: int) -> None:
        """Count one more reference."""
        self._references[number] += 1

    def release(self, number: int) -> None:
        """Count one reference less; the last frees the allocation."""
        references = self._references
        references[number] -= 1
        if not references[number]:
            self._builder.free(number)

    def is_unique(self, number: int) -> bool:
        """Whether an allocation has one reference."""
        return self._references[number] == 1

    def relabel(self, number: int, label: str, category: Category) -> None:
        """Say what an allocation has become."""
        self._builder.relabel(number, label, category)

    def replay(self) -> Replay:
        """What was written down, with its sizes."""
        return Replay(self._builder.program(), Sizes.of(self._sizes_bytes))
