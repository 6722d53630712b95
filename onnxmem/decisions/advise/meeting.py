"""A budget: what alone meets it, and the smallest combination found that does.

A combination is made greedily: the proposals that save most come first, each is kept where it
lowers what those before it have left, and what turns out not to be needed is dropped again. All of
it is asked anew together, for savings do not add up.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.decisions.advise.figures import Figure, Subject, bytes_of, verdict_of
from onnxmem.decisions.advise.proposals import Price, Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What becomes of a budget."""

    budget_bytes: int
    figure: Figure
    before_bytes: int | None
    after_bytes: int | None
    """With all that is chosen, analysed together; ``None`` where the figure is unknown."""
    chosen: tuple[Proposal, ...]
    """None where the budget is met already, or cannot be: then the best that was found."""
    singles: tuple[Proposal, ...]
    """Each meets it alone, of the lightest price first."""
    before: Verdict
    after: Verdict
    """With all that is chosen."""
    estimates: tuple[Proposal, ...] = ()
    """Fewer bits or features for weights: each would meet it alone, by its estimate."""

    @property
    def is_met(self) -> bool | None:
        """Whether it is, with what is chosen; ``None`` is unknown."""
        return None if self.after is Verdict.UNKNOWN else self.after.is_met


def meet(
    subject: Subject, figure: Figure, proposals: Sequence[Proposal], budget_bytes: int
) -> Meeting:
    """Find what meets a budget."""
    before_bytes = bytes_of(figure, subject)
    before = verdict_of(figure, subject, budget_bytes)
    usable = [each for each in proposals if each.figure is figure and each.idea.change is not None]
    singles = sorted(
        (each for each in usable if each.after_bytes <= budget_bytes),
        key=lambda each: (each.idea.price, each.saved_bytes),
    )
    chosen: tuple[Proposal, ...] = ()
    if before_bytes is not None and before is Verdict.OVER:
        chosen = tuple(singles[:1]) or _combination(subject, figure, usable, budget_bytes)
    after = followed(subject, chosen)
    return Meeting(
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
        if proposal.idea.change is not None:
            subject = proposal.idea.change(subject)
    return subject


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
    for highest in (Price.ACCURACY, Price.DEVICES):
        least = _greedy(
            subject, figure, [each for each in usable if each.idea.price <= highest], budget_bytes
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
        if proposal.idea.group in {each.idea.group for each in taken}:
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
    for proposal in sorted(taken, key=lambda each: (-each.idea.price, each.saved_bytes)):
        rest = tuple(each for each in taken if each is not proposal)
        left = bytes_of(figure, followed(subject, rest))
        if left is not None and left <= budget_bytes:
            taken = rest
    return taken
