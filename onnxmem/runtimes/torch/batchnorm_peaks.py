"""What BatchNormalizations that a step leaves out would add to it."""

from dataclasses import replace

from onnxmem.errors import Finding, listed
from onnxmem.model.graph import Graph
from onnxmem.runtimes.torch.memory import PeakRange, TrainingMemory
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.units import format_bytes


def batchnorm_range(graph: Graph, step: TrainingMemory) -> PeakRange | None:
    """The peak as the step has it, and with every BatchNormalization that it leaves out.

    ``None`` where it leaves none out. Another step of the same graph is worked out otherwise.
    """
    left_out = step.batchnorms
    if not (left_out.left_out or left_out.unknown):
        return None
    assumed = None if left_out.left_out else True
    full = training_memory(graph, replace(step.recipe, assume_batchnorm=assumed))
    return PeakRange(*sorted((step.peak_bytes, full.peak_bytes)))


def range_finding(step: TrainingMemory, peaks: PeakRange) -> Finding:
    """What a reader should know of a range: whether it is asked for, or open."""
    names = step.batchnorms.left_out or step.batchnorms.unknown
    low, high = format_bytes(peaks.low_bytes), format_bytes(peaks.high_bytes)
    factor = peaks.high_bytes / peaks.low_bytes
    places = f"{len(names):,} BatchNormalization"
    if step.batchnorms.left_out:
        text = (
            f"{places} that the export folded away left out, as asked: {listed(names)}; the "
            f"training peak is {low} without them and {high} with them, {factor:.2f} times that"
        )
        return Finding("folded_batchnorm", text, names[0])
    text = (
        f"up to {places} may have been folded into convolutions with a bias; the file doesn't "
        f"tell: {listed(names)}; the training peak is {low} if none was and {high} if all were, "
        f"{factor:.2f} times that; say --assume-batchnorm or --no-assume-batchnorm"
    )
    return Finding("batchnorm_unknown", text, names[0])
