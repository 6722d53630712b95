"""Rank the proposals for one model, and choose a combination that meets a budget.

Savings do not add up: half the batch and checkpointing both shrink the same activations. So a
combination is built greedily, the largest saving first, and the model is analyzed with all changes
chosen so far. A change that no longer helps is skipped, and one that turns out not to be needed is
dropped at the end. The result meets the budget, but need not be the cheapest one that does.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from onnxmem.analysis.fitting.verdicts import DATA, Comparison, Verdict
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.decisions.advise.proposals import (
    Ends,
    Objective,
    Proposal,
    Subject,
    Suggestion,
    Tradeoff,
    bytes_of,
    compared_with,
    decided,
    evaluated,
    ranked,
)
from onnxmem.decisions.advise.settings import (
    HALF,
    LARGEST_BATCH,
    accumulation_suggestions,
    batch_suggestions,
    in_place_proposal,
    load_proposals,
    order_suggestions,
    resident_proposals,
    resolution_suggestions,
    session_suggestions,
    shape_flag,
    training_suggestions,
)
from onnxmem.decisions.advise.weights import (
    edit_suggestions,
    overridable_suggestions,
    unread_weights,
    weight_estimates,
)
from onnxmem.decisions.advise.widths import width_suggestions
from onnxmem.errors import Finding
from onnxmem.runtimes.from_settings import Advice
from onnxmem.runtimes.onnxruntime.session_options import LEVELS, SessionOptions
from onnxmem.units import format_bytes

_OF_STEPS = frozenset({Objective.STEP, Objective.TORCH})
_OF_RUNTIMES = {"ort-cpu": Objective.PROCESS, "ort-cuda": Objective.DEVICE}


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPlan:
    """How to meet a budget."""

    budget_bytes: int
    figure: Objective
    chosen: tuple[Proposal, ...]
    """Empty if the budget is met already. If it cannot be met, the combination that comes
    closest."""
    singles: tuple[Proposal, ...]
    """Changes that meet the budget alone, the cheapest first."""
    before: Comparison
    after: Comparison
    """After all chosen changes, analyzed together."""
    estimates: tuple[Proposal, ...] = ()
    """Estimated changes of the weights, each of which would meet the budget alone."""

    @property
    def before_bytes(self) -> int | None:
        """What is taken of the budget now; ``None`` if the figure is unknown."""
        return self.before.num_bytes

    @property
    def after_bytes(self) -> int | None:
        """The same after all chosen changes."""
        return self.after.num_bytes

    @property
    def is_met(self) -> bool | None:
        """Whether the budget is met after the chosen changes; ``None`` is unknown."""
        verdict = self.after.verdict
        return None if verdict is Verdict.UNKNOWN else verdict.is_met


@dataclass(frozen=True, slots=True)
class Advised:
    """Advice on one model."""

    figure: Objective
    """The figure to lower; a few proposals lower another one."""
    before_bytes: int | None
    """At most, where data decide it; ``None``: it is unknown, so no proposal lowers it."""
    proposals: tuple[Proposal, ...]
    """Ranked by bytes saved, for all figures."""
    plan: BudgetPlan | None
    """``None`` without a budget."""
    subject: Subject
    ends: Ends | None = None
    """The figure at both ends of what the data of a run decide; ``None``: they decide nothing."""
    ways: str = ""
    """What settles it then."""
    observed_text: str = ""
    """Of which observed run the lower end is; empty: of none."""

    def __repr__(self) -> str:
        """The five largest savings: the fields hold the analyzed model."""
        lines = [f"<Advised {self.figure}: {format_bytes(self.before_bytes)}"]
        lines += [
            f"  {each.suggestion.id}: {format_bytes(each.after_bytes)}"
            for each in self.proposals
            if each.figure is self.figure
        ][:5]
        return "\n".join(lines) + ">"

    @property
    def is_of_training(self) -> bool:
        """Whether the figure to lower is that of a training step."""
        return self.figure in _OF_STEPS

    @property
    def notes(self) -> tuple[str, ...]:
        """Why some advice is missing, and which flags bring it back."""
        batch = self.subject.results().bound.binding.batch
        freed = self.subject.request.freeing_shapes()
        if self.before_bytes is None or batch in {None, 1} or not freed:
            return ()
        flags = " ".join(shape_flag(*each) for each in freed.items())
        what = "another batch or gradient accumulation" if self.is_of_training else "another batch"
        return (f"no advice on {what}, as --shape fixes it; free: {flags} --batch {batch}",)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings on the unchanged model."""
        return self.subject.request.findings(self.subject.results())


def advised(
    request: AnalysisRequest,
    *,
    budget_bytes: int | None = None,
    runtime: str | None = None,
    session: Advice | None = None,
) -> Advised:
    """Find changes that lower the memory of a model, and a plan to meet a budget.

    With a runtime, its figure is the one to lower; ``session`` is the advice on session options.

    :raises OnnxmemError: the dims do not fit the model.
    """
    subject = Subject(request, _options(request))
    subject.results()
    figure = _figure(request, runtime)
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
    found_ends = decided(figure, subject)
    if found_ends is None:
        return Advised(figure, before_bytes, proposals, plan, subject)
    footprint, ways = found_ends
    ends = footprint.total_bytes, footprint.upper_bytes
    observed = footprint.observed_text
    return Advised(figure, before_bytes, proposals, plan, subject, ends, ways, observed)


def plan_for(
    subject: Subject, figure: Objective, proposals: Sequence[Proposal], budget_bytes: int
) -> BudgetPlan:
    """Find the cheapest single change, or else a combination, that meets a budget."""
    before_bytes = bytes_of(figure, subject)
    before = compared_with(budget_bytes, figure, subject)
    usable = [
        each for each in proposals if each.figure is figure and each.suggestion.change is not None
    ]
    # First by what it costs; of equal cost the one that saves least, which changes least.
    # The largest batch fits by its verdict: where only retries of the allocator make it fit, what
    # it takes of a larger device is more than the budget.
    singles = sorted(
        (
            each
            for each in usable
            if each.after_bytes <= budget_bytes or each.suggestion.id == LARGEST_BATCH
        ),
        key=lambda each: (each.suggestion.tradeoff, each.saved_bytes),
    )
    chosen: tuple[Proposal, ...] = ()
    # Where data decide it, what a run takes at most may be over although nothing is known to be.
    is_over = before.verdict is Verdict.OVER or (
        before.verdict is Verdict.UNKNOWN and (before_bytes or 0) > budget_bytes
    )
    if before_bytes is not None and is_over:
        chosen = tuple(singles[:1]) or _combination(subject, figure, usable, budget_bytes)
    after = followed(subject, chosen)
    if subject.request.observed is not None and after.request.observed is None:
        # What is accepted are the observed runs, and none is of the changed model.
        after = _without_accepted_data(after)
    return BudgetPlan(
        budget_bytes=budget_bytes,
        figure=figure,
        before=before,
        after=compared_with(budget_bytes, figure, after) if chosen else before,
        chosen=chosen,
        singles=tuple(singles) if chosen else (),
        estimates=tuple(_estimates(proposals, before_bytes, budget_bytes)) if chosen else (),
    )


def _without_accepted_data(subject: Subject) -> Subject:
    request, settings = subject.request, subject.request.settings
    accepted = tuple(code for code in settings.accepted if code != DATA)
    return replace(subject, request=replace(request, settings=replace(settings, accepted=accepted)))


def followed(subject: Subject, proposals: Iterable[Proposal]) -> Subject:
    """The subject after all changes, made in order."""
    for proposal in proposals:
        if proposal.suggestion.change is not None:
            subject = proposal.suggestion.change(subject)
    return subject


def _options(request: AnalysisRequest) -> SessionOptions:
    settings = request.settings
    level = LEVELS[settings.graph or "ort-all"]
    return SessionOptions(level=level, fixed_dims=settings.fixed_dims)


def _figure(request: AnalysisRequest, runtime: str | None) -> Objective:
    """What the report says that the model takes, with a budget and without one."""
    if request.settings.train:
        return Objective.STEP if request.settings.basis == "tensors" else Objective.TORCH
    return Objective.TOTAL if runtime is None else _OF_RUNTIMES[runtime]


def _suggestions(
    subject: Subject, figure: Objective, budget_bytes: int | None, runtime: str | None
) -> Iterator[Suggestion]:
    """Changes that lower the requested figure."""
    yield from batch_suggestions(subject, figure, budget_bytes)
    yield from resolution_suggestions(subject)
    if figure in _OF_STEPS:
        yield from accumulation_suggestions(subject)
        yield from training_suggestions(subject)
        yield from width_suggestions(subject)
        return
    yield from edit_suggestions(subject)
    if figure is Objective.TOTAL:
        yield HALF
        yield from order_suggestions(subject)
    elif runtime is not None:
        yield from overridable_suggestions(subject)
        yield from session_suggestions(runtime)


def _beside(subject: Subject, figure: Objective, session: Advice | None) -> Iterator[Proposal]:
    """Proposals that lower other figures."""
    if figure not in _OF_STEPS:
        yield from in_place_proposal(subject)
        yield from weight_estimates(subject)
    yield from unread_weights(subject)
    if session is not None and figure not in {Objective.PROCESS, Objective.DEVICE}:
        yield from resident_proposals(session)
    if figure in {Objective.TOTAL, Objective.PROCESS}:
        yield from load_proposals(subject)
    if figure is Objective.TOTAL:
        suggestions = list(overridable_suggestions(subject))
        before_bytes = bytes_of(Objective.PROCESS, subject) if suggestions else None
        if before_bytes is not None:
            yield from evaluated(iter(suggestions), subject, Objective.PROCESS, before_bytes)


def _estimates(
    proposals: Iterable[Proposal], before_bytes: int | None, budget_bytes: int
) -> Iterator[Proposal]:
    """Estimates that meet the budget: bytes saved on weights are saved on a run's figure too."""
    for proposal in proposals:
        is_of_weights = proposal.figure is Objective.WEIGHTS and before_bytes is not None
        if is_of_weights and (before_bytes or 0) - proposal.saved_bytes <= budget_bytes:
            yield proposal


def _combination(
    subject: Subject, figure: Objective, usable: Sequence[Proposal], budget_bytes: int
) -> tuple[Proposal, ...]:
    """A combination on one device if there is one, else one that may add devices."""
    least: tuple[Proposal, ...] = ()
    # Devices come last: a combination on one device is preferred even if it costs accuracy.
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
    subject: Subject, figure: Objective, usable: Sequence[Proposal], budget_bytes: int
) -> tuple[Proposal, ...]:
    """Add the proposals in order, each if the figure is lower with it than without it."""
    # ``least`` is the figure of the subject with all of ``taken``, from an analysis. The saving of
    # a proposal by itself says nothing about what it still saves after the ones before it.
    taken: list[Proposal] = []
    least = bytes_of(figure, subject)
    for proposal in usable:
        if least is None or least <= budget_bytes:
            break
        # Changes of one group exclude each other, such as two batches.
        if proposal.suggestion.group in {each.suggestion.group for each in taken}:
            continue
        left = bytes_of(figure, followed(subject, (*taken, proposal)))
        if left is not None and left < least:
            taken.append(proposal)
            least = left
    return tuple(taken)


def _needed(
    subject: Subject, figure: Objective, taken: tuple[Proposal, ...], budget_bytes: int
) -> tuple[Proposal, ...]:
    """Drop what the budget is met without, the highest cost first."""
    # ``taken`` meets the budget before and after each turn. A later, larger change often makes an
    # earlier one superfluous, which a greedy choice cannot know.
    for proposal in sorted(taken, key=lambda each: (-each.suggestion.tradeoff, each.saved_bytes)):
        rest = tuple(each for each in taken if each is not proposal)
        left = bytes_of(figure, followed(subject, rest))
        if left is not None and left <= budget_bytes:
            taken = rest
    return taken
