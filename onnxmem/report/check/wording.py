"""What a check comes to, in words: one sentence that every format says."""

from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.decisions.check.checking import Check, CheckedModel, Checkup, Figure
from onnxmem.errors import shortened
from onnxmem.report.verdict import verdict_text
from onnxmem.units import format_bytes, plural

LONGEST_REASON = 600
"""Characters of a reason, which may name a few long names."""
UNCOVERED = "no budget is of this model: give its path in one, or pass --allow-uncovered"
UNMATCHED = "no model matches the budget's path"

_RULES = {
    Verdict.OVER: "over-budget",
    Verdict.UNKNOWN: "unknown",
}
_GREW = "grew"
_SEVERAL = {
    Verdict.FITS: "fit",
    Verdict.TIGHT: "tight",
    Verdict.OVER: "do not fit",
    Verdict.UNKNOWN: "unknown",
}


def rule_of(check: Check) -> str:
    """The stable word for what is wrong."""
    if check.outcome is Verdict.OVER and check.growth is not None:
        return _GREW
    return _RULES.get(check.outcome, "fits")


def setting(check: Check) -> str:
    """At which batch it is checked: ``budget edge, batch 8``."""
    batch = "" if check.batch is None else f", batch {check.batch:,}"
    return f"budget {shortened(check.budget)}{batch}"


def verdict(check: Check) -> str:
    """What the limit came to, without the figure: ``does not fit: 28 MiB over 128 MiB``."""
    if check.outcome is Verdict.UNKNOWN:
        return f"unknown: {shortened(check.reason, LONGEST_REASON)}"
    bound = " (a lower bound)" if check.is_lower_bound else ""
    if check.growth is not None:
        return f"{check.outcome}: {_grown(check)}, {check.growth} allowed{bound}"
    if check.outcome is Verdict.TIGHT and check.limit_bytes is not None:
        told = verdict_text(check.outcome, check.size_bytes, check.limit_bytes)
        return f"{told}, of {format_bytes(check.limit_bytes)}{bound}{_basis(check)}"
    over_bytes = check.over_bytes or 0
    side = "over" if over_bytes > 0 else "below"
    limit = format_bytes(check.limit_bytes)
    return f"{check.outcome}: {format_bytes(abs(over_bytes))} {side} {limit}{bound}{_basis(check)}"


def _basis(check: Check) -> str:
    """What was compared, where a limit on memory does not say so itself."""
    return f", by {check.basis}" if check.basis and check.figure is Figure.TRAINING else ""


def sentence(check: Check) -> str:
    """Figure, bytes, verdict, setting and what takes most."""
    size = ""
    if check.size_bytes is not None:
        size = f" {format_bytes(check.size_bytes)} ({check.size_bytes:,} B)"
    told = f"{check.figure}{size} {verdict(check)} [{setting(check)}]"
    where = place(check) if check.outcome is Verdict.OVER else ""
    return f"{told}; {where}" if where else told


def place(check: Check) -> str:
    """Where the peak is and what takes most there; ``""`` where that is not told."""
    node = "" if check.node is None else f"at node {shortened(check.node)}"
    largest = " + ".join(
        f"{shortened(held.label)} {format_bytes(held.size_bytes)}" for held in check.largest
    )
    live = f"most is taken by {largest}" if largest else ""
    return ", ".join(part for part in (node, live) if part)


def heading(model: CheckedModel) -> str:
    """A model's path."""
    return shortened(model.path)


def summary(checkup: Checkup) -> str:
    """How many of what: ``2 models, 4 checks: 3 fit, 1 does not fit``."""
    counts = checkup.counts()
    checked = sum(1 for _ in checkup.checks())
    models = f"{plural(len(checkup.models), 'model')}, {plural(checked, 'check')}"
    told = [
        f"{count:,} {outcome if count == 1 else _SEVERAL[outcome]}"
        for outcome, count in counts.items()
        if count
    ]
    return f"{models}: {', '.join(told) or 'nothing was checked'}"


def _grown(check: Check) -> str:
    """By how much it has grown: ``grew by 1.00 KiB (+10.0 %) from 10.0 KiB``."""
    before_bytes = check.baseline_bytes or 0
    grown_bytes = (check.size_bytes or 0) - before_bytes
    verb = "shrank" if grown_bytes < 0 else "grew"
    percent = f" ({100 * grown_bytes / before_bytes:+.1f} %)" if before_bytes else ""
    return f"{verb} by {format_bytes(abs(grown_bytes))}{percent} from {format_bytes(before_bytes)}"
