"""What would lower a model's memory, as text and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Final

from onnxmem.analysis.json_rows import Row
from onnxmem.decisions.advise.advising import Advised, BudgetPlan
from onnxmem.decisions.advise.proposals import ERRORS, FIGURES, Figure, Proposal
from onnxmem.errors import printable, shortened
from onnxmem.report.text import fact, figure, finding_lines, paragraph, prose
from onnxmem.report.verdict import error_text, verdict_text
from onnxmem.units import format_bytes

_INDENT: Final = " " * 26


def render_proposals(path: str, advice: Advised, assumptions: Sequence[str]) -> str:
    """What would lower a model's memory, what saves most first; ends with a newline."""
    figure_text = FIGURES[advice.figure]
    lines = [
        f"{shortened(path)}  what would lower its memory",
        *paragraph("assumes: ", [shortened(each) for each in assumptions]),
        "",
        figure("NOW", advice.before_bytes, f"{advice.figure.value}: {figure_text}", wraps=True),
        *_error(advice.figure),
        "",
        "ADVICE, by what it saves" if advice.proposals else "ADVICE: none that saves anything",
    ]
    for proposal in advice.proposals:
        lines += _proposal(proposal)
    if advice.plan is not None:
        lines += ["", *_plan(advice.plan)]
    if advice.findings:
        lines += ["", *finding_lines(advice.findings)]
    return "\n".join(lines) + "\n"


def _error(lowered: Figure) -> list[str]:
    accuracy = ERRORS.get(lowered)
    return [] if accuracy is None else [fact("  error", error_text(accuracy), wraps=True)]


def advice_row(advice: Advised) -> Row:
    """The same in JSON; unknown is null."""
    return {
        "figure": advice.figure.value,
        "before_bytes": advice.before_bytes,
        "advice": [_proposal_row(proposal) for proposal in advice.proposals],
        "budget": None if advice.plan is None else _plan_row(advice.plan),
    }


def _proposal(proposal: Proposal) -> Iterator[str]:
    share = 100 * (proposal.after_bytes / proposal.before_bytes - 1)
    proof = "exact" if proposal.is_exact else "estimate"
    yield figure(
        f"  {proposal.suggestion.id}",
        proposal.saved_bytes,
        f"{format_bytes(proposal.before_bytes)} -> {format_bytes(proposal.after_bytes)} "
        f"({share:+.0f} %)",
    )
    what = f"{proposal.figure.value}, {proof}: {proposal.suggestion.what}"
    yield from prose(_INDENT, shortened(what, 2000))
    yield from prose(_INDENT, shortened(f"cost: {proposal.suggestion.cost}", 2000))


def _plan(plan: BudgetPlan) -> Iterator[str]:
    budget_bytes = plan.budget_bytes
    yield figure("BUDGET", budget_bytes, f"compared with {plan.figure.value}")
    yield figure(
        "  now",
        plan.before_bytes,
        verdict_text(plan.before, plan.before_bytes, budget_bytes),
    )
    if not plan.chosen:
        return
    alone = [each.suggestion.id for each in plan.singles]
    yield from prose(
        f"{'  alone':<26}", ", ".join(alone) if alone else "none of them meets it alone"
    )
    if plan.estimates:
        names = ", ".join(each.suggestion.id for each in plan.estimates)
        yield from prose(f"{'  by estimate':<26}", f"{names} would alone")
    for place, proposal in enumerate(plan.chosen, start=1):
        yield from prose(f"{f'  {place}.':<26}", shortened(proposal.suggestion.what, 2000))
    yield figure(
        "  then",
        plan.after_bytes,
        verdict_text(plan.after, plan.after_bytes, budget_bytes),
    )


def _proposal_row(proposal: Proposal) -> Row:
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
    }


def _plan_row(plan: BudgetPlan) -> Row:
    return {
        "budget_bytes": plan.budget_bytes,
        "figure": plan.figure.value,
        "is_met": plan.is_met,
        "verdict": plan.after.value,
        "before_bytes": plan.before_bytes,
        "after_bytes": plan.after_bytes,
        "follow": [proposal.suggestion.id for proposal in plan.chosen],
        "alone": [proposal.suggestion.id for proposal in plan.singles],
        "by_estimate": [proposal.suggestion.id for proposal in plan.estimates],
    }
