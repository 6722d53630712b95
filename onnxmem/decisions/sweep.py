"""The memory of inference at many batches: from the closed form, else one walk per batch."""

from collections.abc import Iterable
from dataclasses import dataclass

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.request import StageResults
from onnxmem.analysis.scaling import ClosedForm, find_closed_form
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
    """The figures of every batch, in order, without reading the file again.

    Where the closed form is valid no batch is walked, however many there are: two walks find a form
    that reaches far enough. Other batches are walked. The figures equal those of
    ``analysis.at(batch=...)``.

    :param analysis: of the model, at any batch.
    :param batches: samples at once, in any order.
    :raises ShapeError: a batch is not positive.
    """
    # A closed form takes two or three walks of the model, however many batches there are; each
    # batch that it does not cover takes one.
    requested = tuple(batches)
    form, request = _form_up_to(analysis, max(requested, default=1)), analysis.request
    return tuple(
        _figures(batch, request.walk(batch, {}))
        if form is None or not form.is_valid_at(form.at_batch(batch))
        else _read_off(batch, form)
        for batch in requested
    )


def _form_up_to(analysis: Analysis, last: int) -> ClosedForm | None:
    """A form that is valid up to a batch: that of the analysis, or one in the batch alone."""
    known, request, batch = analysis.symbolic, analysis.request, analysis.settings.batch
    if isinstance(known, ClosedForm) and known.has_batch and last <= known.last[0]:
        return known
    if batch is None:
        return None
    found = find_closed_form(request.walk(batch, {}), request.walk, last_batch=last)
    return found if isinstance(found, ClosedForm) else None


def _read_off(batch: int, form: ClosedForm) -> BatchFigures:
    numbers = form.at_batch(batch)
    return BatchFigures(
        batch,
        form.inputs.at(numbers),
        largest(form.peaks.peak_pieces, numbers),
        largest(form.peaks.in_place_peak_pieces, numbers),
        form.total_bytes(numbers),
    )


def _figures(batch: int, results: StageResults) -> BatchFigures:
    memory = results.activations
    return BatchFigures(
        batch,
        results.inputs_bytes,
        memory.peak_bytes,
        memory.in_place_peak_bytes,
        results.total_bytes,
    )
