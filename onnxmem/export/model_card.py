"""A block of markdown for a model card, as on Hugging Face: what the model takes, and how known.

The markers let a script find the block and write it again. Names stand in code spans, in which
nothing has a meaning.
"""

from collections.abc import Iterator

from onnxmem.analysis.analysis import Analysis
from onnxmem.export.assumptions import assumptions, command
from onnxmem.report.check import code
from onnxmem.units import format_bytes
from onnxmem.version import __version__

_Figure = tuple[str, int | None]


def model_card(analysis: Analysis) -> Iterator[str]:
    """Write a table of the figures that are known, what they assume, and the command."""
    yield "<!-- onnxmem begin -->\n### Memory\n\n"
    yield "| figure | size | bytes |\n|---|---:|---:|\n"
    for name, size_bytes in _figures(analysis):
        if size_bytes is not None:
            yield f"| {name} | {format_bytes(size_bytes)} | {size_bytes:,} |\n"
    yield "\n"
    if analysis.status == "partial":
        yield f"Partial: {'; '.join(code(each) for each in analysis.doubts)}.\n\n"
    yield f"Parameters: {analysis.num_parameters:,}. "
    yield f"Assumed: {', '.join(code(each) for each in assumptions(analysis))}.\n\n"
    yield f"Worked out from the file by onnxmem {__version__}, without a run:\n\n"
    yield f"    {command(analysis)}\n<!-- onnxmem end -->\n"


def _figures(analysis: Analysis) -> Iterator[_Figure]:
    activations = analysis.activations
    yield "file", analysis.file_bytes
    yield "weights", analysis.weight_bytes
    yield "to run: weights + inputs + activations at their peak", analysis.total_bytes
    yield "activations at their peak, buffers shared", activations.in_place_peak_bytes
    yield "activations, all kept", activations.naive_bytes
    yield from _runtime_figures(analysis)
    if analysis.training is not None:
        yield "a training step", analysis.training.peak_bytes
        yield "a training step: optimizer state", analysis.training.optimizer_state_bytes
        yield "a training step: kept activations", analysis.training.saved_activation_bytes
    if analysis.torch is not None:
        yield "a training step on CUDA, the context included", analysis.torch.total_bytes


def _runtime_figures(analysis: Analysis) -> Iterator[_Figure]:
    for runtime in analysis.runtimes:
        yield f"{runtime.name}: held by the arena", runtime.arena.held_steady_bytes
        yield f"{runtime.name}: the process", runtime.process_bytes
