"""What would lower a model's memory, as text and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Final

from onnxmem.analysis.json_row import Row
from onnxmem.decisions.advise.advising import Advised
from onnxmem.decisions.advise.figures import ERRORS, FIGURES, Figure
from onnxmem.decisions.advise.meeting import Meeting
from onnxmem.decisions.advise.proposals import Proposal
from onnxmem.errors import printable, shortened
from onnxmem.report.lines import fact, figure, paragraph, prose
from onnxmem.report.notes import note_lines
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
    if advice.meeting is not None:
        lines += ["", *_meeting(advice.meeting)]
    if advice.findings:
        lines += ["", *note_lines(advice.findings)]
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
        "budget": None if advice.meeting is None else _meeting_row(advice.meeting),
    }


def _proposal(proposal: Proposal) -> Iterator[str]:
    share = 100 * (proposal.after_bytes / proposal.before_bytes - 1)
    proof = "exact" if proposal.is_exact else "estimate"
    yield figure(
        f"  {proposal.idea.id}",
        proposal.saved_bytes,
        f"{format_bytes(proposal.before_bytes)} -> {format_bytes(proposal.after_bytes)} "
        f"({share:+.0f} %)",
    )
    what = f"{proposal.figure.value}, {proof}: {proposal.idea.what}"
    yield from prose(_INDENT, shortened(what, 2000))
    yield from prose(_INDENT, shortened(f"cost: {proposal.idea.cost}", 2000))


def _meeting(meeting: Meeting) -> Iterator[str]:
    budget_bytes = meeting.budget_bytes
    yield figure("BUDGET", budget_bytes, f"compared with {meeting.figure.value}")
    yield figure(
        "  now",
        meeting.before_bytes,
        verdict_text(meeting.before, meeting.before_bytes, budget_bytes),
    )
    if not meeting.chosen:
        return
    alone = [each.idea.id for each in meeting.singles]
    yield from prose(
        f"{'  alone':<26}", ", ".join(alone) if alone else "none of them meets it alone"
    )
    if meeting.estimates:
        names = ", ".join(each.idea.id for each in meeting.estimates)
        yield from prose(f"{'  by estimate':<26}", f"{names} would alone")
    for place, proposal in enumerate(meeting.chosen, start=1):
        yield from prose(f"{f'  {place}.':<26}", shortened(proposal.idea.what, 2000))
    yield figure(
        "  then",
        meeting.after_bytes,
        verdict_text(meeting.after, meeting.after_bytes, budget_bytes),
    )


def _proposal_row(proposal: Proposal) -> Row:
    idea = proposal.idea
    return {
        "id": idea.id,
        "what": printable(idea.what),
        "figure": proposal.figure.value,
        "before_bytes": proposal.before_bytes,
        "after_bytes": proposal.after_bytes,
        "saved_bytes": proposal.saved_bytes,
        "basis": "exact" if proposal.is_exact else "estimate",
        "cost": {"price": idea.price.name.lower(), "text": printable(idea.cost)},
    }


def _meeting_row(meeting: Meeting) -> Row:
    return {
        "budget_bytes": meeting.budget_bytes,
        "figure": meeting.figure.value,
        "is_met": meeting.is_met,
        "verdict": meeting.after.value,
        "before_bytes": meeting.before_bytes,
        "after_bytes": meeting.after_bytes,
        "follow": [proposal.idea.id for proposal in meeting.chosen],
        "alone": [proposal.idea.id for proposal in meeting.singles],
        "by_estimate": [proposal.idea.id for proposal in meeting.estimates],
    }
