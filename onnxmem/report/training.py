"""The training step in the text report: its terms as a sum, and its course as blocks."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from onnxmem.errors import shortened
from onnxmem.report.lines import fact, figure, law_text
from onnxmem.runtimes.torch.heap import Kind
from onnxmem.units import format_bytes

if TYPE_CHECKING:
    from onnxmem.analysis import Analysis
    from onnxmem.runtimes.torch import TorchMemory, TrainingMemory


def training_sections(analysis: "Analysis") -> list[list[str]]:
    """The step, what PyTorch's allocator makes of it on a GPU, and ways of checkpointing."""
    if analysis.training is None:
        return []
    return [
        _step(analysis, analysis.training),
        _torch(analysis.torch) if analysis.torch else [],
        _checkpoints(analysis.training),
    ]


REMARKS: Mapping[Kind, str] = MappingProxyType(
    {
        Kind.WEIGHT: "trained",
        Kind.BUFFER: "held, not trained",
        Kind.STATE: "of the optimizer",
        Kind.INPUT: "",
        Kind.ACTIVATION: "kept for the way back, outputs, loss",
        Kind.GRADIENT: "of weights, as far as made by then",
        Kind.ACTIVATION_GRADIENT: "on their way back",
        Kind.TEMPORARY: "of one operator, or of the optimizer's step",
    }
)
"""What each kind of block is, beside its name."""

_MOST_LISTED = 6


def _step(analysis: "Analysis", training: "TrainingMemory") -> list[str]:
    """The peak of a step as the sum of what is live then."""
    remark = f"peak of one step, in its {training.peak_phase.value} phase"
    lines = [figure("TRAIN", training.peak_bytes, remark)]
    if analysis.training_range is not None:
        high = analysis.training_range.high_bytes
        lines.append(figure("  or up to", high, "if BatchNormalization was folded: see FINDINGS"))
    by_kind = training.live_by_kind()
    lines += [figure(f"  {kind.value}", size, REMARKS[kind]) for kind, size in by_kind.items()]
    if training.peak_node is not None:
        lines.append(fact("  at", shortened(training.peak_node)))
    lines.append(fact("  by phase", _phases(training)))
    saved = format_bytes(training.saved_activation_bytes)
    lines.append(fact("  kept", f"{saved} of activations from forward to backward"))
    if analysis.training_law is not None:
        lines.append(fact("  formula", law_text(analysis.training_law)))
    return [*lines, *_largest(training)]


def _torch(memory: "TorchMemory") -> list[str]:
    """What PyTorch's allocator makes of it on a GPU, and what lies beside."""
    lines = [figure("ON CUDA", memory.total_bytes, "reserved, and the CUDA context")]
    terms = (
        ("  reserved", memory.reserved_peak_bytes, "max_memory_reserved, in two steps"),
        ("  allocated", memory.allocated_peak_bytes, "max_memory_allocated"),
        ("  context", memory.context_bytes, "assumed; --cuda-context"),
    )
    lines += [figure(label, size, remark) for label, size, remark in terms]
    cublas = f"cuBLAS workspaces {format_bytes(memory.cublas_workspace_bytes)} are in it"
    lines.append(fact("", f"not measured on a GPU yet; {cublas}"))
    return lines


def _checkpoints(training: "TrainingMemory") -> list[str]:
    """The ways of checkpointing that nothing beats both in bytes and in FLOPs."""
    if not training.checkpoints:
        return []
    lines = ["CHECKPOINTS                       each beats the one above in bytes, for more FLOPs"]
    for option in training.checkpoints:
        flops = f"+ {option.extra_flops / 1e9:,.3g} GFLOPs a step, {option.schedule}"
        lines.append(figure("  peak", option.peak_bytes, flops))
    return lines


def _largest(training: "TrainingMemory") -> list[str]:
    """The largest tensors alive at the peak."""
    largest = training.live_at_peak()[:_MOST_LISTED]
    return [
        "  largest of them",
        *(
            figure("", block.size_bytes, f"{shortened(block.label)} ({block.kind.value})")
            for block in largest
        ),
    ]


def _phases(training: "TrainingMemory") -> str:
    phases = {
        "forward": training.forward_peak_bytes,
        "backward": training.backward_peak_bytes,
        "optimizer": training.optimizer_peak_bytes,
    }
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in phases.items())
