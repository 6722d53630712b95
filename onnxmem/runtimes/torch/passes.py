"""The forward and the backward pass of a step, segment by segment of a schedule."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from onnxmem.model.graph import Node
from onnxmem.runtimes.torch.backward import Backward
from onnxmem.runtimes.torch.checkpointing import Schedule, Segment
from onnxmem.runtimes.torch.constants import data_reads
from onnxmem.runtimes.torch.forward import Storages, run_forward
from onnxmem.runtimes.torch.heap import Heap
from onnxmem.runtimes.torch.tape import Tape


@dataclass(slots=True)
class Passes:
    """A step's two passes under way."""

    tape: Tape
    heap: Heap
    schedule: Schedule
    storages: Storages = field(init=False)
    held: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Storages that a segment keeps to be computed again, by its place."""

    def __post_init__(self) -> None:
        graph = self.tape.graph
        self.storages = Storages.before(self.tape, self.heap, graph.nodes, graph.outputs)

    def run_forward(self) -> None:
        """Run every segment."""
        for place, segment in enumerate(self.schedule.segments):
            if segment.is_recomputed:
                self._run_checkpointed(place, segment)
            else:
                run_forward(self.storages, segment.nodes)

    def run_backward(self, backward: Backward) -> None:
        """Go back through every segment, computing again what was not kept."""
        way_back = {node.name for node in self.tape.way_back}
        for place, segment in reversed(tuple(enumerate(self.schedule.segments))):
            backward.storages = self.storages
            if segment.is_recomputed:
                backward.storages = self._recompute(place, segment)
            backward.run(node for node in segment.nodes if node.name in way_back)
            for storage in self.held.pop(place, ()):
                self.storages.drop(storage)

    def _run_checkpointed(self, place: int, segment: Segment) -> None:
        inputs = self._storages_of(_outside_reads(segment.nodes))
        for storage in inputs:
            self.storages.hold(storage)
        stored: list[str] = []
        for node in segment.nodes:
            run_forward(self.storages, (node,), saves=False)
            for storage in self._storages_of(segment.stored.intersection(node.writes)):
                if storage not in inputs and storage in self.storages.blocks:
                    self.storages.hold(storage)
                    stored.append(storage)
        self.held[place] = (*inputs, *stored)

    def _recompute(self, place: int, segment: Segment) -> Storages:
        """Run a segment again on what it kept."""
        inner = Storages.before(self.tape, self.heap, segment.nodes)
        for storage in self.held[place]:
            inner.blocks[storage] = self.storages.blocks[storage]
        for name in _outside_reads(segment.nodes):
            inner.write(name)
        run_forward(inner, segment.nodes)
        return inner

    def _storages_of(self, names: Iterable[str]) -> tuple[str, ...]:
        storages = self.tape.storages
        return tuple(dict.fromkeys(storages[name] for name in names if name in storages))


def _outside_reads(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Name what nodes read and do not write, each once."""
    written: set[str] = set()
    found: dict[str, None] = {}
    for node in nodes:
        found.update(dict.fromkeys(name for name in data_reads(node) if name not in written))
        written.update(node.writes)
    return tuple(found)
