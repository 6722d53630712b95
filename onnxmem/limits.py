"""Laws over batches and the largest batch of a budget, for one question."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from onnxmem.capacity import BatchLaw, BatchLimit, batch_law, largest_batch
from onnxmem.symbolic_terms import NoRows, SymbolicTerms
from onnxmem.terms import Terms

_LAW_BATCH = 128
"""The affine law is sought from batch 1 to this batch at least."""


@dataclass(frozen=True, slots=True)
class _Figures:
    """What is kept of a batch that was tried; ``None`` where it is unknown or leaves some out."""

    total_bytes: int | None
    training_peak_bytes: int | None
    peak_phase: str | None


class Limits:
    """The batches of a question, each evaluated once, of which only the figures are kept."""

    def __init__(
        self, terms: Terms, at: Callable[[int], Terms], symbolic: SymbolicTerms | NoRows
    ) -> None:
        self._terms = terms
        self._symbolic = symbolic
        self._batch = terms.bound.binding.batch
        self._at = at
        self._tried: dict[int, _Figures] = {}
        if self._batch is not None:
            self._tried[self._batch] = _figures(terms)

    def total_law(self) -> BatchLaw | None:
        """The law of weights, inputs and in-place peak.

        It is read off the peak's rows where these speak of the batches up to the last. A training
        law tries three batches anyway.
        """
        if self._batch is None or self._terms.training is not None:
            return self._law(self._total_bytes)
        last, rows = max(self._batch, _LAW_BATCH), self._symbolic
        if isinstance(rows, NoRows) or not rows.speaks_of_batches(last):
            return self._law(self._total_bytes)
        line = rows.line_in_batch(last)
        return None if line is None else BatchLaw(*line, last)

    def training_law(self) -> BatchLaw | None:
        """The law of the training peak."""
        if self._terms.training is None:
            return None
        return self._law(self._training_peak_bytes)

    def largest_to_run(self, budget_bytes: int | None) -> BatchLimit | None:
        """The largest batch of which weights, inputs and in-place peak are within a budget."""
        if budget_bytes is None or self._batch is None:
            return None
        return largest_batch(self._total_bytes, budget_bytes)

    def largest_to_train(self, budget_bytes: int | None) -> BatchLimit | None:
        """The largest batch of which the training peak is within a budget, and what limits it."""
        if budget_bytes is None or self._batch is None:
            return None
        limit = largest_batch(self._training_peak_bytes, budget_bytes)
        if limit is None or limit.batch is None:
            return limit
        return replace(limit, limiting_phase=self._figures_at(limit.batch + 1).peak_phase)

    def _law(self, bytes_at: Callable[[int], int | None]) -> BatchLaw | None:
        if self._batch is None:
            return None
        return batch_law(bytes_at, max(self._batch, _LAW_BATCH))

    def _total_bytes(self, batch: int) -> int | None:
        rows = self._symbolic
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


def _figures(terms: Terms) -> _Figures:
    if not terms.is_whole:
        return _Figures(None, None, None)
    phase = terms.training.peak_phase if terms.training else None
    return _Figures(terms.total_bytes, terms.training_peak_bytes, phase)
