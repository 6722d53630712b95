"""A checkup as a comment on a pull request.

The hidden marker on its first line lets an action find its own comment and write it again. GitHub
refuses a comment of more than 65,536 characters, so that rows beyond a limit are only counted: what
is wrong stands before what fits.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.decisions.check.checking import Check, Checkup
from onnxmem.errors import shortened
from onnxmem.report.check.wording import UNCOVERED, UNMATCHED, summary, verdict
from onnxmem.report.notes import sentence as note
from onnxmem.units import format_bytes

MARKER: Final = "<!-- onnxmem -->"
MOST_BYTES: Final = 60_000
"""Of the whole text, in UTF-8."""
_RESERVED_BYTES: Final = 1_000
"""For what stands after the rows."""
_MOST_DETAILS_BYTES: Final = 15_000
_SIGNS: Final = {Verdict.OVER: "❌", Verdict.UNKNOWN: "❔", Verdict.TIGHT: "⚠️", Verdict.FITS: "✅"}
_ORDER: Final = (Verdict.OVER, Verdict.UNKNOWN, Verdict.TIGHT, Verdict.FITS)
_HEAD: Final = ("| | model | budget | figure | bytes | |", "|---|---|---|---|---:|---|")
_LONGEST_NAME: Final = 120
_LONGEST_NOTE: Final = 2000


def render(checkup: Checkup) -> str:
    """A table, and below it what takes the memory of what does not fit."""
    sign = _SIGNS[checkup.outcome]
    top = [MARKER, f"### {sign} onnxmem: {summary(checkup)}", ""]
    rows = list(_rows(checkup))
    details = _kept(_details(checkup), _MOST_DETAILS_BYTES)
    notes = _kept(_notes(checkup), _MOST_DETAILS_BYTES)
    room = MOST_BYTES - _RESERVED_BYTES - _size((*top, *_HEAD, *details, *notes))
    kept = _kept(rows, room)
    lines = [*top, *_HEAD, *kept] if rows else top
    if len(kept) < len(rows):
        lines += ["", f"{len(rows) - len(kept):,} more rows are in the JSON of this run."]
    if details:
        lines += ["", "<details><summary>What takes most where it does not fit</summary>", ""]
        lines += [*details, "", "</details>"]
    if notes:
        lines += ["", "<details><summary>What the figures assume or leave out</summary>", ""]
        lines += [*notes, "", "</details>"]
    return "\n".join(lines) + "\n"


def code(name: str, longest: int = _LONGEST_NAME) -> str:
    r"""A name as a code span, in which nothing has a meaning.

    The two characters that would end the span or the table's cell are written ``\x60`` and
    ``\x7c``, like those that no terminal should see.
    """
    safe = shortened(name, longest).replace("`", r"\x60").replace("|", r"\x7c")
    return f"`{safe}`" if safe.strip() else "(no name)"


def _rows(checkup: Checkup) -> Iterator[str]:
    found = [(model.path, check) for model in checkup.models for check in model.checks]
    for outcome in _ORDER:
        if outcome is Verdict.UNKNOWN:
            yield from _rows_without(checkup)
        for path, check in found:
            if check.outcome is outcome:
                yield _row(path, check)


def _rows_without(checkup: Checkup) -> Iterator[str]:
    """Models without a budget, and budgets without a model."""
    sign = _SIGNS[Verdict.FITS if checkup.allows_uncovered else Verdict.UNKNOWN]
    what = "no budget is of this model" if checkup.allows_uncovered else UNCOVERED
    for model in checkup.uncovered():
        yield f"| {sign} | {code(model.path)} | | | | {what} |"
    for budget in checkup.unmatched:
        sign = _SIGNS[Verdict.UNKNOWN]
        yield f"| {sign} | {code(budget.path)} | {code(budget.name)} | | | {UNMATCHED} |"


def _row(path: str, check: Check) -> str:
    batch = "" if check.batch is None else f", batch {check.batch:,}"
    size = "" if check.size_bytes is None else format_bytes(check.size_bytes)
    # A reason quotes names of the model; the other verdicts hold numbers alone.
    words = verdict(check)
    told = code(check.reason, 300) if check.outcome is Verdict.UNKNOWN else words
    budget = f"{code(check.budget)}{batch}"
    sign = _SIGNS[check.outcome]
    return f"| {sign} | {code(path)} | {budget} | {check.figure} | {size} | {told} |"


def _details(checkup: Checkup) -> Iterator[str]:
    for model in checkup.models:
        for check in model.checks:
            if check.outcome is Verdict.OVER and check.largest:
                node = "" if check.node is None else f" at {code(check.node)}"
                yield f"- {code(model.path)}, {check.figure}{node}"
                for held in check.largest:
                    yield f"  - {format_bytes(held.size_bytes)} {code(held.label)}"


def _notes(checkup: Checkup) -> Iterator[str]:
    for model in checkup.models:
        for finding in model.findings:
            yield f"- {code(model.path)}: {code(note(finding), _LONGEST_NOTE)}"


def _kept(lines: Iterable[str], most_bytes: int) -> list[str]:
    """The first lines that together stay within bytes."""
    kept: list[str] = []
    for line in lines:
        most_bytes -= _size((line,))
        if most_bytes < 0:
            break
        kept.append(line)
    return kept


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)
