"""All that can be advised on one model, ranked; and how to meet a budget."""

from collections.abc import Iterator
from dataclasses import dataclass

from onnxmem.analysis.request import AnalysisRequest
from onnxmem.decisions.advise.batches import accumulation_ideas, batch_ideas
from onnxmem.decisions.advise.edits import edit_ideas, overridable_ideas
from onnxmem.decisions.advise.figures import Figure, Subject, bytes_of
from onnxmem.decisions.advise.meeting import Meeting, meet
from onnxmem.decisions.advise.order import order_ideas
from onnxmem.decisions.advise.precision import HALF, in_place_proposal
from onnxmem.decisions.advise.proposals import Idea, Proposal, ranked, worked_out
from onnxmem.decisions.advise.resolution import resolution_ideas
from onnxmem.decisions.advise.session import resident_proposals, session_ideas
from onnxmem.decisions.advise.training import training_ideas
from onnxmem.decisions.advise.weights import unread_weights, weight_estimates
from onnxmem.errors import Finding
from onnxmem.runtimes.asking import Advice
from onnxmem.runtimes.onnxruntime.session_options import LEVELS, SessionOptions

_OF_STEPS = frozenset({Figure.STEP, Figure.TORCH})
_OF_RUNTIMES = {"ort-cpu": Figure.PROCESS, "ort-cuda": Figure.DEVICE}


@dataclass(frozen=True, slots=True)
class Budget:
    """What is to be met, and in which figure."""

    budget_bytes: int | None = None
    runtime: str | None = None
    """The one that was named; its own figure is lowered then."""


@dataclass(frozen=True, slots=True)
class Advised:
    """Advice on one model."""

    figure: Figure
    """What is lowered first of all."""
    before_bytes: int | None
    """``None``: it is unknown, and nothing is advised on it."""
    proposals: tuple[Proposal, ...]
    """Ranked by bytes saved, whichever figure they lower."""
    meeting: Meeting | None
    """``None`` without a budget."""
    subject: Subject

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of the model as it is."""
        return self.subject.question.findings(self.subject.terms())


def advised(question: AnalysisRequest, budget: Budget, session: Advice | None = None) -> Advised:
    """Work out what would lower the memory of a model; ``session`` is the runtime's own advice.

    :raises OnnxmemError: the dims do not fit the model.
    """
    subject = Subject(question, _options(question))
    subject.terms()
    figure = _figure(question, budget)
    before_bytes = bytes_of(figure, subject)
    found: list[Proposal] = []
    if before_bytes is not None:
        ideas = _ideas(subject, figure, budget)
        found += worked_out(ideas, subject, figure, before_bytes)
    found += _beside(subject, figure, session)
    proposals = ranked(iter(found))
    meeting = None
    if budget.budget_bytes is not None:
        meeting = meet(subject, figure, proposals, budget.budget_bytes)
    return Advised(figure, before_bytes, proposals, meeting, subject)


def _options(question: AnalysisRequest) -> SessionOptions:
    settings = question.settings
    level = LEVELS[settings.graph or "ort-all"]
    return SessionOptions(level=level, fixed_dims=settings.fixed_dims)


def _figure(question: AnalysisRequest, budget: Budget) -> Figure:
    runtime = budget.runtime
    if question.settings.train:
        is_compared = budget.budget_bytes is not None and question.settings.basis != "tensors"
        return Figure.TORCH if is_compared else Figure.STEP
    return Figure.TOTAL if runtime is None else _OF_RUNTIMES[runtime]


def _ideas(subject: Subject, figure: Figure, budget: Budget) -> Iterator[Idea]:
    """Those of the figure that is lowered."""
    yield from batch_ideas(subject, figure, budget.budget_bytes)
    yield from resolution_ideas(subject)
    if figure in _OF_STEPS:
        yield from accumulation_ideas(subject)
        yield from training_ideas(subject)
        return
    yield from edit_ideas(subject)
    if figure is Figure.TOTAL:
        yield HALF
        yield from order_ideas(subject)
    elif budget.runtime is not None:
        yield from overridable_ideas(subject)
        yield from session_ideas(budget.runtime)


def _beside(subject: Subject, figure: Figure, session: Advice | None) -> Iterator[Proposal]:
    """Those of other figures."""
    if figure not in _OF_STEPS:
        yield from in_place_proposal(subject)
        yield from weight_estimates(subject)
    yield from unread_weights(subject)
    if session is not None and figure not in {Figure.PROCESS, Figure.DEVICE}:
        yield from resident_proposals(session)
    if figure is Figure.TOTAL:
        ideas = list(overridable_ideas(subject))
        before_bytes = bytes_of(Figure.PROCESS, subject) if ideas else None
        if before_bytes is not None:
            yield from worked_out(iter(ideas), subject, Figure.PROCESS, before_bytes)
