"""A checkup as SARIF 2.1.0, for code scanning: a result for each limit not known to be kept.

A model has no lines: a result's place is the file, and the node at the peak is a logical place.
Brackets in messages would be links and braces placeholders (SARIF 2.1.0, 3.11.5 and 3.11.6), so
that both are escaped.
"""

import hashlib
import json
import os
from pathlib import PurePath
from typing import Final
from urllib.parse import quote

from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.analysis.json_row import Row
from onnxmem.decisions.check.checking import Check, CheckedModel, Checkup
from onnxmem.errors import Finding, printable, shortened
from onnxmem.report.check.wording import UNCOVERED, UNMATCHED, rule_of, sentence
from onnxmem.report.notes import sentence as note
from onnxmem.version import __version__

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_RULES: Final = {
    "over-budget": "A model takes more memory than its budget.",
    "grew": "A model takes more memory than it did, by more than its budget allows.",
    "unknown": "Whether a model keeps its budget cannot be told.",
    "uncovered": "No budget is of a model.",
    "unmatched": "No model is of a budget.",
}
_LEVELS: Final = {Verdict.OVER: "error", Verdict.UNKNOWN: "warning"}
_ESCAPED: Final = str.maketrans({"[": r"\[", "]": r"\]", "\\": r"\\", "{": "{{", "}": "}}"})


def render(checkup: Checkup) -> str:
    """One run of one tool, in ASCII."""
    results = [
        _result(model, check)
        for model in checkup.models
        for check in model.checks
        if not check.outcome.is_met
    ]
    if not checkup.allows_uncovered:
        results += [
            _bare_result("uncovered", UNCOVERED, model.path) for model in checkup.uncovered()
        ]
    results += [
        _bare_result("unmatched", f"budget {budget.name}: {UNMATCHED} {budget.path}")
        for budget in checkup.unmatched
    ]
    told = [_notification(model, each) for model in checkup.models for each in model.findings]
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [_run(results, told)]}
    return json.dumps(log, indent=1) + "\n"


def _run(results: list[Row], told: list[Row]) -> Row:
    rules = [{"id": rule, "shortDescription": {"text": text}} for rule, text in _RULES.items()]
    driver = {"name": "onnxmem", "semanticVersion": __version__, "rules": rules}
    invocation = {"executionSuccessful": True, "toolExecutionNotifications": told}
    return {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [invocation],
        "results": results,
    }


def _notification(model: CheckedModel, finding: Finding) -> Row:
    """What a model's figures assume: no result, as it is no fault of the model's."""
    return {
        "descriptor": {"id": finding.code},
        "level": "note",
        "message": {"text": note(finding).translate(_ESCAPED)},
        "locations": [{"physicalLocation": {"artifactLocation": {"uri": _uri(model.path)}}}],
    }


def _result(model: CheckedModel, check: Check) -> Row:
    place: Row = {"physicalLocation": {"artifactLocation": {"uri": _uri(model.path)}}}
    if check.node is not None:
        node = shortened(check.node)
        place["logicalLocations"] = [{"fullyQualifiedName": node, "kind": "member"}]
    result = _bare_result(rule_of(check), sentence(check), model.path)
    return result | {
        "level": _LEVELS[check.outcome],
        "locations": [place],
        "partialFingerprints": {
            "onnxmemCheck/v1": _fingerprint(model.path, check.budget, check.figure)
        },
        "properties": {
            "budget": printable(check.budget),
            "figure": check.figure.value,
            "bytes": check.size_bytes,
            "limitBytes": check.limit_bytes,
            "baselineBytes": check.baseline_bytes,
        },
    }


def _bare_result(rule: str, message: str, path: str | None = None) -> Row:
    """A result with no more than a rule, a message and perhaps a file."""
    result: Row = {
        "ruleId": rule,
        "ruleIndex": list(_RULES).index(rule),
        "level": "warning",
        "message": {"text": printable(message).translate(_ESCAPED)},
    }
    if path is not None:
        result["locations"] = [{"physicalLocation": {"artifactLocation": {"uri": _uri(path)}}}]
    return result


def _uri(path: str) -> str:
    """A path as a URI reference: relative where the path is."""
    whole = PurePath(path)
    try:
        text = quote(os.fsencode(whole.as_posix()))
    except UnicodeEncodeError:
        # No file system has such a path.
        text = quote(printable(whole.as_posix()))
    return f"file://{'' if text.startswith('/') else '/'}{text}" if whole.is_absolute() else text


def _fingerprint(*parts: str) -> str:
    """What stays the same from run to run, whatever the bytes."""
    text = "\0".join(parts).encode(errors="surrogatepass")
    return hashlib.sha256(text).hexdigest()[:32]
