"""Laws over batches, for one question."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnxmem.analysis.scaling.capacity import LAW_BATCH, BatchLaw, batch_law
from onnxmem.analysis.scaling.row_finding import symbolic_terms
from onnxmem.analysis.scaling.symbolic_terms import NoRows, SymbolicTerms
from onnxmem.runtimes import torch

if TYPE_CHECKING:
    from onnxmem.analysis.stages import StageResults
    from onnxmem.runtimes.torch import StepLines, TrainingMemory


@dataclass(frozen=True, slots=True)
class _Figures:
    """What is kept of a batch that was tried; ``None`` where it is unknown or leaves some out."""

    total_bytes: int | None
    training_peak_bytes: int | None
    peak_phase: str | None


@dataclass(frozen=True, slots=True)
class _Growth:
    """How what a question asks for grows with the batch."""

    rows: SymbolicTerms | NoRows
    """Of a run."""
    lines: "StepLines | None" = None
    """Of a training step, where the rows hold; ``None``: of none, or they are unproven."""


class BatchScaling:
    """The batches of a question, each evaluated once, of which only the figures are kept."""

    def __init__(
        self,
        terms: "StageResults",
        at: Callable[[int], "StageResults"],
        symbolic: SymbolicTerms | NoRows,
    ) -> None:
        self._terms = terms
        # Where types do not agree there is no run, and so no law that other batches would show.
        self._batch = None if terms.type_conflicts else terms.bound.binding.batch
        self._at = at
        self._growth = _Growth(symbolic) if terms.training is None else None
        self._tried: dict[int, _Figures] = {}
        if self._batch is not None:
            self._tried[self._batch] = _figures(terms)

    def total_law(self) -> BatchLaw | None:
        """The law of weights, inputs and in-place peak.

        It is read off the peak's rows where these speak of the batches up to the last.
        """
        if self._batch is None:
            return None
        last, rows = max(self._batch, LAW_BATCH), self._grown().rows
        if isinstance(rows, NoRows) or not rows.speaks_of_batches(last):
            return batch_law(self._total_bytes, last)
        line = rows.line_in_batch(last)
        return None if line is None else BatchLaw(*line, last)

    def training_law(self) -> BatchLaw | None:
        """The law of the training peak."""
        if self._batch is None or self._terms.training is None:
            return None
        return batch_law(self._training_peak_on_lines, max(self._batch, LAW_BATCH))

    def _grown(self) -> _Growth:
        """Rows and lines; in training they are found when first asked for."""
        if self._growth is None:
            self._growth = self._grown_in_training()
        return self._growth

    def _grown_in_training(self) -> _Growth:
        """Find rows of a run, and lines of a step from the batches that are walked for them."""
        walked: dict[int, StageResults] = {}

        def walk(batch: int | None, _: object) -> "StageResults":
            return walked.setdefault(batch or 1, self._at(batch or 1))

        rows = symbolic_terms(self._terms, walk)
        step = self._terms.training
        if isinstance(rows, NoRows) or step is None or not _may_have_lines(rows, step):
            # A law without lines is sought from one sample on.
            self._tried.update({1: _figures(walked[1])} if 1 in walked else {})
            return _Growth(rows)
        return _Growth(rows, self._lines(rows, {**walked, rows.asked[0]: self._terms}))

    def _lines(self, rows: SymbolicTerms, walked: dict[int, "StageResults"]) -> "StepLines | None":
        """Draw lines through steps at the ends of the rows; ``None``: they are unproven."""
        lines = _lines({batch: walked[batch].training for batch in sorted(walked)})
        for batch, terms in walked.items():
            step = terms.training
            is_whole = terms.bound.follows_batch and step is not None and not step.unknown
            if is_whole and step is not None and rows.speaks_of((batch,)):
                total_bytes = rows.total_bytes((batch,))
                figures = _Figures(total_bytes, step.peak_bytes, step.peak_phase)
                self._tried.setdefault(batch, figures)
        return lines

    def _training_peak_on_lines(self, batch: int) -> int | None:
        """The training peak, read off the lines where they hold."""
        lines = self._grown().lines
        if lines is None or batch < lines.first:
            return self._training_peak_bytes(batch)
        return lines.peak_bytes(batch)

    def _total_bytes(self, batch: int) -> int | None:
        rows = self._grown().rows
        if isinstance(rows, SymbolicTerms) and rows.has_batch and batch not in self._tried:
            numbers = rows.at_batch(batch)
            if rows.speaks_of(numbers):
                return rows.total_bytes(numbers)
        return self._figures_at(batch).total_bytes

    def _training_peak_bytes(self, batch: int) -> int | None:
        return self._figures_at(batch).training_peak_bytes

    def _figures_at(self, batch: int) -> _Figures:
        if batch not in self._tried:
            self._tried[batch] = _figures(self._at(batch))
        return self._tried[batch]


def _may_have_lines(rows: SymbolicTerms, step: "TrainingMemory") -> bool:
    """Whether the blocks of a step may be lines in the batch.

    They are the tensors of a run, their gradients and copies, and what formulas make of these: they
    are none where a tensor has the batch in more than one dim, or bytes choose the schedule.
    """
    if step.unknown or step.checkpoints:
        return False
    sizes = rows.peaks.sizes.polynomials
    return all(sum(powers) <= 1 for size in sizes for powers, _ in size.terms)


def _lines(steps: Mapping[int, "TrainingMemory | None"]) -> "StepLines | None":
    """Draw lines through the last of some batches and the first that is like it.

    ``None``: there is none, a batch between does not lie on them, or a step leaves sizes out.
    """
    traces = [(n, step.trace) for n, step in steps.items() if step and not step.unknown]
    if len(traces) < len(steps):
        return None
    *others, last = traces
    for place, first in enumerate(others):
        lines = torch.StepLines.through(first, last)
        if lines is not None:
            is_met = all(lines.meet(batch, trace) for batch, trace in others[place + 1 :])
            return lines if is_met else None
    return None


def _figures(terms: "StageResults") -> _Figures:
    if not terms.is_whole:
        return _Figures(None, None, None)
    phase = terms.training.peak_phase if terms.training else None
    return _Figures(terms.total_bytes, terms.training_peak_bytes, phase)
