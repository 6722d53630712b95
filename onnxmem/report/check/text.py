"""A checkup for a terminal: a line per limit, the summary last."""

from collections.abc import Iterator
from itertools import groupby

from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.decisions.check.checking import Check, CheckedModel, Checkup
from onnxmem.errors import shortened
from onnxmem.report.check.wording import (
    UNCOVERED,
    UNMATCHED,
    heading,
    place,
    setting,
    summary,
    verdict,
)
from onnxmem.report.lines import figure, prose
from onnxmem.report.notes import note_lines
from onnxmem.report.verdict import error_text


def render(checkup: Checkup) -> str:
    """Every model in order; the text ends with a newline."""
    lines: list[str] = []
    for model in checkup.models:
        lines += [*_model_lines(model, allows=checkup.allows_uncovered), ""]
    for budget in checkup.unmatched:
        name = f"budget {shortened(budget.name)}: "
        lines += [*prose(name, f"unknown: {UNMATCHED} {shortened(budget.path)}"), ""]
    lines.append(f"{checkup.outcome.upper()}  {summary(checkup)}")
    return "\n".join(lines) + "\n"


def _model_lines(model: CheckedModel, *, allows: bool) -> Iterator[str]:
    yield heading(model)
    if not model.is_covered:
        yield from prose("  ", "no budget is of this model" if allows else f"unknown: {UNCOVERED}")
    for name, checks in groupby(model.checks, key=setting):
        yield f"  {name}"
        for check in checks:
            yield from _check_lines(check)
    yield from note_lines(model.findings, "  ")


def _check_lines(check: Check) -> Iterator[str]:
    yield figure(f"    {check.figure}", check.size_bytes, verdict(check), wraps=True)
    if check.accuracy is not None and check.accuracy.percent != 0:
        yield from prose("      error: ", error_text(check.accuracy))
    where = place(check) if check.outcome is Verdict.OVER else ""
    if where:
        yield from prose("      ", where)
