"""The memory of a training step: the heap that counts references, and the figures read from it.

PyTorch counts the references to a storage (``StorageImpl``, c10/util/intrusive_ptr.h) and frees it
with the last one. The heap does the same; every allocation and release becomes an event of a
``Program``, and ``TrainingMemory`` has the peaks of its phases.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from onnxmem.errors import Finding
from onnxmem.program.program import Allocation, Category, ProgramBuilder
from onnxmem.program.replay import Peak, Replay
from onnxmem.program.sizes import Sizes
from onnxmem.runtimes.torch.folded import BatchNorms
from onnxmem.settings import TrainingConfig


class Phase(StrEnum):
    """A part of a training step, in order."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class KernelBuffer:
    """What a kernel of CUDA allocates while it runs; no figure of the step itself has it."""

    event: int
    """The event before which it is allocated and freed."""
    label: str
    count: int
    """Of rows that a sum adds, of bytes that a convolution reads and writes, or of the buffer."""
    num_columns: int | None = None
    """Of the sum's result; ``None``: the buffer is no sum's."""
    is_tensor: bool = False
    """Whether the count is the bytes of the buffer."""


@dataclass(slots=True)
class Heap:
    """Counts references to allocations while a step is simulated."""

    node: str = ""
    """The node that runs; ``""`` for none."""
    entering: Callable[[str], None] | None = None
    """Told each node before it runs."""
    kernel_buffers: list[KernelBuffer] = field(default_factory=list)
    """In the order of events."""
    _builder: ProgramBuilder = field(default_factory=ProgramBuilder)
    _sizes_bytes: list[int] = field(default_factory=list)
    _references: list[int] = field(default_factory=list)

    @classmethod
    def with_setup(cls, allocations: Iterable[Allocation]) -> Self:
        """A heap at the start of the forward phase, with what is alive before and in the step."""
        heap = cls()
        heap.enter_phase(Phase.FORWARD)
        heap.allocate_all(allocations)
        heap._builder.end_setup()
        return heap

    def add_to_setup(self, allocations: Iterable[Allocation]) -> tuple[int, ...]:
        """Allocate what the step before left, without which the first step begins."""
        numbers = self.allocate_all(allocations)
        self._builder.begin_without(numbers)
        self._builder.end_setup()
        return numbers

    @property
    def num_events(self) -> int:
        """Allocations and releases so far."""
        return len(self._builder.events)

    def enter_phase(self, phase: Phase) -> None:
        """Begin a phase: what is alive now counts in its peak."""
        self.node = ""
        self._builder.enter_phase(phase.value)

    def enter_node(self, node: str) -> None:
        """Begin a node: what follows is allocated and released by it."""
        self.node = node
        self._builder.enter_step(node)
        if self.entering is not None:
            self.entering(node)

    def allocate(self, label: str, category: Category, size_bytes: int) -> int:
        """Allocate with one reference; return the number of the allocation."""
        self._sizes_bytes.append(size_bytes)
        self._references.append(1)
        return self._builder.malloc(label, category)

    def allocate_all(self, allocations: Iterable[Allocation]) -> tuple[int, ...]:
        """Allocate what has a size; return the numbers."""
        return tuple(self.allocate(*each) for each in allocations if each.size_bytes)

    def run_convolution(self, node: str, operand_bytes: int) -> None:
        """Note that a convolution runs now, which may take a workspace."""
        label = f"workspace of {node}"
        self.kernel_buffers.append(KernelBuffer(self.num_events, label, operand_bytes))

    def run_sum(self, label: str, num_rows: int, num_columns: int) -> None:
        """Note that the rows of a row-major matrix are added now, which may take a buffer."""
        self.kernel_buffers.append(KernelBuffer(self.num_events, label, num_rows, num_columns))

    def run_with_tensor(self, label: str, size_bytes: int) -> None:
        """Note that a kernel runs now that has a tensor of its own."""
        self.kernel_buffers.append(KernelBuffer(self.num_events, label, size_bytes, is_tensor=True))

    def make_first(self, number: int) -> None:
        """Allocate here in the first step what later steps find."""
        self._builder.make_first(number)

    def keep_first(self, number: int) -> None:
        """Keep in the first step what later steps release, in the place of what they find."""
        self._builder.keep_first(number)

    def retain(self, number: int) -> None:
        """Add a reference."""
        self._references[number] += 1

    def release(self, number: int) -> None:
        """Drop a reference; the last one frees the allocation."""
        references = self._references
        references[number] -= 1
        if not references[number]:
            self._builder.free(number)

    def is_unique(self, number: int) -> bool:
        """Whether an allocation has one reference."""
        return self._references[number] == 1

    def relabel(self, number: int, label: str, category: Category) -> None:
        """Change the label and the category of an allocation, which stays where it is."""
        self._builder.relabel(number, label, category)

    def replay(self) -> Replay:
        """The events so far as a program, with their sizes."""
        return Replay(self._builder.program(), Sizes.of(self._sizes_bytes))


@dataclass(frozen=True, slots=True)
class CheckpointOption:
    """One checkpointing schedule: the peak of the step, and what it recomputes."""

    schedule: str
    peak_bytes: int
    extra_flops: int
    """Forward FLOPs that are recomputed in the backward pass."""


@dataclass(frozen=True, slots=True)
class CheckpointedBlocks:
    """Repeated modules that are checkpointed together: mostly one."""

    names: tuple[str, ...]
    kept_bytes: int
    """Activations that the checkpoint keeps, which other blocks may keep too."""
    recomputed_bytes: int
    """What is saved again before its backward pass."""


@dataclass(frozen=True, slots=True)
class PeakRange:
    """The training peak without and with the BatchNormalizations that a file may have had."""

    low_bytes: int
    high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingMemory:
    """The figures of a training step in bytes; ``None`` is unknown."""

    recipe: TrainingConfig
    weight_bytes: int
    """Trained parameters; master weights are optimizer state, autocast's copies activations."""
    buffer_bytes: int
    """Weights without a gradient: running statistics and constants."""
    gradient_bytes: int
    optimizer_state_bytes: int
    saved_activation_bytes: int | None
    """What lives from forward to backward: saved tensors, the outputs and the loss."""
    input_bytes: int | None
    """Graph inputs and the loss's targets."""
    replay: Replay = field(repr=False)
    """Every allocation of the step; tensors of unknown size take 0 bytes in it."""
    kernel_buffers: tuple[KernelBuffer, ...] = field(default=(), repr=False)
    """What kernels allocate while they run on CUDA: in no figure here."""
    multiplies_matrices: bool = False
    """Whether cuBLAS runs, which takes a workspace."""
    checkpoints: tuple[CheckpointOption, ...] = ()
    """Where the best is requested: the Pareto front of bytes and FLOPs."""
    checkpointed: tuple[CheckpointedBlocks, ...] = ()
    """In the order in which they run; empty if nothing is, or the file names no modules."""
    assumed_nodes: tuple[str, ...] = ()
    """Nodes without a record, or with subgraphs: everything that they read or write is saved."""
    unknown: tuple[str, ...] = ()
    """Tensors and nodes that the figures leave out, which makes them lower bounds."""
    findings: tuple[Finding, ...] = ()
    batchnorms: BatchNorms
    """The BatchNormalizations that the export folded away, and how the step treats them."""

    @property
    def optimizer(self) -> str:
        """Its name."""
        return self.recipe.optimizer

    @property
    def forward_peak_bytes(self) -> int:
        """The peak up to the loss."""
        return self.replay.phase_peaks[Phase.FORWARD].size_bytes

    @property
    def backward_peak_bytes(self) -> int:
        """The peak from the loss to the last gradient."""
        return self.replay.phase_peaks[Phase.BACKWARD].size_bytes

    @property
    def optimizer_peak_bytes(self) -> int:
        """The peak while the optimizer steps."""
        return self.replay.phase_peaks[Phase.OPTIMIZER].size_bytes

    @property
    def peak_bytes(self) -> int:
        """The largest of the three phases."""
        return self.peak.size_bytes

    @property
    def peak(self) -> Peak:
        """The largest of the three peaks."""
        return self.replay.phase_peaks[self.peak_phase]

    @property
    def peak_phase(self) -> Phase:
        """The phase of the peak; if several are equal, backward before the optimizer's step."""
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
