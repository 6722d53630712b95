"""The figures of an analysis as a gate sees them: with every reason not to rely on them."""

from collections.abc import Iterable
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.fitting.answering import FitRequest, assess
from onnxmem.analysis.fitting.bases import AnyBasis, Basis, basis_for
from onnxmem.analysis.fitting.holding import NoFigureError
from onnxmem.decisions.check.budgets import Budget
from onnxmem.decisions.check.verdicts import Held, Known
from onnxmem.errors import listed

_MOST_HELD: Final = 5
"""Blocks named at a peak."""
_GUESSED: Final = ("unbound_dims", "overridden_batch", "contradictory_types")
"""Findings on dims that nobody chose, or on a model that nothing runs: the figure is of another
question than the budget's."""


def peak(analysis: Analysis, budget: Budget) -> Known:
    """Weights, inputs and in-place peak."""
    return _compared(analysis, budget, Basis.TOTAL)


def weights(analysis: Analysis) -> Known:
    """All weights: they depend on no dim."""
    left_out = [w.name for w in analysis.graph.weights if w.size_bytes is None]
    doubt = f"weights of unknown size: {listed(left_out)}" if left_out else ""
    return Known(analysis.weight_bytes, is_lower_bound=bool(left_out), doubt=doubt)


def training(analysis: Analysis, budget: Budget) -> Known:
    """A training step: the process that runs it, or its tensors alone."""
    if analysis.training is None:
        return Known(None, doubt="no training step was worked out")
    basis = basis_for(None, train=True, runtime=None, basis=budget.basis)
    return _compared(analysis, budget, basis)


def peak_of_tensors(analysis: Analysis) -> Known:
    """Weights, inputs and in-place peak, to be compared with what they were."""
    live = ((each.label, each.size_bytes) for each in analysis.activations.live_at_peak)
    return _known(analysis, analysis.total_bytes, analysis.activations.peak_node, live)


def training_of_tensors(analysis: Analysis) -> Known:
    """The peak of a training step, likewise."""
    step = analysis.training
    if step is None:
        return Known(None, doubt="no training step was worked out")
    live = ((each.label, each.size_bytes) for each in step.live_at_peak()[:_MOST_HELD])
    return _known(analysis, step.peak_bytes, step.peak_node, live)


def _compared(analysis: Analysis, budget: Budget, basis: AnyBasis) -> Known:
    """A figure as every verdict compares it."""
    setup = FitRequest(memory_bytes=0, basis=basis, accepted=frozenset(budget.accepted))
    try:
        standing = assess((analysis.request,), setup)
    except NoFigureError as fault:
        return Known(None, doubt=str(fault))
    told = "; ".join(each.message for each in standing.doubts)
    return Known(
        standing.held.total_bytes,
        is_lower_bound=all(each.is_lower_bound for each in standing.doubts) and bool(told),
        doubt=told,
        node=standing.held.node,
        largest=tuple(Held(*each) for each in standing.held.tensors),
        standing=standing,
    )


def _known(
    analysis: Analysis,
    size_bytes: int | None,
    node: str | None,
    live: Iterable[tuple[str, int]],
) -> Known:
    doubts = tuple(_doubts(analysis))
    left_out = analysis.coverage.unknown_tensors
    return Known(
        size_bytes,
        # A figure of other dims bounds nothing; one that leaves tensors out is a lower bound.
        is_lower_bound=bool(left_out) and len(doubts) == 1,
        doubt="; ".join(doubts) or ("" if size_bytes is not None else "nothing is known of it"),
        node=node,
        largest=tuple(Held(*each) for each in live)[:_MOST_HELD],
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
