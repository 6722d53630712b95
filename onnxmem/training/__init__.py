"""What a training step takes beside the forward pass; simple terms, each named."""

from dataclasses import dataclass

from onnxmem.model import Graph

__all__ = ["TrainingMemory", "training_memory"]


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """The terms of a training step in bytes; ``None`` is unknown."""

    optimizer: str
    precision: str
    loss: str
    weight_bytes: int
    """Trained parameters, in the precision's copies."""
    buffer_bytes: int
    """Weights that no gradient reaches: running statistics and constants."""
    gradient_bytes: int
    optimizer_state_bytes: int
    saved_activation_bytes: int | None
    input_bytes: int | None
    """Graph inputs and the loss's targets."""
    forward_peak_bytes: int | None
    backward_peak_bytes: int | None
    optimizer_peak_bytes: int | None

    @property
    def peak_bytes(self) -> int | None:
        """The largest of the three phases."""
        phases = (self.forward_peak_bytes, self.backward_peak_bytes, self.optimizer_peak_bytes)
        known = [phase for phase in phases if phase is not None]
        return max(known, default=None)

    @property
    def peak_phase(self) -> str | None:
        """``forward``, ``backward`` or ``optimizer``: the phase of the peak."""
        raise NotImplementedError


def training_memory(graph: Graph, *, optimizer: str, precision: str, loss: str) -> TrainingMemory:
    """Work out the terms of one training step."""
    raise NotImplementedError
