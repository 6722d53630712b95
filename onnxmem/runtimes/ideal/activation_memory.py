"""The memory of a graph's activations: sums, peaks, live sets, and one packed block.

Activations are the tensors that nodes write at run time, those of subgraphs included, but not
weights and graph inputs. The numbers of definitions are those of docs/definitions.md.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from onnxmem.allocators.packed import EFFORTS, Packing, pack
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

if TYPE_CHECKING:
    from onnxmem.runtimes.ideal.schedules import Schedule


@dataclass(frozen=True)
class ActivationMemory:
    """The memory of activations in bytes; ``None`` is unknown."""

    naive_bytes: int | None
    """The sum of all activations (definition 2)."""
    naive_in_place_bytes: int | None
    """The sum of all buffers, which views and in-place chains share (definition 4)."""
    naive_in_place_elements: int | None
    """Elements of those buffers."""
    peak_bytes: int | None
    """The peak without buffer reuse: every tensor has its own buffer (definition 3)."""
    in_place_peak_bytes: int | None
    """The peak of the buffers (definition 4)."""
    replay: Replay = field(repr=False)
    """Of the buffers: step 0 of its program is before the first node, step n is the nth node.

    The live set of a subgraph at its peak is allocated and released in the step of its node.
    """
    nested: tuple[range, ...] = field(repr=False)
    """The allocations of subgraphs, by the node that has them: they are packed as one."""
    scopes: tuple[Scope, Scope] | None = field(repr=False, compare=False)
    """What the figures are read from: each tensor in its own buffer, and shared buffers. ``None``:
    a graph without subgraphs, of which nothing else may count."""
    unknown_tensors: tuple[str, ...]
    """Tensors of unknown size: the figures leave them out and are lower bounds."""
    pack: str = "quick"
    """How far a smaller packed block is searched for, a name of ``EFFORTS``."""
    order: "Schedule | None" = None
    """The requested order of execution; ``None``: that of the file."""

    def of_smaller_branches(self) -> "ActivationMemory":
        """The same graph, of which the smaller branch of each If counts, of each figure on its
        own.
        """
        if self.scopes is None:
            return self
        tensors, buffers = (each.of_smaller_branches() for each in self.scopes)
        return _memory(tensors, buffers, self.pack)

    @property
    def peak_step(self) -> int | None:
        """The index of the first node at the peak; ``None`` if no byte is known to be live."""
        if not self.in_place_peak_bytes:
            return None
        return int(self.replay.program.event_steps[self.replay.peak.num_events - 1]) - 1

    @property
    def peak_node(self) -> str | None:
        """That node; of nodes in a subgraph the If, Loop or Scan."""
        return self.replay.peak.node if self.in_place_peak_bytes else None

    @cached_property
    def live_at_peak(self) -> tuple[Allocation, ...]:
        """Largest first; their bytes sum to ``in_place_peak_bytes``."""
        live_set = self.replay.live_set(self.replay.peak)
        return tuple(each for each in live_set if each.size_bytes)

    @cached_property
    def live_bytes(self) -> tuple[int, ...]:
        """Live bytes at each node, in execution order."""
        return tuple(self.replay.step_bytes.tolist()[1:])

    @cached_property
    def packing(self) -> Packing:
        """Offsets in one block (definition 5)."""
        # Lazy: the search for the largest batch reads only peaks.
        effort = EFFORTS[self.pack]
        return pack(self.replay.program, self.replay.sizes, self.nested, effort)

    @property
    def arena_bytes(self) -> int | None:
        """The size of that block, never below the in-place peak; ``None`` if nothing is known."""
        return None if self.in_place_peak_bytes is None else self.packing.size_bytes

    @property
    def arena_lower_bound_bytes(self) -> int | None:
        """What no packing can be smaller than; ``None`` if nothing is known."""
        return None if self.in_place_peak_bytes is None else self.packing.lower_bound_bytes

    @property
    def arena_is_proven(self) -> bool | None:
        """Whether no block can be smaller; ``None`` if nothing is known."""
        return None if self.in_place_peak_bytes is None else self.packing.is_optimal


def activation_memory(
    graph: Graph, pack: str = "quick", buffers: Scope | None = None
) -> ActivationMemory:
    """Compute the memory of a graph's activations, subgraphs included.

    ``pack`` is how far a smaller packed block is searched for, a name of ``EFFORTS``; ``buffers``
    are those of the graph, if they are there already.

    With tensors of unknown size the figures are lower bounds, and ``None`` if nothing is known. A
    graph without activations takes 0 bytes.
    """
    return _memory(read_scope(graph, tensor_buffers), buffers or scope_of(graph), pack)


def scope_of(graph: Graph) -> Scope:
    """The buffers of a graph, which views and in-place chains share (definition 4)."""
    return read_scope(graph, shared_buffers)


def _memory(tensors: Scope, buffers: Scope, pack: str) -> ActivationMemory:
    graph = buffers.graph
    return ActivationMemory(
        naive_bytes=_if_known(tensors, tensors.sum_bytes),
        naive_in_place_bytes=_if_known(buffers, buffers.sum_bytes),
        naive_in_place_elements=_if_known(buffers, buffers.sum_of(lambda b: _elements(graph, b))),
        # A buffer's size may be known from a view alone, so that its bound may be the higher one.
        peak_bytes=_if_known(tensors, max(tensors.peak_bytes, buffers.peak_bytes)),
        in_place_peak_bytes=_if_known(buffers, buffers.peak_bytes),
        replay=buffers.replay,
        nested=buffers.nested,
        scopes=(tensors, buffers) if buffers.bodies else None,
        unknown_tensors=tuple(
            label
            for each in tensors.all_buffers()
            if None in each.sizes_bytes
            for label, size_bytes in zip(each.labels, each.sizes_bytes, strict=True)
            if size_bytes is None
        ),
        pack=pack,
    )


def in_place_peak_bytes(buffers: Scope) -> int | None:
    """The in-place peak of ``activation_memory`` alone, in half the time."""
    return _if_known(buffers, buffers.peak_bytes)


def _elements(graph: Graph, buffers: Buffers) -> int:
    """The number of elements in buffers."""
    # All tensors of a buffer have as many elements: any of known shape will do.
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
    """A figure, or ``None`` if all buffers of a scope are of unknown size."""
    sizes = [each.sizes_bytes for each in scope.all_buffers()]
    is_known = any(size is not None for each in sizes for size in each)
    return figure if is_known or not any(sizes) else None
