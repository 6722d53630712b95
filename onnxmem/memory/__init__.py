"""When bytes are live: lifetimes, timelines, peaks and the arena that holds them."""

from dataclasses import dataclass

from onnxmem.memory.arena import Arena
from onnxmem.memory.lifetimes import Buffer, Lifetime
from onnxmem.memory.timeline import Timeline
from onnxmem.model import Graph

__all__ = [
    "ActivationMemory",
    "Arena",
    "Buffer",
    "Lifetime",
    "LiveTensor",
    "Timeline",
    "activation_memory",
]


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """One buffer that is live at the peak, by the tensor that first names it."""

    tensor: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ActivationMemory:
    """What the tensors that nodes make take; the definitions' numbers are design's."""

    naive_bytes: int | None
    """Every tensor kept (definition 2)."""
    naive_in_place_bytes: int | None
    """Every buffer kept, in-place chains and views sharing one (definition 4)."""
    peak_bytes: int | None
    """Liveness peak, every tensor a buffer of its own (definition 3)."""
    in_place_peak_bytes: int | None
    """Liveness peak of the buffers (definition 4); the next three describe it."""
    peak_node: str | None
    peak_step: int | None
    live_at_peak: tuple[LiveTensor, ...]
    """Largest first; their bytes sum to ``in_place_peak_bytes``."""
    timeline: Timeline
    """Live bytes per step, of the buffers."""
    arena: Arena
    unknown_tensors: tuple[str, ...]
    """Tensors of unknown size: the figures above leave them out and are lower bounds."""


def activation_memory(graph: Graph) -> ActivationMemory:
    """Work out what the activations of a graph take, subgraphs included."""
    raise NotImplementedError
