"""Hold models against budgets, one model after another."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.json_row import Failure
from onnxmem.decisions.check import figures
from onnxmem.decisions.check.baseline import Baseline
from onnxmem.decisions.check.budgets import Budget
from onnxmem.decisions.check.verdicts import (
    Check,
    CheckedModel,
    Figure,
    Known,
    held,
    held_growth,
    unknown,
)

Analyse = Callable[[str, Budget], Analysis | Failure]
"""Analyse a model at a budget's setting; a failure is told elsewhere."""
_NO_BASELINE: Final = (
    "there is no baseline to grow from; name one with --baseline FILE or baseline = FILE"
)


@dataclass(frozen=True, slots=True)
class Gate:
    """The budgets, and what they are held with."""

    budgets: tuple[Budget, ...]
    folder: Path
    """From which the budgets' patterns are told."""
    analyse: Analyse
    baseline: Baseline | None = None
    """Of the budgets that have none of their own."""
    own_baselines: Mapping[Path, Baseline] = field(default_factory=dict)
    """By the path that a budget names."""

    def check(self, paths: Iterable[str]) -> Iterator[CheckedModel]:
        """Check models one at a time: a catalogue of them need not be in memory together."""
        for path in paths:
            place = relative_path(path, self.folder)
            budgets = [budget for budget in self.budgets if budget.covers(place)]
            yield self._checked(path, budgets)

    def unmatched(self, paths: Iterable[str]) -> tuple[Budget, ...]:
        """The budgets that are of none of the models."""
        places = [relative_path(path, self.folder) for path in paths]
        return tuple(b for b in self.budgets if not any(map(b.covers, places)))

    def _checked(self, path: str, budgets: Iterable[Budget]) -> CheckedModel:
        analyses: list[tuple[Budget, Analysis | Failure]] = []
        checks: list[Check] = []
        for budget in budgets:
            question = _question(budget)
            found = next((a for asked, a in analyses if asked == question), None)
            if found is None:
                found = self.analyse(path, budget)
                analyses.append((question, found))
            checks += self._held(budget, found)
        whole = (found for _, found in analyses if isinstance(found, Analysis))
        findings = dict.fromkeys(finding for each in whole for finding in each.findings)
        return CheckedModel(path, tuple(checks), tuple(findings))

    def _held(self, budget: Budget, found: Analysis | Failure) -> Iterator[Check]:
        if isinstance(found, Failure):
            reason = f"{found.code}: {found.message}"
            yield from (unknown(budget, figure, reason) for figure in _asked(budget))
            return
        for figure, limit_bytes in _limits(budget):
            check = held(budget, figure, _compared(found, figure, budget), limit_bytes)
            yield replace(check, batch=found.settings.batch)
        for figure in _growths(budget):
            known = _grown(found, figure)
            check = held_growth(budget, figure, known, self._before(budget, found, figure))
            yield replace(check, batch=found.settings.batch)

    def _before(self, budget: Budget, analysis: Analysis, figure: Figure) -> int | str:
        own = None if budget.baseline is None else self.own_baselines.get(budget.baseline)
        baseline = own or self.baseline
        if baseline is None:
            return _NO_BASELINE
        if figure is Figure.PEAK_GROWTH:
            return baseline.peak_bytes(analysis)
        return baseline.training_bytes(analysis)


def _question(budget: Budget) -> Budget:
    """What a budget asks of an analysis, less its name and limits."""
    return Budget(
        name="",
        batch=budget.batch,
        dims=budget.dims,
        shapes=budget.shapes,
        train=budget.trains,
        recipe=budget.recipe,
    )


def _limits(budget: Budget) -> Iterator[tuple[Figure, int]]:
    for figure, limit_bytes in (
        (Figure.PEAK, budget.peak_bytes),
        (Figure.WEIGHTS, budget.weight_bytes),
        (Figure.TRAINING, budget.training_bytes),
    ):
        if limit_bytes is not None:
            yield figure, limit_bytes


def _growths(budget: Budget) -> Iterator[Figure]:
    if budget.growth is not None:
        yield Figure.PEAK_GROWTH
        if budget.trains:
            yield Figure.TRAINING_GROWTH


def _asked(budget: Budget) -> Iterator[Figure]:
    yield from (figure for figure, _ in _limits(budget))
    yield from _growths(budget)


def _compared(analysis: Analysis, figure: Figure, budget: Budget) -> Known:
    """A figure that is compared with memory."""
    if figure is Figure.WEIGHTS:
        return figures.weights(analysis)
    read = figures.peak if figure is Figure.PEAK else figures.training
    return read(analysis, budget)


def _grown(analysis: Analysis, figure: Figure) -> Known:
    """A figure that is compared with what it was."""
    is_peak = figure is Figure.PEAK_GROWTH
    return (figures.peak_of_tensors if is_peak else figures.training_of_tensors)(analysis)


def relative_path(path: str, folder: Path) -> str:
    """A model's path from a folder, parts joined by ``/``, as patterns see it.

    A model outside the folder keeps its whole path.
    """
    whole = Path(os.path.abspath(path))  # noqa: PTH100 - links are not followed
    base = Path(os.path.abspath(folder))  # noqa: PTH100
    try:
        return whole.relative_to(base).as_posix()
    except ValueError:
        return whole.as_posix()
