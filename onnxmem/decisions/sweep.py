"""What inference needs at many batches of one model: rows where there are any, else one by one."""

from collections.abc import Iterable
from dataclasses import dataclass

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.scaling.row_finding import symbolic_terms
from onnxmem.analysis.scaling.symbolic_terms import SymbolicTerms
from onnxmem.analysis.stages import StageResults
from onnxmem.program.polynomials import largest


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

    None is walked that the peak's rows speak of, whatever the number of batches: two walks find
    rows that go far enough. Elsewhere each batch is walked. The figures are those of
    ``analysis.at(batch=...)``.

    :raises ShapeError: a batch is not positive.
    """
    asked = tuple(batches)
    rows, question = _rows_to(analysis, max(asked, default=1)), analysis.request
    return tuple(
        _figures(batch, question.walk(batch, {}))
        if rows is None or not rows.speaks_of(rows.at_batch(batch))
        else _read_off(batch, rows)
        for batch in asked
    )


def _rows_to(analysis: Analysis, last: int) -> SymbolicTerms | None:
    """Rows that go as far as the last batch: the analysis's own, or others in the batch alone."""
    known, question, batch = analysis.symbolic, analysis.request, analysis.settings.batch
    if isinstance(known, SymbolicTerms) and known.has_batch and last <= known.last[0]:
        return known
    if batch is None:
        return None
    found = symbolic_terms(question.walk(batch, {}), question.walk, last_batch=last)
    return found if isinstance(found, SymbolicTerms) else None


def _read_off(batch: int, rows: SymbolicTerms) -> BatchFigures:
    numbers = rows.at_batch(batch)
    return BatchFigures(
        batch,
        rows.inputs.at(numbers),
        largest(rows.peaks.peak_rows, numbers),
        largest(rows.peaks.in_place_peak_rows, numbers),
        rows.total_bytes(numbers),
    )


def _figures(batch: int, terms: StageResults) -> BatchFigures:
    memory = terms.activations
    return BatchFigures(
        batch,
        terms.inputs_bytes,
        memory.peak_bytes,
        memory.in_place_peak_bytes,
        terms.total_bytes,
    )
