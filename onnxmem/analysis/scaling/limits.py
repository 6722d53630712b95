"""Laws over batches, for one question."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnxmem.analysis.scaling.capacity import LAW_BATCH, batch_law
from onnxmem.analysis.scaling.row_finding import symbolic_terms
from onnxmem.analysis.scaling.symbolic_terms import NoRows, SymbolicTerms
from onnxmem.program.program import Program
from onnxmem.program.replay import affine_sizes, replay
from onnxmem.program.sizes import Affine, Sizes

if TYPE_CHECKING:
    from onnxmem.analysis.stages import StageResults
    from onnxmem.runtimes.torch.memory import TrainingMemory


@dataclass(frozen=True, slots=True)
class _Figures:
    """What is kept of a batch that was tried; ``None`` where it is unknown or leaves some out."""

    total_bytes: int | None
    training_peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class _Growth:
    """How what a question asks for grows with the batch."""

    rows: SymbolicTerms | NoRows
    """Of a run."""
    step: tuple[Program, Sizes] | None = None
    """Of a training step, its sizes affine, where the rows hold; ``None``: unproven."""


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

    def total_law(self) -> Affine | None:
        """The law of weights, inputs and in-place peak.

        It is read off the peak's rows where these speak of the batches up to the last.
        """
        if self._batch is None:
            return None
        last, rows = max(self._batch, LAW_BATCH), self._grown().rows
        if isinstance(rows, NoRows) or not rows.speaks_of_batches(last):
            return batch_law(self._total_bytes, last)
        line = rows.line_in_batch(last)
        return None if line is None else Affine(*line, 1, last)

    def training_law(self) -> Affine | None:
        """The law of the training peak."""
        if self._batch is None or self._terms.training is None:
            return None
        return batch_law(self._affine_training_peak_bytes, max(self._batch, LAW_BATCH))

    def _grown(self) -> _Growth:
        """Rows and affine sizes; in training they are found when first asked for."""
        if self._growth is None:
            self._growth = self._grown_in_training()
        return self._growth

    def _grown_in_training(self) -> _Growth:
        """Find rows of a run, and sizes of a step from the batches that are walked for them."""
        walked: dict[int, StageResults] = {}

        def walk(batch: int | None, _: object) -> "StageResults":
            return walked.setdefault(batch or 1, self._at(batch or 1))

        rows = symbolic_terms(self._terms, walk)
        step = self._terms.training
        if isinstance(rows, NoRows) or step is None or not _may_be_affine(rows, step):
            # Without affine sizes the law is sought from one sample on.
            self._tried.update({1: _figures(walked[1])} if 1 in walked else {})
            return _Growth(rows)
        walked[rows.asked[0]] = self._terms
        tried = {batch: walked[batch] for batch in _three(sorted(walked), rows.asked[0])}
        self._note(rows, tried)
        return _Growth(rows, _affine_step(tried))

    def _note(self, rows: SymbolicTerms, walked: dict[int, "StageResults"]) -> None:
        """Take the figures of batches that were walked, where the rows hold."""
        for batch, terms in walked.items():
            step = terms.training
            is_whole = terms.bound.follows_batch and step is not None and not step.unknown
            if is_whole and step is not None and rows.speaks_of((batch,)):
                figures = _Figures(rows.total_bytes((batch,)), step.peak_bytes)
                self._tried.setdefault(batch, figures)

    def _affine_training_peak_bytes(self, batch: int) -> int | None:
        """The training peak, by the affine sizes where they hold."""
        step = self._grown().step
        if step is None or batch < step[1].first:
            return self._training_peak_bytes(batch)
        program, sizes = step
        return replay(program, sizes.at(batch)).peak_bytes

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


def _three(batches: Sequence[int], asked: int) -> tuple[int, ...]:
    """The batches at which a step is walked: both ends of the range, and one that proves the line.

    That is the one asked for, whose step is walked already, or the second where it is an end.
    """
    between = asked if asked in batches[1:-1] else batches[1]
    return tuple(dict.fromkeys((batches[0], between, batches[-1])))


def _may_be_affine(rows: SymbolicTerms, step: "TrainingMemory") -> bool:
    """Whether the sizes of a step may be affine in the batch.

    They are the tensors of a run, their gradients and copies, and what formulas make of these: not
    affine where a tensor has the batch in more than one dim, or bytes choose the schedule.
    """
    if step.unknown or step.checkpoints:
        return False
    sizes = rows.peaks.sizes.polynomials
    return all(sum(powers) <= 1 for size in sizes for powers, _ in size.terms)


def _affine_step(walked: "Mapping[int, StageResults]") -> tuple[Program, Sizes] | None:
    """The program of the last of some batches and its sizes, from the first like it on.

    ``None``: there is none, sizes at a batch between are others, or a step leaves sizes out.
    """
    steps = [(batch, walked[batch].training) for batch in sorted(walked)]
    replays = [(batch, step.replay) for batch, step in steps if step and not step.unknown]
    if len(replays) < len(steps):
        return None
    *others, last = replays
    for index, first in enumerate(others):
        if affine_sizes([first, last]) is not None:
            sizes = affine_sizes([*others[index:], last])
            return None if sizes is None else (last[1].program, sizes)
    return None


def _figures(terms: "StageResults") -> _Figures:
    if not terms.is_whole:
        return _Figures(None, None)
    return _Figures(terms.total_bytes, terms.training_peak_bytes)
