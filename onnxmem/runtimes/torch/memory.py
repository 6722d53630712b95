"""What a training step takes: its terms, the peaks of its phases, and what is alive there."""

from dataclasses import dataclass

from onnxmem.errors import Finding
from onnxmem.runtimes.torch.folded import BatchNorms
from onnxmem.runtimes.torch.heap import Block, Kind, Phase, StepTrace
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
    trace: StepTrace
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
        return self.trace.peaks[Phase.FORWARD].size_bytes

    @property
    def backward_peak_bytes(self) -> int:
        """The most that is alive at once from the loss to the last gradient."""
        return self.trace.peaks[Phase.BACKWARD].size_bytes

    @property
    def optimizer_peak_bytes(self) -> int:
        """The most that is alive at once while the optimizer steps."""
        return self.trace.peaks[Phase.OPTIMIZER].size_bytes

    @property
    def peak_bytes(self) -> int:
        """The largest of the three phases."""
        return self.trace.peaks[self.peak_phase].size_bytes

    @property
    def peak_phase(self) -> Phase:
        """The phase of the peak; of equal ones the backward pass, then the optimizer."""
        order = (Phase.BACKWARD, Phase.OPTIMIZER, Phase.FORWARD)
        return max(order, key=lambda phase: self.trace.peaks[phase].size_bytes)

    @property
    def peak_node(self) -> str | None:
        """The node at which the peak is reached; ``None`` in the optimizer."""
        return self.trace.peaks[self.peak_phase].node or None

    def live_by_kind(self) -> dict[Kind, int]:
        """Bytes alive at the peak, by what they hold; kinds that hold none are left out."""
        found = dict.fromkeys(Kind, 0)
        for block in self.live_at_peak():
            found[block.kind] += block.size_bytes
        return {kind: size for kind, size in found.items() if size}

    def live_at_peak(self) -> tuple[Block, ...]:
        """What is alive at the peak, largest first."""
        return self.trace.live_at(self.trace.peaks[self.peak_phase])
