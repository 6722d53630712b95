"""A training step: its peak as a sum, PyTorch's allocator on a GPU, and checkpointing."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from onnxmem.errors import shortened
from onnxmem.program.program import Category
from onnxmem.report.sections.section import GPU_MEMORY, TRAINING_STEP, Line, Section, formula_lines
from onnxmem.units import format_bytes

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis
    from onnxmem.runtimes.torch.cuda import TorchMemory
    from onnxmem.runtimes.torch.memory import CheckpointedBlocks, TrainingMemory
    from onnxmem.runtimes.torch.tensorflow import TensorflowMemory

CATEGORIES: Mapping[Category, str] = MappingProxyType(
    {
        Category.WEIGHT: "trained",
        Category.BUFFER: "not trained",
        Category.STATE: "of the optimizer",
        Category.INPUT: "",
        Category.ACTIVATION: "saved for backward, outputs, loss",
        Category.GRADIENT: "of weights, allocated so far",
        Category.ACTIVATION_GRADIENT: "",
        Category.TEMPORARY: "of operators or the optimizer",
    }
)
"""The categories of allocations in the order of a report, and what each is beside its name."""


def training_sections(analysis: "Analysis") -> Iterator[Section]:
    """The step, what PyTorch's allocator reserves for it on a GPU, and ways of checkpointing."""
    if analysis.training is None:
        return
    yield _step(analysis, analysis.training)
    if analysis.torch is not None:
        yield _cuda(analysis.torch)
    if analysis.tensorflow is not None:
        yield _tensorflow(analysis.tensorflow)
    if analysis.training.checkpoints:
        yield _checkpoints(analysis.training)
    if analysis.training.checkpointed:
        yield _checkpointed(analysis.training.checkpointed)


def live_lines(training: "TrainingMemory") -> Iterator[Line]:
    """The tensors that are alive at the step's peak, the largest first."""
    for each in training.live_at_peak():
        yield Line(f"{shortened(each.label)} ({each.category.value})", each.size_bytes)


def _step(analysis: "Analysis", training: "TrainingMemory") -> Section:
    """The peak of a step as the sum of what is alive then."""
    total = Line(
        TRAINING_STEP,
        training.peak_bytes,
        f"peak of one step, in its {training.peak_phase.value} phase",
        key="training.peak_bytes",
        words_key="training.peak_phase",
    )
    saved = Line(
        "saved for backward",
        training.saved_activation_bytes,
        "activations, from forward to backward",
        key="training.saved_activation_bytes",
    )
    return Section(
        key="train",
        title=TRAINING_STEP,
        total=total,
        lines=(
            *_upper_bound(analysis),
            *_by_category(training),
            *_node(training),
            Line("by phase", text="", parts=_phases(training)),
            saved,
            *formula_lines(analysis.training_law),
        ),
    )


def _upper_bound(analysis: "Analysis") -> Iterator[Line]:
    if analysis.training_range is not None:
        high_bytes = analysis.training_range.high_bytes
        remark = "if BatchNormalization was folded: see Notes"
        yield Line("or up to", high_bytes, remark, key="training.batchnorm.high_bytes")


def _by_category(training: "TrainingMemory") -> Iterator[Line]:
    sizes = training.live_by_category()
    for category, remark in CATEGORIES.items():
        key = f"training.live_by_kind.{category.value}"
        yield Line(category.value, sizes.get(category, 0), remark, key=key, drops_zero=True)


def _node(training: "TrainingMemory") -> Iterator[Line]:
    if training.peak_node is not None:
        yield Line("peak at", text=shortened(training.peak_node), words_key="training.peak_node")


def _phases(training: "TrainingMemory") -> tuple[Line, ...]:
    """The peak of each phase."""
    phases = (
        ("forward", training.forward_peak_bytes, "up to the loss"),
        ("backward", training.backward_peak_bytes, "from the loss to the last gradient"),
        ("optimizer", training.optimizer_peak_bytes, "while the optimizer steps"),
    )
    return tuple(
        Line(name, peak_bytes, remark, key=f"training.{name}_peak_bytes", depth=2)
        for name, peak_bytes, remark in phases
    )


def _cuda(memory: "TorchMemory") -> Section:
    """What PyTorch's allocator reserves on a GPU, and the CUDA context beside it."""
    key, context = "training.cuda", memory.context_bytes
    remark = "reserved + CUDA context"
    total = Line("", memory.total_bytes, remark, key=f"{key}.total_bytes")
    reserved, allocated = memory.reserved_bytes, memory.allocated_bytes
    cublas = f"cuBLAS workspaces {format_bytes(memory.cublas_workspace_bytes)} are part of it"
    return Section(
        key="cuda",
        title=GPU_MEMORY,
        total=total,
        lines=(
            Line(
                "reserved",
                reserved,
                "max_memory_reserved, in two steps",
                key=f"{key}.reserved_bytes",
            ),
            Line("allocated", allocated, "max_memory_allocated", key=f"{key}.allocated_bytes"),
            Line("CUDA context", context, "assumed; --cuda-context", key=f"{key}.context_bytes"),
            Line(
                "",
                text=f"{cublas}; from Hopper on: --cublas-workspace 32MiB",
                words_key=f"{key}.cublas",
            ),
        ),
    )


def _tensorflow(memory: "TensorflowMemory") -> Section:
    """What TensorFlow's allocator takes for the same step: Keras runs on it."""
    key = "training.tensorflow"
    text = (
        "never measured: the step as PyTorch runs it, on TensorFlow's allocator, which "
        "Keras uses; without memory growth it reserves nearly the whole GPU, whatever the model"
    )
    return Section(
        key="tensorflow",
        title="GPU memory (TensorFlow)",
        total=Line("", memory.total_bytes, "reserved + CUDA context", key=f"{key}.total_bytes"),
        lines=(
            Line(
                "reserved",
                memory.reserved_bytes,
                "with memory growth",
                key=f"{key}.reserved_bytes",
            ),
            Line("allocated", memory.allocated_bytes, key=f"{key}.allocated_bytes"),
            Line("CUDA context", memory.context_bytes, "as PyTorch's", key=f"{key}.context_bytes"),
            Line("", text=text),
        ),
    )


def _checkpointed(groups: "Sequence[CheckpointedBlocks]") -> Section:
    """What each checkpointed block keeps, and what it saves again before its backward pass."""
    lines = [
        Line(
            shortened(_joined(group.names)),
            group.kept_bytes,
            f"kept; {format_bytes(group.recomputed_bytes)} computed again",
        )
        for group in groups
    ]
    most = max(group.recomputed_bytes for group in groups)
    return Section(
        key="checkpointed",
        title="Checkpointed blocks",
        remark=f"{len(groups):,}, of which one at a time computes up to {format_bytes(most)} again",
        lines=tuple(lines),
    )


def _joined(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _checkpoints(training: "TrainingMemory") -> Section:
    """The checkpointing options on the Pareto front of bytes and FLOPs."""
    return Section(
        key="checkpoints",
        title="Checkpointing",
        remark="each takes less memory than the one above, for more FLOPs",
        lines=tuple(
            Line(
                "peak",
                option.peak_bytes,
                f"+ {option.extra_flops / 1e9:,.3g} GFLOPs a step, {option.schedule}",
            )
            for option in training.checkpoints
        ),
    )
