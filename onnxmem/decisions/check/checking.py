"""Hold models against budgets, one model after another: a gate for CI.

What a limit comes to: it is kept, it is not, or nobody knows; the unknown never passes. A figure
that leaves something out is a lower bound: above its limit it fails like any other, and below it
nothing is known. A growth is measured from a saved report, which must be of the same model at the
same setting.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.fitting.assessing import Assessment, FitRequest, assess
from onnxmem.analysis.fitting.footprints import NoFigureError
from onnxmem.analysis.fitting.verdicts import (
    PARTIAL,
    Accuracy,
    AnyBasis,
    Basis,
    Doubt,
    Verdict,
    basis_for,
    verdict_on_bytes,
)
from onnxmem.analysis.json_rows import Failure, Saved, read_saved, recipe_row
from onnxmem.decisions.check.budgets import Budget, Growth
from onnxmem.errors import Finding, listed, printable, shortened
from onnxmem.program.program import Allocation

Analyze = Callable[[str, Budget], Analysis | Failure]
"""Analyze a model at a budget's setting; a failure is told elsewhere."""
_NO_BASELINE: Final = (
    "there is no baseline to grow from; name one with --baseline FILE or baseline = FILE"
)
_NO_STEP: Final = "no training step was worked out"
_AGAIN = "write the baseline again, with onnxmem MODEL --json -o FILE"
_MOST_LISTED: Final = 5
"""Blocks named at a peak."""
_GUESSED: Final = ("unbound_dims", "overridden_batch", "contradictory_types")
"""Findings on dims that nobody chose, or on a model that nothing runs: the figure is of another
question than the budget's."""


class Figure(StrEnum):
    """What a limit is held against."""

    PEAK = "peak"
    """Weights, inputs and in-place peak."""
    WEIGHTS = "weights"
    TRAINING = "training peak"
    PEAK_GROWTH = "growth of peak"
    TRAINING_GROWTH = "growth of training"


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure that a limit is compared with."""

    size_bytes: int | None
    is_lower_bound: bool = False
    doubt: str = ""
    """Why it is of no use below a limit; ``""`` where it is whole."""
    node: str | None = None
    """Where the peak is."""
    largest: tuple[Allocation, ...] = ()
    """What takes most there."""
    assessment: Assessment | None = None
    """What is compared with memory; ``None`` where the figure is no memory of a device's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One limit of one budget, held against one model."""

    budget: str
    figure: Figure
    outcome: Verdict
    basis: str | None = None
    """What was compared, of a limit on memory."""
    accuracy: Accuracy | None = None
    """Of what was compared."""
    batch: int | None = None
    """In effect; ``None`` where the model has none, or could not be analyzed."""
    size_bytes: int | None = None
    limit_bytes: int | None = None
    baseline_bytes: int | None = None
    """What the figure was, of a growth."""
    growth: Growth | None = None
    """What it may grow by."""
    is_lower_bound: bool = False
    reason: str = ""
    """Why the outcome is unknown."""
    node: str | None = None
    largest: tuple[Allocation, ...] = ()

    @property
    def over_bytes(self) -> int | None:
        """Bytes above the limit, below 0 where some are free; ``None``: one is unknown."""
        if self.size_bytes is None or self.limit_bytes is None:
            return None
        return self.size_bytes - self.limit_bytes


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model and what its limits came to; none where no budget is of it."""

    path: str
    checks: tuple[Check, ...] = ()
    findings: tuple[Finding, ...] = ()
    """Of the model at the budgets' settings, each once."""

    @property
    def is_covered(self) -> bool:
        """Whether some budget is of it."""
        return bool(self.checks)


@dataclass(frozen=True, slots=True)
class Checkup:
    """All that was checked."""

    models: tuple[CheckedModel, ...]
    unmatched: tuple[Budget, ...] = ()
    """Budgets that no model was found for, though all were looked for."""
    allows_uncovered: bool = False
    """Whether a model without a budget is let pass."""

    @property
    def outcome(self) -> Verdict:
        """Of all together; what does not fit is worse to know than what is unknown."""
        counts = self.counts()
        order = (Verdict.UNKNOWN, Verdict.OVER, Verdict.TIGHT)
        return next((each for each in order if counts[each]), Verdict.FITS)

    def counts(self) -> dict[Verdict, int]:
        """Checks by outcome; a model without a budget and a budget without one are unknown."""
        found = dict.fromkeys(Verdict, 0)
        for check in self.checks():
            found[check.outcome] += 1
        found[Verdict.UNKNOWN] += len(self.unmatched)
        if not self.allows_uncovered:
            found[Verdict.UNKNOWN] += len(self.uncovered())
        return found

    def checks(self) -> Iterable[Check]:
        """Every check of every model."""
        return (check for model in self.models for check in model.checks)

    def uncovered(self) -> tuple[CheckedModel, ...]:
        """The models that no budget is of."""
        return tuple(model for model in self.models if not model.is_covered)


@dataclass(frozen=True, slots=True)
class Baseline:
    """The rows of a saved report."""

    file: str
    rows: tuple[Saved, ...]
    folders: tuple[Path, ...]
    """From which its paths may be told: the working directory, and the configuration's folder."""

    def peak_bytes(self, analysis: Analysis) -> int | str:
        """Weights, inputs and in-place peak as they were, or why that is unknown."""
        row = self._row(analysis)
        return row if isinstance(row, str) else _whole_figure(row, "total_bytes")

    def training_bytes(self, analysis: Analysis) -> int | str:
        """The training peak as it was, or why that is unknown."""
        row = self._row(analysis)
        if isinstance(row, str):
            return row
        step = row.part("training")
        if step is None:
            return f"the baseline has no training step; {_AGAIN}, with --train"
        recipe = step.part("recipe")
        now = recipe_row(analysis.settings.recipe)
        differs = _difference(now, {} if recipe is None else recipe.values)
        if differs:
            return f"the baseline is of another training configuration ({differs}); {_AGAIN}"
        doubt = _doubt_of(row)
        return doubt or _whole_figure(step, "peak_bytes")

    def _row(self, analysis: Analysis) -> Saved | str:
        rows = [row for row in self.rows if self._is_of(row, analysis.path)]
        if not rows:
            return f"the baseline {shortened(self.file)} has no such model; {_AGAIN}"
        differences = [_other_setting(analysis, row) for row in rows]
        for row, difference in zip(rows, differences, strict=True):
            if not difference:
                return row
        return f"the baseline is of another setting ({differences[0]}); {_AGAIN}"

    def _is_of(self, row: Saved, path: str) -> bool:
        here = printable(os.path.abspath(path))  # noqa: PTH100 - links are not followed
        there = row.text("path") or ""
        return any(here == _whole(folder, there) for folder in self.folders)


def read_baseline(file: str, folder: Path | None) -> Baseline:
    """Read a baseline.

    :raises OnnxmemError: the file cannot be opened or is no report.
    """
    folders = (Path.cwd(),) if folder is None else (Path.cwd(), folder)
    return Baseline(file, read_saved(file), folders)


@dataclass(frozen=True, slots=True)
class Gate:
    """The budgets, and what they are held with."""

    budgets: tuple[Budget, ...]
    folder: Path
    """From which the budgets' patterns are told."""
    analyze: Analyze
    baseline: Baseline | None = None
    """Of the budgets that have none of their own."""
    own_baselines: Mapping[Path, Baseline] = field(default_factory=dict)
    """By the path that a budget names."""

    def check(self, paths: Iterable[str]) -> Iterator[CheckedModel]:
        """Check models one at a time: a catalog of them need not be in memory together."""
        for path in paths:
            relative = relative_path(path, self.folder)
            budgets = [budget for budget in self.budgets if budget.covers(relative)]
            yield self._checked(path, budgets)

    def unmatched(self, paths: Iterable[str]) -> tuple[Budget, ...]:
        """The budgets that are of none of the models."""
        relative = [relative_path(path, self.folder) for path in paths]
        return tuple(b for b in self.budgets if not any(map(b.covers, relative)))

    def _checked(self, path: str, budgets: Iterable[Budget]) -> CheckedModel:
        analyses: list[tuple[Budget, Analysis | Failure]] = []
        checks: list[Check] = []
        for budget in budgets:
            setting = _setting_of(budget)
            found = next((a for asked, a in analyses if asked == setting), None)
            if found is None:
                found = self.analyze(path, budget)
                analyses.append((setting, found))
            checks += self._checks(budget, found)
        whole = (found for _, found in analyses if isinstance(found, Analysis))
        findings = dict.fromkeys(finding for each in whole for finding in each.findings)
        return CheckedModel(path, tuple(checks), tuple(findings))

    def _checks(self, budget: Budget, found: Analysis | Failure) -> Iterator[Check]:
        if isinstance(found, Failure):
            reason = f"{found.code}: {found.message}"
            yield from (_unknown(budget, figure, reason) for figure in _figures_of(budget))
            return
        for figure, limit_bytes in _limits(budget):
            known = _compared(found, figure, budget)
            check = _check(budget, figure, known, limit_bytes=limit_bytes)
            yield replace(check, batch=found.settings.batch)
        for figure in _growths(budget):
            known = _grown(found, figure)
            check = _growth_check(budget, figure, known, self._before(budget, found, figure))
            yield replace(check, batch=found.settings.batch)

    def _before(self, budget: Budget, analysis: Analysis, figure: Figure) -> int | str:
        own = None if budget.baseline is None else self.own_baselines.get(budget.baseline)
        baseline = own or self.baseline
        if baseline is None:
            return _NO_BASELINE
        if figure is Figure.PEAK_GROWTH:
            return baseline.peak_bytes(analysis)
        return baseline.training_bytes(analysis)


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


def _setting_of(budget: Budget) -> Budget:
    """What a budget requests of an analysis, less its name and limits."""
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


def _figures_of(budget: Budget) -> Iterator[Figure]:
    yield from (figure for figure, _ in _limits(budget))
    yield from _growths(budget)


def _growth_check(
    budget: Budget, figure: Figure, known: ComparedFigure, before: int | str
) -> Check:
    """Hold a figure against what it was; ``before`` is bytes, or why they are unknown."""
    growth = budget.growth or Growth()
    if isinstance(before, str):
        return Check(
            budget=budget.name,
            figure=figure,
            outcome=Verdict.UNKNOWN,
            size_bytes=known.size_bytes,
            growth=growth,
            is_lower_bound=known.is_lower_bound,
            reason=before,
        )
    limit_bytes = growth.limit_bytes(before)
    return _check(budget, figure, known, limit_bytes=limit_bytes, before=before)


def _unknown(budget: Budget, figure: Figure, reason: str) -> Check:
    """A limit of a model that could not be analyzed."""
    return Check(
        budget=budget.name,
        figure=figure,
        outcome=Verdict.UNKNOWN,
        batch=budget.batch,
        reason=reason,
    )


def _check(
    budget: Budget,
    figure: Figure,
    known: ComparedFigure,
    *,
    limit_bytes: int,
    before: int | None = None,
) -> Check:
    outcome = _outcome(known, limit_bytes)
    return Check(
        budget=budget.name,
        figure=figure,
        outcome=outcome,
        basis=None if known.assessment is None else known.assessment.basis.value,
        accuracy=None if known.assessment is None else known.assessment.accuracy,
        size_bytes=known.size_bytes,
        limit_bytes=limit_bytes,
        baseline_bytes=before,
        growth=None if before is None else budget.growth,
        is_lower_bound=known.is_lower_bound,
        reason=known.doubt if outcome is Verdict.UNKNOWN else "",
        node=known.node,
        largest=known.largest,
    )


def _outcome(known: ComparedFigure, limit_bytes: int) -> Verdict:
    if known.assessment is not None:
        return known.assessment.verdict(limit_bytes)
    doubt = Doubt(PARTIAL, known.doubt, is_lower_bound=known.is_lower_bound)
    return verdict_on_bytes(known.size_bytes, limit_bytes, (doubt,) if known.doubt else ())


def _compared(analysis: Analysis, figure: Figure, budget: Budget) -> ComparedFigure:
    """A figure that is compared with memory."""
    if figure is Figure.WEIGHTS:
        return _weights(analysis)
    if figure is Figure.PEAK:
        return _assessed(analysis, budget, Basis.TOTAL)
    if analysis.training is None:
        return ComparedFigure(None, doubt=_NO_STEP)
    # A training step: the process that runs it, or its tensors alone.
    basis = basis_for(None, train=True, runtime=None, basis=budget.basis)
    return _assessed(analysis, budget, basis)


def _weights(analysis: Analysis) -> ComparedFigure:
    """All weights: they depend on no dim."""
    left_out = [w.name for w in analysis.graph.weights if w.size_bytes is None]
    doubt = f"weights of unknown size: {listed(left_out)}" if left_out else ""
    return ComparedFigure(analysis.weight_bytes, is_lower_bound=bool(left_out), doubt=doubt)


def _assessed(analysis: Analysis, budget: Budget, basis: AnyBasis) -> ComparedFigure:
    """A figure as every verdict compares it."""
    setup = FitRequest(memory_bytes=0, basis=basis, accepted=frozenset(budget.accepted))
    try:
        assessment = assess((analysis.request,), setup)
    except NoFigureError as fault:
        return ComparedFigure(None, doubt=str(fault))
    told = "; ".join(each.message for each in assessment.doubts)
    return ComparedFigure(
        assessment.footprint.total_bytes,
        is_lower_bound=all(each.is_lower_bound for each in assessment.doubts) and bool(told),
        doubt=told,
        node=assessment.footprint.node,
        largest=assessment.footprint.tensors,
        assessment=assessment,
    )


def _grown(analysis: Analysis, figure: Figure) -> ComparedFigure:
    """A figure that is compared with what it was: bytes of tensors, and what is alive there."""
    if figure is Figure.PEAK_GROWTH:
        memory = analysis.activations
        return _known(analysis, analysis.total_bytes, memory.peak_node, memory.live_at_peak)
    step = analysis.training
    if step is None:
        return ComparedFigure(None, doubt=_NO_STEP)
    return _known(analysis, step.peak_bytes, step.peak_node, step.live_at_peak())


def _known(
    analysis: Analysis,
    size_bytes: int | None,
    node: str | None,
    live: tuple[Allocation, ...],
) -> ComparedFigure:
    doubts = tuple(_doubts(analysis))
    left_out = analysis.coverage.unknown_tensors
    return ComparedFigure(
        size_bytes,
        # A figure of other dims bounds nothing; one that leaves tensors out is a lower bound.
        is_lower_bound=bool(left_out) and len(doubts) == 1,
        doubt="; ".join(doubts) or ("" if size_bytes is not None else "nothing is known of it"),
        node=node,
        largest=live[:_MOST_LISTED],
    )


def _doubts(analysis: Analysis) -> Iterable[str]:
    left_out = analysis.coverage.unknown_tensors
    if left_out:
        yield f"tensors of unknown size: {listed(left_out)}; the figure is a lower bound"
    guessed = [f.message for f in analysis.findings if f.code in _GUESSED]
    if not analysis.follows_batch:
        fixed = [f.message for f in analysis.findings if f.code == "batch_fixed"]
        guessed += fixed or ["the graph does not follow the batch"]
    yield from guessed


def _whole(folder: Path, path: str) -> str:
    return printable(os.path.normpath(os.path.join(os.path.abspath(folder), path)))  # noqa: PTH100, PTH118


def _other_setting(analysis: Analysis, row: Saved) -> str:
    """What differs in the setting; ``""`` where nothing does."""
    settings = row.part("settings")
    if settings is None:
        return row.text("status") or "no settings"
    asked = analysis.settings
    shapes = {name: list(shape) for name, shape in asked.shapes.items()}
    now = {"batch": asked.batch, "graph": asked.graph or "raw"}
    there = settings.values
    return (
        _difference(now, {key: there.get(key) for key in now})
        or _difference(asked.dims, _inner(settings, "dims"))
        or _difference(shapes, _inner(settings, "shapes"))
    )


def _inner(row: Saved, key: str) -> Mapping[str, object]:
    part = row.part(key)
    return {} if part is None else part.values


def _difference(now: Mapping[str, object], before: Mapping[str, object]) -> str:
    """The first key that both have and that differs, with both values."""
    for key in now:
        if key in before and now[key] != before[key]:
            return f"{key} {before[key]}, not {now[key]}"
    return ""


def _doubt_of(row: Saved) -> str:
    if row.text("status") == "ok":
        return ""
    return f"the baseline knows it in part only (status {row.text('status')})"


def _whole_figure(row: Saved, key: str) -> int | str:
    if row.values.get("status") is not None and (doubt := _doubt_of(row)):
        return doubt
    size_bytes = row.size_bytes(key)
    return "the baseline does not know it" if size_bytes is None else size_bytes
