"""What a training step takes: its terms, the peaks of its phases, and what is alive there."""

from dataclasses import dataclass

from onnxmem.errors import Finding
from onnxmem.program.program import Allocation, Category
from onnxmem.program.replay import Peak, Replay
from onnxmem.runtimes.torch.folded import BatchNorms
from onnxmem.runtimes.torch.heap import Phase
from onnxmem.settings import Recipe


@dataclass(frozen=True, slots=True)
class CheckpointOption:
    """One way of checkpointing: what the step then takes, and computes more."""

    schedule: str
    peak_bytes: int
    extra_flops: int
    """Forward FLOPs computed again in the backward pass."""


@dataclass(frozen=True, slots=True)
class PeakRange:
    """The training peak without and with what a file leaves open."""

    low_bytes: int
    high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMemory:
    """The terms of a training step in bytes; ``None`` is unknown."""

    recipe: Recipe
    weight_bytes: int
    """Trained parameters; masters count as optimizer state, copies of autocast as activations."""
    buffer_bytes: int
    """Weights that no gradient reaches: running statistics and constants."""
    gradient_bytes: int
    optimizer_state_bytes: int
    saved_activation_bytes: int | None
    """All that lives from forward to backward: what formulas read, the outputs and the loss."""
    input_bytes: int | None
    """Graph inputs and the loss's targets."""
    replay: Replay
    """Every allocation of the step; tensors of unknown size take 0 bytes in it."""
    multiplies_matrices: bool = False
    """Whether cuBLAS runs, which takes a workspace."""
    checkpoints: tuple[CheckpointOption, ...] = ()
    """Where the best is asked for: those that nothing beats both in bytes and in FLOPs."""
    assumed_nodes: tuple[str, ...] = ()
    """Nodes of which everything is taken to be saved: no record, or subgraphs."""
    unknown: tuple[str, ...] = ()
    """Tensors and nodes that the figures leave out: they are lower bounds."""
    findings: tuple[Finding, ...] = ()
    batchnorms: BatchNorms
    """Those that the export folded away, and what became of them here."""

    @property
    def forward_peak_bytes(self) -> int:
        """The most that is alive at once up to the loss."""
        return self.replay.phase_peaks[Phase.FORWARD].size_bytes

    @property
    def backward_peak_bytes(self) -> int:
        """The most that is alive at once from the loss to the last gradient."""
        return self.replay.phase_peaks[Phase.BACKWARD].size_bytes

    @property
    def optimizer_peak_bytes(self) -> int:
        """The most that is alive at once while the optimizer steps."""
        return self.replay.phase_peaks[Phase.OPTIMIZER].size_bytes

    @property
    def peak_bytes(self) -> int:
        """The largest of the three phases."""
        return self.peak.size_bytes

    @property
    def peak(self) -> Peak:
        """The peak of the phase that peaks highest."""
        return self.replay.phase_peaks[self.peak_phase]

    @property
    def peak_phase(self) -> Phase:
        """The phase of the peak; of equal ones the backward pass, then the optimizer."""
        order = (Phase.BACKWARD, Phase.OPTIMIZER, Phase.FORWARD)
        return max(order, key=lambda phase: self.replay.phase_peaks[phase].size_bytes)

    @property
    def peak_node(self) -> str | None:
        """The node at which the peak is reached; ``None`` in the optimizer."""
        return self.peak.node or None

    def live_by_category(self) -> dict[Category, int]:
        """Bytes alive at the peak by category; categories of 0 bytes are left out."""
        return self.replay.live_by_category(self.peak)

    def live_at_peak(self) -> tuple[Allocation, ...]:
        """What is alive at the peak, largest first."""
        return self.replay.live_set(self.peak)
