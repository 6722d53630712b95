"""What inference needs at many batches of one model: lines where there are any, else one by one."""

from collections.abc import Iterable
from dataclasses import dataclass

from onnxmem.analysis import Analysis
from onnxmem.memory.symbolic import largest
from onnxmem.symbolic_terms import symbolic_terms
from onnxmem.terms import Terms


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """The figures of one batch, in bytes; ``None`` is unknown, partial figures are lower bounds."""

    batch: int
    inputs_bytes: int | None
    peak_bytes: int | None
    """Liveness peak (definition 3)."""
    in_place_peak_bytes: int | None
    """In-place peak (definition 4)."""
    total_bytes: int | None
    """Weights, inputs and in-place peak."""


def sweep(analysis: Analysis, batches: Iterable[int]) -> tuple[BatchFigures, ...]:
    """Find the figures of every batch, in the order given, without reading the file again.

    Two batches are walked where all bytes are lines in the batch, whatever the number of batches;
    elsewhere each batch is. The figures are those of ``analysis.at(batch=...)``.

    :raises ShapeError: a batch is not positive.
    """
    asked = tuple(batches)
    question, walked = analysis.question, dict[int, Terms]()

    def at(batch: int) -> Terms:
        if batch not in walked:
            walked[batch] = question.at(batch).terms()
        return walked[batch]

    batch = analysis.settings.batch
    lines = None if batch is None else symbolic_terms(at(batch), at, max(asked, default=1))
    if lines is None:
        return tuple(_figures(batch, at(batch)) for batch in asked)
    peaks, peak_rows = lines.peaks, lines.peak_rows()
    return tuple(
        BatchFigures(
            batch,
            peaks.inputs.bytes_at(batch),
            largest(peak_rows, batch),
            largest(peaks.in_place_peak_rows, batch),
            lines.total_bytes(batch),
        )
        if peaks.speaks_of(batch)
        else _figures(batch, at(batch))
        for batch in asked
    )


def _figures(batch: int, terms: Terms) -> BatchFigures:
    memory = terms.activations
    return BatchFigures(
        batch,
        terms.inputs_bytes,
        memory.peak_bytes,
        memory.in_place_peak_bytes,
        terms.total_bytes,
    )
