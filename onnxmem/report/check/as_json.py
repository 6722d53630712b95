"""A checkup as JSON: the contract ``onnxmem.check`` 1.0, additive within 1.x."""

from typing import Final

from onnxmem.analysis.json_document import document, document_text
from onnxmem.analysis.json_row import Row
from onnxmem.decisions.check.checking import Check, CheckedModel, Checkup
from onnxmem.errors import printable
from onnxmem.report.check.wording import LONGEST_REASON, rule_of, sentence
from onnxmem.report.notes import note_rows

SCHEMA: Final = "onnxmem.check"
SCHEMA_VERSION: Final = "1.0"


def render(checkup: Checkup) -> str:
    """Write the checkup in ASCII: no name can reach a terminal as a command."""
    counts = checkup.counts()
    content: Row = {
        "outcome": checkup.outcome.replace(" ", "_"),
        "counts": {outcome.replace(" ", "_"): count for outcome, count in counts.items()},
        "models": [_model(model) for model in checkup.models],
        "unmatched_budgets": [
            {"budget": printable(budget.name), "path": printable(budget.path)}
            for budget in checkup.unmatched
        ],
    }
    return document_text(document(SCHEMA, SCHEMA_VERSION, content))


def _model(model: CheckedModel) -> Row:
    return {
        "path": printable(model.path),
        "covered": model.is_covered,
        "checks": [_check(check) for check in model.checks],
        "findings": note_rows(model.findings),
    }


def _check(check: Check) -> Row:
    growth = check.growth
    return {
        "budget": printable(check.budget),
        "figure": check.figure.replace(" ", "_"),
        "outcome": check.outcome.replace(" ", "_"),
        "rule": rule_of(check),
        "batch": check.batch,
        "bytes": check.size_bytes,
        "limit_bytes": check.limit_bytes,
        "over_bytes": check.over_bytes,
        "baseline_bytes": check.baseline_bytes,
        "growth": None if growth is None else str(growth),
        "is_lower_bound": check.is_lower_bound,
        "accuracy": None
        if check.accuracy is None
        else {"percent": check.accuracy.percent, "source": check.accuracy.source},
        "reason": printable(check.reason)[:LONGEST_REASON] or None,
        "message": printable(sentence(check)),
        "peak_node": check.node and printable(check.node),
        "largest": [
            {"tensor": printable(held.label), "bytes": held.size_bytes} for held in check.largest
        ],
    }
