"""What would lower a model's memory, as text and as JSON, and which session settings take less.

``render_proposals`` and ``advice_row`` are of a model, ``render_advice`` is of a session of
onnxruntime: a table of its settings, with the Python that sets the best.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from onnxmem.analysis.json_rows import JsonDict
from onnxmem.decisions.advise.advising import Advised, BudgetPlan
from onnxmem.decisions.advise.proposals import (
    OBJECTIVES,
    Ends,
    Objective,
    Proposal,
    Tradeoff,
    error_of,
)
from onnxmem.errors import printable, shortened
from onnxmem.report.sections.runtimes import change_percent, optimized_by
from onnxmem.report.text import fact, finding_lines, noted, paragraph, prose, rounded
from onnxmem.report.verdict import error_text, verdict_text
from onnxmem.units import format_bytes, in_decimal_unit

if TYPE_CHECKING:
    from onnxmem.runtimes.from_settings import Advice
    from onnxmem.runtimes.onnxruntime.advice import Choice


_LONGEST: Final = 2000
"""Characters of a sentence, which may name a few long names."""
_OWN: Final = "default session options"
_SESSION: Final = ("import onnxruntime", "options = onnxruntime.SessionOptions()")


def render_advice(path: str, session: "Advice") -> str:
    """Every combination and every single change, the least memory first; ends with a newline."""
    runtime, is_partial = session.runtime, session.is_partial
    own, graph = runtime.own, f"graph {runtime.graph} {optimized_by(runtime)}"
    end = ", of known sizes" if is_partial else ""
    end = ", dims at their upper ends" if session.is_at_most else end
    lines = [
        *paragraph(f"{shortened(path)}  ", [runtime.name, graph]),
        "",
        *prose("", f"The arena without weights: its resident memory at most in three runs{end}"),
        *_choice_lines(runtime.advice, own, is_partial=is_partial),
        "",
        *prose(
            "", f"The same with one setting changed, and what the arena reserves after run 3{end}"
        ),
        *_choice_lines(session.singles, own, is_partial=is_partial, with_reserved=True),
    ]
    best = runtime.advice[0]
    if best.resident_bytes < own.resident_bytes and not is_partial:
        lines += ["", f"Recommended, {change_percent(best, own)}"]
        lines += [f"  {line}" for line in (*_SESSION, *best.lines)]
    lines += ["", *noted(runtime.findings)] if runtime.findings else []
    return "\n".join(lines) + "\n"


def _choice_lines(
    choices: "Iterable[Choice]",
    own: "Choice",
    *,
    is_partial: bool,
    with_reserved: bool = False,
) -> Iterator[str]:
    for choice in choices:
        size: int | None = choice.resident_bytes
        if is_partial and not size:
            size = None
        # What is left out may change in another way than the rest.
        change = change_percent(choice, own) if choice.changes and not is_partial else ""
        reserved = (
            f"{format_bytes(choice.figures.held_steady_bytes):>10}   " if with_reserved else ""
        )
        columns = f"  {format_bytes(size):>10}{change:>8}   {reserved}"
        yield from prose(columns, ", ".join(choice.changes) or _OWN)


def render_proposals(path: str, advice: Advised, assumptions: Sequence[str]) -> str:
    """What would lower a model's memory, what saves most first; ends with a newline."""
    lines = [
        f"{shortened(path)}  what would lower its memory",
        *paragraph("assumes: ", [shortened(each) for each in assumptions]),
        "",
        *_now(advice),
        *_error(advice),
    ]
    for title, proposals in _chapters(advice):
        lines += ["", *prose("", title)]
        for proposal in proposals:
            lines += _proposal(proposal)
    if advice.plan is not None:
        lines += ["", *_plan(advice.plan, advice.figure, advice.ends)]
    notes = [line for text in advice.notes for line in prose("note: ", shortened(text, _LONGEST))]
    notes += finding_lines(advice.findings)
    if notes:
        lines += ["", *notes]
    return "\n".join(lines) + "\n"


def _now(advice: Advised) -> Iterator[str]:
    """The figure as it is; where data decide it, at both ends, and what settles it."""
    text, ends = OBJECTIVES[advice.figure], advice.ends
    if ends is None:
        yield rounded("Now", advice.before_bytes, text)
        return
    least_bytes, most_bytes = ends
    observed = f" ({advice.observed_text})" if advice.observed_text else ""
    if advice.before_bytes is None:
        yield rounded("Now, at least", least_bytes, f"{text}{observed}")
        why = advice.ways or "no proof gives it an upper end"
        yield fact("  data", f"no advice, for what a run takes is not bounded: {why}")
        return
    yield rounded("Now, at most", most_bytes, text)
    least = f"{format_bytes(least_bytes)}{observed}"
    yield fact("  data", f"at least {least}; advice is on what a run takes at most")


def _most_text(plan: BudgetPlan, ends: Ends | None) -> str:
    """The upper end, where the lower one is compared."""
    if ends is None or plan.before_bytes != ends[0] or ends[1] in {None, ends[0]}:
        return ""
    return f"; takes at most {format_bytes(ends[1])}"


def _chapters(advice: Advised) -> Iterator[tuple[str, list[Proposal]]]:
    """The proposals under their headings, those on another figure than ``Now`` under its name;
    those that keep a training as it is come first.
    """
    if not advice.proposals:
        yield "Advice: nothing found that saves memory", []
    proposals = [each for each in advice.proposals if each.figure is advice.figure]
    if proposals and not advice.is_of_training:
        yield "Advice, saves most first", proposals
    elif proposals:
        shared = [each for each in proposals if each.suggestion.tradeoff is Tradeoff.DEVICES]
        alone = [each for each in proposals if each not in shared]
        for title, chapter in (
            (
                "Advice that keeps the training the same, saves most first",
                [each for each in alone if not each.suggestion.changes_training],
            ),
            (
                "Advice that changes the training, saves most first",
                [each for each in alone if each.suggestion.changes_training],
            ),
            ("Advice for several devices, saves most on each first", shared),
        ):
            if chapter:
                yield title, chapter
    others = [each for each in advice.proposals if each.figure is not advice.figure]
    for (figure, now_bytes), same in groupby(
        sorted(others, key=_compared), key=lambda each: (each.figure, each.before_bytes)
    ):
        yield (
            f"Advice on another figure: {OBJECTIVES[figure]}, {format_bytes(now_bytes)} now",
            [*same],
        )


def _compared(proposal: Proposal) -> tuple[str, int]:
    """The figure that a proposal lowers, and what it is now."""
    return proposal.figure.value, proposal.before_bytes


def _error(advice: Advised) -> list[str]:
    accuracy = error_of(advice.figure, advice.subject)
    return [] if accuracy is None else [fact("  accuracy", error_text(accuracy))]


def advice_row(advice: Advised) -> JsonDict:
    """Advice in JSON; unknown is null."""
    return {
        "figure": advice.figure.value,
        "before_bytes": advice.before_bytes,
        **(
            {"before_lower_bytes": advice.ends[0], "before_upper_bytes": advice.ends[1]}
            if advice.ends
            else {}
        ),
        "advice": [
            _proposal_row(proposal, is_of_training=advice.is_of_training)
            for proposal in advice.proposals
        ],
        "budget": None if advice.plan is None else _plan_row(advice.plan),
    }


def _proposal(proposal: Proposal) -> Iterator[str]:
    """What is left with a change, what it is, what it costs."""
    share = f"{100 * (proposal.after_bytes / proposal.before_bytes - 1):+.0f} %"
    parts = [share] if proposal.is_exact else [share, "estimate"]
    yield rounded(f"  {proposal.suggestion.id}", proposal.after_bytes, ", ".join(parts))
    for text in (proposal.suggestion.what, f"cost: {proposal.suggestion.cost}"):
        yield from prose("    ", shortened(text, _LONGEST))


def _plan(plan: BudgetPlan, figure: Objective, ends: Ends | None) -> Iterator[str]:
    budget_bytes = plan.budget_bytes
    compared = "" if plan.figure is figure else f"compared with: {OBJECTIVES[plan.figure]}"
    given = in_decimal_unit(budget_bytes)
    yield rounded("Budget", budget_bytes, "; ".join(filter(None, (given, compared))))
    yield rounded(
        "  now",
        plan.before_bytes,
        verdict_text(plan.before, budget_bytes) + _most_text(plan, ends),
    )
    if not plan.chosen:
        return
    alone = [each.suggestion.id for each in plan.singles]
    yield fact("  alone", ", ".join(alone) or "none of them meets it alone")
    if plan.estimates:
        names = ", ".join(each.suggestion.id for each in plan.estimates)
        yield fact("  by estimate", f"{names} would alone")
    for number, proposal in enumerate(plan.chosen, start=1):
        yield fact(f"  {number}.", shortened(proposal.suggestion.what, _LONGEST))
    yield rounded(
        "  then",
        plan.after_bytes,
        verdict_text(plan.after, budget_bytes),
    )


def _proposal_row(proposal: Proposal, *, is_of_training: bool) -> JsonDict:
    suggestion = proposal.suggestion
    return {
        "id": suggestion.id,
        "what": printable(suggestion.what),
        "figure": proposal.figure.value,
        "before_bytes": proposal.before_bytes,
        "after_bytes": proposal.after_bytes,
        "saved_bytes": proposal.saved_bytes,
        "basis": "exact" if proposal.is_exact else "estimate",
        "cost": {"price": suggestion.tradeoff.name.lower(), "text": printable(suggestion.cost)},
        "changes_training": suggestion.changes_training if is_of_training else None,
    }


def _plan_row(plan: BudgetPlan) -> JsonDict:
    return {
        "budget_bytes": plan.budget_bytes,
        "figure": plan.figure.value,
        "is_met": plan.is_met,
        "verdict": plan.after.verdict.value,
        "before_bytes": plan.before_bytes,
        "after_bytes": plan.after_bytes,
        "follow": [proposal.suggestion.id for proposal in plan.chosen],
        "alone": [proposal.suggestion.id for proposal in plan.singles],
        "by_estimate": [proposal.suggestion.id for proposal in plan.estimates],
    }
