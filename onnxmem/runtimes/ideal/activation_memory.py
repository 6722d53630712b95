"""When bytes are live: lifetimes, timelines, peaks and the arena that holds them.

The numbers of definitions are those of docs/definitions.md.

What is counted are activations: tensors that nodes make at run time, subgraphs' included. Weights
and graph inputs are others' bytes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from onnxmem.allocators.packed.packing import Arena, pack
from onnxmem.model import Graph
from onnxmem.program.lifetimes import Buffer, Lifetime, Timeline
from onnxmem.runtimes.ideal.lifetimes import tensor_lifetimes
from onnxmem.runtimes.ideal.scopes import Scope, read_scope
from onnxmem.runtimes.ideal.sharing import buffer_lifetimes

__all__ = [
    "ActivationMemory",
    "LiveTensor",
    "Scope",
    "activation_memory",
    "buffer_lifetimes",
    "read_scope",
    "tensor_lifetimes",
]


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """One buffer that is live at the peak, by the tensor that first names it."""

    tensor: str
    size_bytes: int


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
    """Liveness peak of the buffers (definition 4); the next three describe it."""
    peak_node: str | None
    """The first node at the peak; an If, Loop or Scan stands for its subgraphs' nodes."""
    peak_step: int | None
    """That node's place in running order; ``None`` where no byte is known to be live."""
    live_at_peak: tuple[LiveTensor, ...]
    """Largest first; their bytes sum to ``in_place_peak_bytes``."""
    timeline: Timeline
    """Live bytes per step, of the buffers."""
    blocks: tuple[Lifetime, ...]
    """What the arena holds: buffers, and what a subgraph has live at its peak as one."""
    unknown_tensors: tuple[str, ...]
    """Tensors of unknown size: the figures above leave them out and are lower bounds."""

    @cached_property
    def arena(self) -> Arena:
        """Offsets for the blocks (definition 5), found when first asked for: a search asks none."""
        return pack(self.blocks)

    @property
    def arena_bytes(self) -> int | None:
        """Size of the arena, never below the in-place peak; ``None`` where nothing is known."""
        return None if self.in_place_peak_bytes is None else self.arena.size_bytes


def activation_memory(graph: Graph) -> ActivationMemory:
    """Work out what the activations of a graph take in bytes, subgraphs included.

    With tensors of unknown size the figures are lower bounds; one of which nothing is known is
    ``None``. A graph without activations takes 0.
    """
    tensors = read_scope(graph, tensor_lifetimes)
    buffers = read_scope(graph, buffer_lifetimes)
    in_place_peak_bytes = _if_known(buffers, buffers.peak_bytes)
    step = buffers.timeline.peak_step if in_place_peak_bytes else None
    return ActivationMemory(
        naive_bytes=_if_known(tensors, tensors.sum_bytes),
        naive_in_place_bytes=_if_known(buffers, buffers.sum_bytes),
        naive_in_place_elements=_if_known(buffers, buffers.sum_of(lambda b: _elements(graph, b))),
        # A view of known size tells its buffer's, so the buffers' bound may be the higher one.
        peak_bytes=_if_known(tensors, max(tensors.peak_bytes, buffers.peak_bytes)),
        in_place_peak_bytes=in_place_peak_bytes,
        peak_node=None if step is None else graph.nodes[step].name,
        peak_step=step,
        live_at_peak=_largest_first(buffers.live_at_peak()),
        timeline=buffers.timeline,
        blocks=tuple(buffers.blocks()),
        unknown_tensors=_unknown(tensors.buffers()),
    )


def in_place_peak_bytes(graph: Graph) -> int | None:
    """The in-place peak alone, as ``activation_memory`` has it, in half the time."""
    buffers = read_scope(graph, buffer_lifetimes)
    return _if_known(buffers, buffers.peak_bytes)


def _elements(graph: Graph, buffer: Buffer) -> int:
    """Elements of a buffer: those of any of its tensors that is known, for all have as many."""
    for name in buffer.tensors:
        count = graph.tensors[name].num_elements
        if count is not None:
            return count
    return 0


def _if_known(scope: Scope, figure: int) -> int | None:
    """A figure, or ``None`` where all that it speaks of is unknown."""
    if any(buffer.size_bytes is not None for buffer in scope.buffers()):
        return figure
    return figure if next(scope.buffers(), None) is None else None


def _largest_first(buffers: Iterable[Buffer]) -> tuple[LiveTensor, ...]:
    live = (LiveTensor(buffer.tensors[0], buffer.size_bytes or 0) for buffer in buffers)
    return tuple(sorted(live, key=lambda tensor: -tensor.size_bytes))


def _unknown(buffers: Iterable[Buffer]) -> tuple[str, ...]:
    return tuple(name for buffer in buffers if buffer.size_bytes is None for name in buffer.tensors)
