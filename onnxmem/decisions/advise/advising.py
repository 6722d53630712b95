"""All that can be advised on one model, ranked; and how to meet a budget.

A combination that meets a budget is made greedily: the proposals that save most come first, each is
kept where it lowers what those before it have left, and what turns out not to be needed is dropped
again. All of it is analyzed anew together, for savings do not add up.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.decisions.advise.proposals import (
    Figure,
    Proposal,
    Subject,
    Suggestion,
    Tradeoff,
    bytes_of,
    evaluated,
    ranked,
    verdict_of,
)
from onnxmem.decisions.advise.settings import (
    HALF,
    accumulation_suggestions,
    batch_suggestions,
    in_place_proposal,
    order_suggestions,
    resident_proposals,
    resolution_suggestions,
    session_suggestions,
    training_suggestions,
)
from onnxmem.decisions.advise.weights import (
    edit_suggestions,
    overridable_suggestions,
    unread_weights,
    weight_estimates,
)
from onnxmem.errors import Finding
from onnxmem.runtimes.asking import Advice
from onnxmem.runtimes.onnxruntime.session_options import LEVELS, SessionOptions

_OF_STEPS = frozenset({Figure.STEP, Figure.TORCH})
_OF_RUNTIMES = {"ort-cpu": Figure.PROCESS, "ort-cuda": Figure.DEVICE}


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPlan:
    """What becomes of a budget."""

    budget_bytes: int
    figure: Figure
    before_bytes: int | None
    after_bytes: int | None
    """With all that is chosen, analyzed together; ``None`` where the figure is unknown."""
    chosen: tuple[Proposal, ...]
    """None where the budget is met already, or cannot be: then the best that was found."""
    singles: tuple[Proposal, ...]
    """Each meets it alone, of the lightest tradeoff first."""
    before: Verdict
    after: Verdict
    """With all that is chosen."""
    estimates: tuple[Proposal, ...] = ()
    """Fewer bits or features for weights: each would meet it alone, by its estimate."""

    @property
    def is_met(self) -> bool | None:
        """Whether it is, with what is chosen; ``None`` is unknown."""
        return None if self.after is Verdict.UNKNOWN else self.after.is_met


@dataclass(frozen=True, slots=True)
class Advised:
    """Advice on one model."""

    figure: Figure
    """What is lowered first of all."""
    before_bytes: int | None
    """``None``: it is unknown, and nothing is advised on it."""
    proposals: tuple[Proposal, ...]
    """Ranked by bytes saved, whichever figure they lower."""
    plan: BudgetPlan | None
    """``None`` without a budget."""
    subject: Subject

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Of the model as it is."""
        return self.subject.request.findings(self.subject.results())


def advised(
    request: AnalysisRequest,
    *,
    budget_bytes: int | None = None,
    runtime: str | None = None,
    session: Advice | None = None,
) -> Advised:
    """Find what would lower the memory of a model, and what meets a budget.

    A runtime that is named has its own figure lowered; ``session`` is the runtime's own advice.

    :raises OnnxmemError: the dims do not fit the model.
    """
    subject = Subject(request, _options(request))
    subject.results()
    figure = _figure(request, budget_bytes, runtime)
    before_bytes = bytes_of(figure, subject)
    found: list[Proposal] = []
    if before_bytes is not None:
        suggestions = _suggestions(subject, figure, budget_bytes, runtime)
        found += evaluated(suggestions, subject, figure, before_bytes)
    found += _beside(subject, figure, session)
    proposals = ranked(iter(found))
    plan = None
    if budget_bytes is not None:
        plan = plan_for(subject, figure, proposals, budget_bytes)
    return Advised(figure, before_bytes, proposals, plan, subject)


def plan_for(
    subject: Subject, figure: Figure, proposals: Sequence[Proposal], budget_bytes: int
) -> BudgetPlan:
    """Find what meets a budget."""
    before_bytes = bytes_of(figure, subject)
    before = verdict_of(figure, subject, budget_bytes)
    usable = [
        each for each in proposals if each.figure is figure and each.suggestion.change is not None
    ]
    singles = sorted(
        (each for each in usable if each.after_bytes <= budget_bytes),
        key=lambda each: (each.suggestion.tradeoff, each.saved_bytes),
    )
    chosen: tuple[Proposal, ...] = ()
    if before_bytes is not None and before is Verdict.OVER:
        chosen = tuple(singles[:1]) or _combination(subject, figure, usable, budget_bytes)
    after = followed(subject, chosen)
    return BudgetPlan(
        budget_bytes=budget_bytes,
        figure=figure,
        before_bytes=before_bytes,
        after_bytes=bytes_of(figure, after),
        before=before,
        after=verdict_of(figure, after, budget_bytes) if chosen else before,
        chosen=chosen,
        singles=tuple(singles) if chosen else (),
        estimates=tuple(_estimates(proposals, before_bytes, budget_bytes)) if chosen else (),
    )


def followed(subject: Subject, proposals: Iterable[Proposal]) -> Subject:
    """The subject with every change made, in order."""
    for proposal in proposals:
        if proposal.suggestion.change is not None:
            subject = proposal.suggestion.change(subject)
    return subject


def _options(request: AnalysisRequest) -> SessionOptions:
    settings = request.settings
    level = LEVELS[settings.graph or "ort-all"]
    return SessionOptions(level=level, fixed_dims=settings.fixed_dims)


def _figure(request: AnalysisRequest, budget_bytes: int | None, runtime: str | None) -> Figure:
    if request.settings.train:
        is_compared = budget_bytes is not None and request.settings.basis != "tensors"
        return Figure.TORCH if is_compared else Figure.STEP
    return Figure.TOTAL if runtime is None else _OF_RUNTIMES[runtime]


def _suggestions(
    subject: Subject, figure: Figure, budget_bytes: int | None, runtime: str | None
) -> Iterator[Suggestion]:
    """Those of the figure that is lowered."""
    yield from batch_suggestions(subject, figure, budget_bytes)
    yield from resolution_suggestions(subject)
    if figure in _OF_STEPS:
        yield from accumulation_suggestions(subject)
        yield from training_suggestions(subject)
        return
    yield from edit_suggestions(subject)
    if figure is Figure.TOTAL:
        yield HALF
        yield from order_suggestions(subject)
    elif runtime is not None:
        yield from overridable_suggestions(subject)
        yield from session_suggestions(runtime)


def _beside(subject: Subject, figure: Figure, session: Advice | None) -> Iterator[Proposal]:
    """Those of other figures."""
    if figure not in _OF_STEPS:
        yield from in_place_proposal(subject)
        yield from weight_estimates(subject)
    yield from unread_weights(subject)
    if session is not None and figure not in {Figure.PROCESS, Figure.DEVICE}:
        yield from resident_proposals(session)
    if figure is Figure.TOTAL:
        suggestions = list(overridable_suggestions(subject))
        before_bytes = bytes_of(Figure.PROCESS, subject) if suggestions else None
        if before_bytes is not None:
            yield from evaluated(iter(suggestions), subject, Figure.PROCESS, before_bytes)


def _estimates(
    proposals: Iterable[Proposal], before_bytes: int | None, budget_bytes: int
) -> Iterator[Proposal]:
    """Weights are a term of every figure of a run, so what they save it saves too."""
    for proposal in proposals:
        is_of_weights = proposal.figure is Figure.WEIGHTS and before_bytes is not None
        if is_of_weights and (before_bytes or 0) - proposal.saved_bytes <= budget_bytes:
            yield proposal


def _combination(
    subject: Subject, figure: Figure, usable: Sequence[Proposal], budget_bytes: int
) -> tuple[Proposal, ...]:
    """Without more machines if that will do."""
    least: tuple[Proposal, ...] = ()
    for highest in (Tradeoff.ACCURACY, Tradeoff.DEVICES):
        least = _greedy(
            subject,
            figure,
            [each for each in usable if each.suggestion.tradeoff <= highest],
            budget_bytes,
        )
        left = bytes_of(figure, followed(subject, least))
        if left is not None and left <= budget_bytes:
            return _needed(subject, figure, least, budget_bytes)
    return least


def _greedy(
    subject: Subject, figure: Figure, usable: Sequence[Proposal], budget_bytes: int
) -> tuple[Proposal, ...]:
    taken: list[Proposal] = []
    least = bytes_of(figure, subject)
    for proposal in usable:
        if least is None or least <= budget_bytes:
            break
        if proposal.suggestion.group in {each.suggestion.group for each in taken}:
            continue
        left = bytes_of(figure, followed(subject, (*taken, proposal)))
        if left is not None and left < least:
            taken.append(proposal)
            least = left
    return tuple(taken)


def _needed(
    subject: Subject, figure: Figure, taken: tuple[Proposal, ...], budget_bytes: int
) -> tuple[Proposal, ...]:
    """Drop the dearest first, while the rest still meets the budget."""
    for proposal in sorted(taken, key=lambda each: (-each.suggestion.tradeoff, each.saved_bytes)):
        rest = tuple(each for each in taken if each is not proposal)
        left = bytes_of(figure, followed(subject, rest))
        if left is not None and left <= budget_bytes:
            taken = rest
    return taken
