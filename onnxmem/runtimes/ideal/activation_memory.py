"""What the activations of a graph take: sums, peaks, what is live there, and one packed block.

The numbers of definitions are those of docs/definitions.md.

What is counted are activations: tensors that nodes make at run time, subgraphs' included. Weights
and graph inputs are others' bytes.
"""

from dataclasses import dataclass
from functools import cached_property

from onnxmem.allocators.packed import Packing, pack
from onnxmem.model.graph import Graph
from onnxmem.program.program import Allocation
from onnxmem.program.replay import Replay
from onnxmem.runtimes.ideal.lifetimes import (
    Buffers,
    Scope,
    read_scope,
    shared_buffers,
    tensor_buffers,
)


@dataclass(frozen=True)
class ActivationMemory:
    """What the tensors that nodes make take, in bytes; ``None`` is unknown."""

    naive_bytes: int | None
    """Every tensor kept (definition 2)."""
    naive_in_place_bytes: int | None
    """Every buffer kept, in-place chains and views sharing one (definition 4)."""
    naive_in_place_elements: int | None
    """Elements of those buffers."""
    peak_bytes: int | None
    """Liveness peak, every tensor a buffer of its own (definition 3)."""
    in_place_peak_bytes: int | None
    """Liveness peak of the buffers (definition 4)."""
    replay: Replay
    """Of the buffers: a step of its program is a node of the graph, after one in which none runs.

    What a subgraph has live at its peak is allocated and released in the step of its node.
    """
    nested: tuple[range, ...]
    """The allocations that are subgraphs', of each node that has any: they are packed as one."""
    unknown_tensors: tuple[str, ...]
    """Tensors of unknown size: the figures above leave them out and are lower bounds."""

    @property
    def peak_step(self) -> int | None:
        """The index of the first node at the peak; ``None`` where no byte is known to be live."""
        if not self.in_place_peak_bytes:
            return None
        return int(self.replay.program.event_steps[self.replay.peak.num_events - 1]) - 1

    @property
    def peak_node(self) -> str | None:
        """That node; an If, Loop or Scan stands for its subgraphs' nodes."""
        return self.replay.peak.node if self.in_place_peak_bytes else None

    @cached_property
    def live_at_peak(self) -> tuple[Allocation, ...]:
        """Largest first; their bytes sum to ``in_place_peak_bytes``."""
        live_set = self.replay.live_set(self.replay.peak)
        return tuple(each for each in live_set if each.size_bytes)

    @cached_property
    def live_bytes(self) -> tuple[int, ...]:
        """Live bytes at each node, in running order."""
        return tuple(self.replay.step_bytes.tolist()[1:])

    @cached_property
    def packing(self) -> Packing:
        """Offsets in one block (definition 5), found when first read: a search reads none."""
        return pack(self.replay.program, self.replay.sizes, self.nested)

    @property
    def arena_bytes(self) -> int | None:
        """Size of that block, never below the in-place peak; ``None`` where nothing is known."""
        return None if self.in_place_peak_bytes is None else self.packing.size_bytes


def activation_memory(graph: Graph) -> ActivationMemory:
    """Work out what the activations of a graph take in bytes, subgraphs included.

    With tensors of unknown size the figures are lower bounds; one of which nothing is known is
    ``None``. A graph without activations takes 0.
    """
    tensors = read_scope(graph, tensor_buffers)
    buffers = read_scope(graph, shared_buffers)
    return ActivationMemory(
        naive_bytes=_if_known(tensors, tensors.sum_bytes),
        naive_in_place_bytes=_if_known(buffers, buffers.sum_bytes),
        naive_in_place_elements=_if_known(buffers, buffers.sum_of(lambda b: _elements(graph, b))),
        # The known size of a view is its buffer's, so the buffers' bound may be the higher one.
        peak_bytes=_if_known(tensors, max(tensors.peak_bytes, buffers.peak_bytes)),
        in_place_peak_bytes=_if_known(buffers, buffers.peak_bytes),
        replay=buffers.replay,
        nested=buffers.nested,
        unknown_tensors=tuple(
            label
            for each in tensors.all_buffers()
            if None in each.sizes_bytes
            for label, size_bytes in zip(each.labels, each.sizes_bytes, strict=True)
            if size_bytes is None
        ),
    )


def in_place_peak_bytes(graph: Graph) -> int | None:
    """The in-place peak alone, as ``activation_memory`` has it, in half the time."""
    buffers = read_scope(graph, shared_buffers)
    return _if_known(buffers, buffers.peak_bytes)


def _elements(graph: Graph, buffers: Buffers) -> int:
    """Elements of buffers: those of any tensor of each that is known, for all have as many."""
    tensors = graph.tensors
    total = 0
    for number, label in enumerate(buffers.labels):
        count = tensors[label].num_elements
        if count is None:
            counts = (tensors[name].num_elements for name in buffers.tensors_of(number))
            count = next((each for each in counts if each is not None), 0)
        total += count
    return total


def _if_known(scope: Scope, figure: int) -> int | None:
    """A figure, or ``None`` where all that it speaks of is unknown."""
    sizes = [each.sizes_bytes for each in scope.all_buffers()]
    is_known = any(size is not None for each in sizes for size in each)
    return figure if is_known or not any(sizes) else None
