"""Compare models with budgets, one model at a time.

A limit is met, exceeded, or unknown, and unknown never passes. An incomplete figure is a lower
bound: above its limit it fails like any other, below it the verdict is unknown. Growth is measured
from a saved report of the same model with the same settings.
"""

import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from onnxmem.analysis.analysis import Analysis, analyze
from onnxmem.analysis.fitting.assessing import Assessment, FitRequest, assess
from onnxmem.analysis.fitting.footprints import NoFigureError
from onnxmem.analysis.fitting.verdicts import (
    DATA,
    PARTIAL,
    Accuracy,
    AnyBasis,
    Basis,
    Comparison,
    Doubt,
    Verdict,
    basis_for,
    compared_bytes,
)
from onnxmem.analysis.json_rows import Failure, SavedObject, data_rows, read_saved, recipe_row
from onnxmem.decisions.check.budgets import Budget, Configuration, Growth
from onnxmem.errors import Finding, listed, printable, shortened
from onnxmem.program.program import Allocation
from onnxmem.settings import TrainingConfig
from onnxmem.units import format_bytes, plural

Analyze = Callable[[str, Budget], Analysis | Failure]
"""Analyze a model with a budget's settings; the function reports a failure itself."""
_NO_BASELINE: Final = (
    "there is no baseline; set one with --baseline FILE or with baseline = FILE in the budget"
)
_NO_STEP: Final = "there is no training step"
_AGAIN = "write the baseline again with onnxmem MODEL --json -o FILE"
_MOST_LISTED: Final = 5
"""How many blocks at a peak are listed."""
_GUESSED: Final = ("unbound_dims", "overridden_batch", "contradictory_types")
"""Findings on dims that nobody set, or on a model that no runtime accepts: the figure belongs to
other settings than the budget's."""


class LimitedFigure(StrEnum):
    """A figure that a budget limits."""

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
    is_upper_bound: bool = False
    doubt: str = ""
    """Why the verdict is unknown if it is below its limit; ``""`` if it is complete."""
    node: str | None = None
    """The node of the peak."""
    largest: tuple[Allocation, ...] = ()
    """The largest allocations at the peak."""
    assessment: Assessment | None = None
    """The assessment that gives the verdict; ``None`` for weights and for a growth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One limit of one budget, compared with one model."""

    budget: str
    figure: LimitedFigure
    outcome: Verdict
    basis: str | None = None
    """The basis of the compared figure, for a limit on memory."""
    accuracy: Accuracy | None = None
    """The accuracy of the compared figure."""
    batch: int | None = None
    """The batch in effect; ``None`` if the model has none, or could not be analyzed."""
    size_bytes: int | None = None
    unlimited_bytes: int | None = None
    """What the run takes of a device where no allocation fails."""
    limit_bytes: int | None = None
    baseline_bytes: int | None = None
    """The figure in the baseline, for a limit on growth."""
    growth: Growth | None = None
    """The allowed growth."""
    is_lower_bound: bool = False
    observed: str = ""
    """Of which observed run the figure is; ``""``: of none."""
    is_upper_bound: bool = False
    """Whether the figure is the most that a run takes, whatever its data are."""
    reason: str = ""
    """Why the outcome is unknown."""
    node: str | None = None
    largest: tuple[Allocation, ...] = ()

    @property
    def compared(self) -> Comparison:
        """The outcome with its figures."""
        return Comparison(
            verdict=self.outcome, num_bytes=self.size_bytes, unlimited_bytes=self.unlimited_bytes
        )

    @property
    def over_bytes(self) -> int | None:
        """Bytes above the limit, negative if some are free; ``None`` if either is unknown."""
        if self.size_bytes is None or self.limit_bytes is None:
            return None
        return self.size_bytes - self.limit_bytes


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A model and its checks; without checks if no budget covers it."""

    path: str
    checks: tuple[Check, ...] = ()
    findings: tuple[Finding, ...] = ()
    """The findings on the model with the settings of its budgets, each once."""

    @property
    def is_covered(self) -> bool:
        """Whether a budget covers it."""
        return bool(self.checks)


@dataclass(frozen=True, slots=True)
class Checkup:
    """The checks of all models."""

    models: tuple[CheckedModel, ...]
    unmatched_budgets: tuple[Budget, ...] = ()
    """Budgets that cover none of the models, if all models of the project were checked."""
    allows_uncovered: bool = False
    """Whether models without a budget pass."""

    def __repr__(self) -> str:
        """The outcome, and each check that is not met, up to five."""
        lines = [f"<Checkup of {plural(len(self.models), 'model')}: {self.outcome.value}"]
        lines += [
            f"  {shortened(model.path)}: {check.figure.value} {format_bytes(check.size_bytes)} of "
            f"{format_bytes(check.limit_bytes)}: {check.outcome.value}"
            for model in self.models
            for check in model.checks
            if not check.outcome.is_met
        ][:_MOST_LISTED]
        return "\n".join(lines) + ">"

    @property
    def outcome(self) -> Verdict:
        """The verdict on all checks: unknown if one is unknown, then over, then tight."""
        counts = self.counts
        # Unknown first: a gate that could not compare everything has not passed, and *does not fit*
        # must not read as if the rest had been checked.
        order = (Verdict.UNKNOWN, Verdict.OVER, Verdict.TIGHT)
        return next((each for each in order if counts[each]), Verdict.FITS)

    @property
    def counts(self) -> dict[Verdict, int]:
        """Checks by outcome; a budget without models and a model without budgets are unknown."""
        found = dict.fromkeys(Verdict, 0)
        for check in self.checks():
            found[check.outcome] += 1
        found[Verdict.UNKNOWN] += len(self.unmatched_budgets)
        if not self.allows_uncovered:
            found[Verdict.UNKNOWN] += len(self.uncovered())
        return found

    def checks(self) -> Iterable[Check]:
        """Every check of every model."""
        return (check for model in self.models for check in model.checks)

    def uncovered(self) -> tuple[CheckedModel, ...]:
        """The models that no budget covers."""
        return tuple(model for model in self.models if not model.is_covered)


@dataclass(frozen=True, slots=True)
class Baseline:
    """The models of a saved report."""

    file: str
    rows: tuple[SavedObject, ...]
    folders: tuple[Path, ...]
    """What its paths may be relative to: the working directory, the configuration's folder."""

    def peak_bytes(self, analysis: Analysis, accepted: Container[str]) -> int | str:
        """The saved weights, inputs and in-place peak, or why they are unknown; where the data of
        a run decide, at most. ``accepted`` are codes of warnings, as of a budget.
        """
        row = self._row(analysis)
        if isinstance(row, str):
            return row
        most_bytes = _most_bytes(row, "total")
        return (
            _saved_figure(row, row, "total_bytes", accepted) if most_bytes is None else most_bytes
        )

    def training_bytes(self, analysis: Analysis, accepted: Container[str]) -> int | str:
        """The saved training peak, or why it is unknown; where data decide, at most."""
        row = self._row(analysis)
        if isinstance(row, str):
            return row
        step = row.table("training")
        if step is None:
            return f"the baseline has no training step; {_AGAIN} --train"
        recipe = step.table("recipe")
        now = recipe_row(analysis.settings.recipe)
        differs = _difference(now, {} if recipe is None else recipe.values)
        if differs:
            return f"the baseline has another training configuration ({differs}); {_AGAIN}"
        most_bytes = _most_bytes(row, "training_peak")
        return (
            _saved_figure(row, step, "peak_bytes", accepted) if most_bytes is None else most_bytes
        )

    def _row(self, analysis: Analysis) -> SavedObject | str:
        rows = [row for row in self.rows if self._is_of(row, analysis.path)]
        if not rows:
            return f"the baseline {shortened(self.file)} does not contain this model; {_AGAIN}"
        differences = [_other_setting(analysis, row) for row in rows]
        # A report may hold a model at several settings: one row with the same is enough.
        for row, difference in zip(rows, differences, strict=True):
            if not difference:
                return row
        return f"the baseline has other settings ({differences[0]}); {_AGAIN}"

    def _is_of(self, row: SavedObject, path: str) -> bool:
        here = printable(os.path.abspath(path))
        there = row.text("path") or ""
        # Reports of older runs may be relative to another folder than this run, so both are tried.
        return any(here == _whole(folder, there) for folder in self.folders)


def read_baseline(file: str, folder: Path | None) -> Baseline:
    """Read a baseline.

    :raises OnnxmemError: the file cannot be opened or is not a report.
    """
    folders = (Path.cwd(),) if folder is None else (Path.cwd(), folder)
    return Baseline(file, read_saved(file), folders)


def gate_of(configuration: Configuration, analyze: Analyze, baseline: str | None) -> "Gate":
    """The gate of a configuration; a baseline replaces all those that it and its budgets name.

    :raises OnnxmemError: a baseline cannot be opened or is not a report.
    """
    folder, file = configuration.folder, baseline
    if file is None and configuration.baseline is not None:
        file = os.path.relpath(configuration.baseline)
    growing = [each for each in configuration.budgets if each.growth is not None]
    own = {each.baseline for each in growing if each.baseline is not None and baseline is None}
    return Gate(
        configuration.budgets,
        folder,
        analyze,
        None if file is None else read_baseline(file, folder),
        {path: read_baseline(os.path.relpath(path), folder) for path in own},
    )


@dataclass(frozen=True, slots=True)
class Gate:
    """Checks models: the budgets, the baselines, and the function that analyzes a model."""

    budgets: tuple[Budget, ...]
    folder: Path
    """The folder that the patterns of budgets are relative to."""
    analyze: Analyze
    baseline: Baseline | None = None
    """The baseline of budgets that name none."""
    own_baselines: Mapping[Path, Baseline] = field(default_factory=dict)
    """The baselines that budgets name, by path."""

    def check(self, paths: Iterable[str]) -> Iterator[CheckedModel]:
        """Check models one at a time, so that only one is in memory."""
        for path in paths:
            relative = relative_path(path, self.folder)
            budgets = [budget for budget in self.budgets if budget.covers(relative)]
            yield self._checked(path, budgets)

    def unmatched(self, paths: Iterable[str]) -> tuple[Budget, ...]:
        """The budgets that cover none of the models."""
        relative = [relative_path(path, self.folder) for path in paths]
        return tuple(b for b in self.budgets if not any(map(b.covers, relative)))

    def _checked(self, path: str, budgets: Iterable[Budget]) -> CheckedModel:
        # Budgets often differ only in their limits, so a model is analyzed once for all budgets
        # with equal settings.
        analyses: list[tuple[dict[str, Any], Analysis | Failure]] = []
        checks: list[Check] = []
        for budget in budgets:
            settings = _settings_of(budget)
            # A few settings at most, and dicts are not hashable: a linear search does.
            found = next((analysis for other, analysis in analyses if other == settings), None)
            if found is None:
                found = self.analyze(path, budget)
                analyses.append((settings, found))
            checks += self._checks(budget, found)
        done = (found for _, found in analyses if isinstance(found, Analysis))
        findings = dict.fromkeys(finding for each in done for finding in each.findings)
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
            if PARTIAL in budget.accepted and known.size_bytes is not None:
                # Compared as it is, on both sides: each leaves out the same, or is at the same
                # dims that nobody set, unless the model changed there.
                known = replace(known, doubt="")
            check = _growth_check(budget, figure, known, self._before(budget, found, figure))
            yield replace(check, batch=found.settings.batch)

    def _before(self, budget: Budget, analysis: Analysis, figure: LimitedFigure) -> int | str:
        # A budget's own baseline wins over that of the configuration.
        own = None if budget.baseline is None else self.own_baselines.get(budget.baseline)
        baseline = own or self.baseline
        if baseline is None:
            return _NO_BASELINE
        if figure is LimitedFigure.PEAK_GROWTH:
            return baseline.peak_bytes(analysis, budget.accepted)
        return baseline.training_bytes(analysis, budget.accepted)


def analyzed_at(path: str, budget: Budget) -> Analysis:
    """A model with the settings of a budget.

    :raises OnnxmemError: it cannot be read, or the settings do not fit it.
    """
    found = analyze(path, **_settings_of(budget), one_of_several=True)
    batch = found.settings.batch
    # Named, the batch leaves the warning on unbound dims to those that nobody set.
    if budget.batch is None and batch is not None:
        # A batch that nobody names is 1, or what the file says; naming it tells it from other
        # dims that nobody names, of which a gate must not guess.
        return found.at(batch=batch) if _has_unbound_dims(found) else found
    return found


def _settings_of(budget: Budget) -> dict[str, Any]:
    """The settings of the analysis that a budget needs: arguments of ``analyze``."""
    return {
        "batch": budget.batch,
        "dims": budget.dims,
        "shapes": budget.shapes,
        "most": budget.most,
        "observed": budget.observed,
        "train": budget.trains,
        "recipe": budget.recipe if budget.trains else TrainingConfig(),
    }


def _has_unbound_dims(analysis: Analysis) -> bool:
    return any(finding.code == "unbound_dims" for finding in analysis.findings)


def relative_path(path: str, folder: Path) -> str:
    """The path that patterns are compared with: relative to a folder, parts joined by ``/``.

    The path of a model outside the folder stays absolute.
    """
    whole = Path(os.path.abspath(path))
    base = Path(os.path.abspath(folder))
    try:
        return whole.relative_to(base).as_posix()
    except ValueError:
        return whole.as_posix()


def _limits(budget: Budget) -> Iterator[tuple[LimitedFigure, int]]:
    for figure, limit_bytes in (
        (LimitedFigure.PEAK, budget.peak_bytes),
        (LimitedFigure.WEIGHTS, budget.weight_bytes),
        (LimitedFigure.TRAINING, budget.training_bytes),
    ):
        if limit_bytes is not None:
            yield figure, limit_bytes


def _growths(budget: Budget) -> Iterator[LimitedFigure]:
    if budget.growth is not None:
        yield LimitedFigure.PEAK_GROWTH
        if budget.trains:
            yield LimitedFigure.TRAINING_GROWTH


def _figures_of(budget: Budget) -> Iterator[LimitedFigure]:
    yield from (figure for figure, _ in _limits(budget))
    yield from _growths(budget)


def _growth_check(
    budget: Budget, figure: LimitedFigure, known: ComparedFigure, before: int | str
) -> Check:
    """Compare a figure with its baseline; ``before`` is in bytes, or the reason of none."""
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


def _unknown(budget: Budget, figure: LimitedFigure, reason: str) -> Check:
    """The check of a limit if the model could not be analyzed."""
    return Check(
        budget=budget.name,
        figure=figure,
        outcome=Verdict.UNKNOWN,
        batch=budget.batch,
        reason=reason,
    )


def _check(
    budget: Budget,
    figure: LimitedFigure,
    known: ComparedFigure,
    *,
    limit_bytes: int,
    before: int | None = None,
) -> Check:
    compared, assessment = _comparison(known, limit_bytes), known.assessment
    # A figure that the limit is compared with at its upper end holds for every run, so it is
    # neither a lower bound nor that of the observed runs.
    is_upper_bound = known.is_upper_bound or (
        assessment is not None and assessment.is_at_most(limit_bytes)
    )
    is_least = assessment is not None and assessment.is_least_accepted
    return Check(
        budget=budget.name,
        figure=figure,
        outcome=compared.verdict,
        basis=None if assessment is None else assessment.basis.value,
        accuracy=None if assessment is None else assessment.accuracy,
        size_bytes=compared.num_bytes,
        unlimited_bytes=compared.unlimited_bytes,
        limit_bytes=limit_bytes,
        baseline_bytes=before,
        growth=None if before is None else budget.growth,
        is_lower_bound=(known.is_lower_bound or is_least) and not is_upper_bound,
        is_upper_bound=is_upper_bound,
        observed="" if is_upper_bound or assessment is None else _observed(assessment),
        reason=known.doubt if compared.verdict is Verdict.UNKNOWN else "",
        node=known.node,
        largest=known.largest,
    )


def _observed(assessment: Assessment) -> str:
    """Of which observed run a figure is, and what others may take; empty: of none."""
    footprint = assessment.footprint
    text, upper_bytes = footprint.observed_text, footprint.upper_bytes
    if not text or upper_bytes == footprint.total_bytes:
        return text
    most = "more" if upper_bytes is None else f"{format_bytes(upper_bytes)} at most"
    return f"{text}; other inputs may take {most}"


def _comparison(known: ComparedFigure, limit_bytes: int) -> Comparison:
    if known.assessment is not None:
        return known.assessment.compared(limit_bytes)
    doubt = Doubt(PARTIAL, known.doubt, is_lower_bound=known.is_lower_bound)
    return compared_bytes(known.size_bytes, limit_bytes, (doubt,) if known.doubt else ())


def _compared(analysis: Analysis, figure: LimitedFigure, budget: Budget) -> ComparedFigure:
    """The figure for a limit on bytes."""
    if figure is LimitedFigure.WEIGHTS:
        return _weights(analysis)
    if figure is LimitedFigure.PEAK:
        return _assessed(analysis, budget, Basis.TOTAL)
    if analysis.training is None:
        return ComparedFigure(None, doubt=_NO_STEP)
    # A training step: the process that runs it, or its tensors alone.
    basis = basis_for(None, train=True, runtime=None, basis=budget.basis)
    return _assessed(analysis, budget, basis)


def _weights(analysis: Analysis) -> ComparedFigure:
    """All weights; they do not depend on dims, so most doubts do not apply."""
    left_out = [w.name for w in analysis.graph.weights if w.size_bytes is None]
    doubt = f"weights of unknown size: {listed(left_out)}" if left_out else ""
    return ComparedFigure(analysis.weight_bytes, is_lower_bound=bool(left_out), doubt=doubt)


def _assessed(analysis: Analysis, budget: Budget, basis: AnyBasis) -> ComparedFigure:
    """A figure as all commands assess it."""
    # The memory does not matter here: the assessment is compared with the limit later, in `_check`.
    setup = FitRequest(memory_bytes=0, basis=basis, accepted=frozenset(budget.accepted))
    try:
        assessment = assess((analysis.request,), setup)
    except NoFigureError as fault:
        return ComparedFigure(None, doubt=str(fault))
    doubt = "; ".join(
        f"{each.message} ({_of_check(each.flags)})"
        if each.code == DATA and each.flags
        else each.message
        for each in assessment.doubts
    )
    return ComparedFigure(
        assessment.footprint.total_bytes,
        is_lower_bound=all(each.is_lower_bound for each in assessment.doubts) and bool(doubt),
        doubt=doubt,
        node=assessment.footprint.peak.node,
        largest=assessment.footprint.peak.tensors,
        assessment=assessment,
    )


def _of_check(flags: str) -> str:
    """The flags that settle a doubt, without the one that runs the model: a check has it not."""
    return flags.replace("--observe or --observed", "--observed")


def _grown(analysis: Analysis, figure: LimitedFigure) -> ComparedFigure:
    """The figure for a limit on growth: bytes of tensors, and those that are live at the peak."""
    # Read as the baseline is, whose row has the same keys.
    most = SavedObject("", "", data_rows(analysis.results))
    if figure is LimitedFigure.PEAK_GROWTH:
        memory = analysis.activations
        node, live = memory.peak_node, memory.live_at_peak
        return _known(analysis, analysis.total_bytes, node, live, _most_bytes(most, "total"))
    step = analysis.training
    if step is None:
        return ComparedFigure(None, doubt=_NO_STEP)
    most_bytes = _most_bytes(most, "training_peak")
    return _known(analysis, step.peak_bytes, step.peak_node, step.live_at_peak(), most_bytes)


def _known(
    analysis: Analysis,
    size_bytes: int | None,
    node: str | None,
    live: tuple[Allocation, ...],
    most_bytes: int | None,
) -> ComparedFigure:
    """The figure, or what it is at most where the data of a run decide it."""
    is_at_most = most_bytes is not None
    doubts = tuple(_guesses(analysis) if is_at_most else _doubts(analysis))
    left_out = analysis.coverage.unknown_tensors
    return ComparedFigure(
        most_bytes if is_at_most else size_bytes,
        # Unknown tensors alone make it a lower bound; a figure at other dims bounds nothing.
        # At most one doubt, the first of `_doubts`, is of unknown tensors; any other is of dims,
        # whose figure bounds nothing.
        is_lower_bound=bool(left_out) and not is_at_most and len(doubts) == 1,
        is_upper_bound=is_at_most,
        doubt="; ".join(doubts) or ("" if size_bytes is not None else "the figure is unknown"),
        node=node,
        largest=live[:_MOST_LISTED],
    )


def _doubts(analysis: Analysis) -> Iterable[str]:
    left_out = analysis.coverage.unknown_tensor_names
    if left_out:
        yield f"tensors of unknown size: {listed(left_out)}; the figure is a lower bound"
    yield from _guesses(analysis)


def _guesses(analysis: Analysis) -> Iterable[str]:
    """What a figure assumes of dims."""
    yield from (f.message for f in analysis.findings if f.code in _GUESSED)
    if not analysis.follows_batch:
        fixed = [f.message for f in analysis.findings if f.code == "batch_fixed"]
        yield from fixed or ["the batch size is fixed in this model"]


def _whole(folder: Path, path: str) -> str:
    return printable(os.path.normpath(os.path.join(os.path.abspath(folder), path)))


def _other_setting(analysis: Analysis, row: SavedObject) -> str:
    """The first setting that differs; ``""`` if none does."""
    settings = row.table("settings")
    if settings is None:
        return row.text("status") or "no settings"
    requested = analysis.settings
    shapes = {name: list(shape) for name, shape in requested.shapes.items()}
    now = {"batch": requested.batch, "graph": requested.graph or "raw"}
    # A newer report has keys that an older one lacks: only common ones are compared.
    saved = settings.values
    return (
        _difference(now, {key: saved.get(key) for key in now})
        or _difference(requested.dims, _inner(settings, "dims"))
        or _difference(shapes, _inner(settings, "shapes"))
    )


def _inner(row: SavedObject, key: str) -> Mapping[str, object]:
    part = row.table(key)
    return {} if part is None else part.values


def _difference(now: Mapping[str, object], before: Mapping[str, object]) -> str:
    """The first common key whose values differ, with both values."""
    for key in now:
        if key in before and now[key] != before[key]:
            return f"{key} {before[key]}, not {now[key]}"
    return ""


def _doubt_of(row: SavedObject) -> str:
    if row.text("status") == "ok":
        return ""
    status = row.text("status")
    return (
        f"the figure in the baseline is incomplete (status {status}); --accept {PARTIAL} compares "
        "both as they are"
    )


def _most_bytes(row: SavedObject, name: str) -> int | None:
    """What a figure is at most; ``None``: no data decide it, or it has no upper end."""
    decided = row.table("data_dependent")
    return None if decided is None else decided.size_bytes(f"{name}_upper_bytes")


def _saved_figure(
    row: SavedObject, part: SavedObject, key: str, accepted: Container[str]
) -> int | str:
    """The figure of a part of a saved row, or why it is not compared."""
    if PARTIAL not in accepted and (doubt := _doubt_of(row)):
        return doubt
    size_bytes = part.size_bytes(key)
    return "the figure is unknown in the baseline" if size_bytes is None else size_bytes
