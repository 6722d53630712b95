"""What a limit comes to: it is kept, it is not, or nobody knows. The unknown never passes.

A figure that leaves something out is a lower bound: above its limit it fails like any other, and
below it nothing is known.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from onnxmem.analysis.fitting.answering import Assessment
from onnxmem.analysis.fitting.verdicts import PARTIAL, Accuracy, Doubt, Verdict, verdict_on_bytes
from onnxmem.decisions.check.budgets import Budget, Growth
from onnxmem.errors import Finding


class Figure(StrEnum):
    """What a limit is held against."""

    PEAK = "peak"
    """Weights, inputs and in-place peak."""
    WEIGHTS = "weights"
    TRAINING = "training peak"
    PEAK_GROWTH = "growth of peak"
    TRAINING_GROWTH = "growth of training"


GROWTHS: Final = frozenset({Figure.PEAK_GROWTH, Figure.TRAINING_GROWTH})


@dataclass(frozen=True, slots=True)
class Held:
    """A block of memory at the peak."""

    tensor: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Known:
    """A figure as it was worked out."""

    size_bytes: int | None
    is_lower_bound: bool = False
    doubt: str = ""
    """Why it is of no use below a limit; ``""`` where it is whole."""
    node: str | None = None
    """Where the peak is."""
    largest: tuple[Held, ...] = ()
    """What takes most there."""
    standing: Assessment | None = None
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
    """In effect; ``None`` where the model has none, or could not be analysed."""
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
    largest: tuple[Held, ...] = ()

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


def held(budget: Budget, figure: Figure, known: Known, limit_bytes: int) -> Check:
    """Hold a figure against a limit in bytes."""
    return _check(budget, figure, known, limit_bytes=limit_bytes)


def held_growth(budget: Budget, figure: Figure, known: Known, before: int | str) -> Check:
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


def unknown(budget: Budget, figure: Figure, reason: str) -> Check:
    """A limit of a model that could not be analysed."""
    return Check(
        budget=budget.name,
        figure=figure,
        outcome=Verdict.UNKNOWN,
        batch=budget.batch,
        reason=reason,
    )


def _check(
    budget: Budget, figure: Figure, known: Known, *, limit_bytes: int, before: int | None = None
) -> Check:
    outcome = _outcome(known, limit_bytes)
    return Check(
        budget=budget.name,
        figure=figure,
        outcome=outcome,
        basis=None if known.standing is None else known.standing.basis.value,
        accuracy=None if known.standing is None else known.standing.accuracy,
        size_bytes=known.size_bytes,
        limit_bytes=limit_bytes,
        baseline_bytes=before,
        growth=None if before is None else budget.growth,
        is_lower_bound=known.is_lower_bound,
        reason=known.doubt if outcome is Verdict.UNKNOWN else "",
        node=known.node,
        largest=known.largest,
    )


def _outcome(known: Known, limit_bytes: int) -> Verdict:
    if known.standing is not None:
        return known.standing.verdict(limit_bytes)
    doubt = Doubt(PARTIAL, known.doubt, is_lower_bound=known.is_lower_bound)
    return verdict_on_bytes(known.size_bytes, limit_bytes, (doubt,) if known.doubt else ())
