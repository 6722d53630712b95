"""A checkup in six formats: text, JSON, a pull request's comment, annotations, SARIF and JUnit.

A ``Checkup`` comes in, a text goes out: ``FORMATS`` has a function for each format. What a limit
came to is one sentence, the same in all of them.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import PurePath
from types import MappingProxyType
from typing import Final
from urllib.parse import quote
from xml.etree import ElementTree as ET

from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.analysis.json_rows import JsonDict, document, document_text
from onnxmem.decisions.check.checking import Check, CheckedModel, Checkup, LimitedFigure
from onnxmem.errors import Finding, printable, shortened
from onnxmem.report.text import finding_lines, finding_rows, finding_text, prose, rounded
from onnxmem.report.verdict import error_text, verdict_text
from onnxmem.units import format_bytes, format_limit, plural
from onnxmem.version import __version__

_LONGEST_REASON: Final = 600
"""Characters of a reason, which may name a few long names."""
_UNCOVERED: Final = "no budget is of this model: give its path in one, or pass --allow-uncovered"
_UNMATCHED: Final = "no model matches the budget's path"

_PLURALS: Final = {
    Verdict.FITS: "fit",
    Verdict.TIGHT: "tight",
    Verdict.OVER: "do not fit",
    Verdict.UNKNOWN: "unknown",
}


def _rule_of(check: Check) -> str:
    """The stable word for what is wrong."""
    if check.outcome is Verdict.OVER:
        return "over-budget" if check.growth is None else "grew"
    return "unknown" if check.outcome is Verdict.UNKNOWN else "fits"


def _setting(check: Check) -> str:
    """The budget, and the batch at which it is checked: ``budget edge, batch 8``."""
    batch = "" if check.batch is None else f", batch {check.batch:,}"
    return f"budget {shortened(check.budget)}{batch}"


def _verdict(check: Check) -> str:
    """What the limit came to, without the figure: ``does not fit: 28 MiB over 128 MiB``."""
    if check.outcome is Verdict.UNKNOWN:
        return f"unknown: {shortened(check.reason, _LONGEST_REASON)}"
    bound = f" ({what})" if (what := _bound(check)) else ""
    if check.growth is not None:
        return f"{check.outcome}: {_grown(check)}, {check.growth} allowed{bound}"
    if check.outcome is Verdict.TIGHT and check.limit_bytes is not None:
        text = verdict_text(check.compared, check.limit_bytes)
        return f"{text}, of {format_limit(check.limit_bytes)}{bound}{_basis(check)}"
    over_bytes = check.over_bytes or 0
    side = "over" if over_bytes > 0 else "below"
    limit = format_limit(check.limit_bytes)
    return f"{check.outcome}: {format_bytes(abs(over_bytes))} {side} {limit}{bound}{_basis(check)}"


def _bound(check: Check) -> str:
    """What the figure bounds, or of which run it is; empty: it is that of every run."""
    bound = "a lower bound" if check.is_lower_bound else ""
    return check.observed or ("an upper bound" if check.is_upper_bound else bound)


def _grown(check: Check) -> str:
    """The growth against the baseline: ``grew by 1.00 KiB (+10.0 %) from 10.0 KiB``."""
    before_bytes = check.baseline_bytes or 0
    grown_bytes = (check.size_bytes or 0) - before_bytes
    verb = "shrank" if grown_bytes < 0 else "grew"
    percent = f" ({100 * grown_bytes / before_bytes:+.1f} %)" if before_bytes else ""
    return f"{verb} by {format_bytes(abs(grown_bytes))}{percent} from {format_bytes(before_bytes)}"


def _basis(check: Check) -> str:
    """What was compared, where a limit on memory does not say so itself."""
    return f", by {check.basis}" if check.basis and check.figure is LimitedFigure.TRAINING else ""


def _sentence(check: Check) -> str:
    """Figure, bytes, verdict, setting and what takes most."""
    size = ""
    if check.size_bytes is not None:
        size = f" {format_bytes(check.size_bytes)} ({check.size_bytes:,} B)"
    text = f"{check.figure}{size} {_verdict(check)} [{_setting(check)}]"
    where = _peak_text(check) if check.outcome is Verdict.OVER else ""
    return f"{text}; {where}" if where else text


def _peak_text(check: Check) -> str:
    """The node at the peak and the largest tensors there; ``""`` where neither is known."""
    node = "" if check.node is None else f"at node {shortened(check.node)}"
    largest = " + ".join(
        f"{shortened(each.label)} {format_bytes(each.size_bytes)}" for each in check.largest
    )
    live = f"most is taken by {largest}" if largest else ""
    return ", ".join(part for part in (node, live) if part)


def _summary(checkup: Checkup) -> str:
    """How many of what: ``2 models, 4 checks: 3 fit, 1 does not fit``."""
    counts = checkup.counts
    checked = sum(1 for _ in checkup.checks())
    models = f"{plural(len(checkup.models), 'model')}, {plural(checked, 'check')}"
    outcomes = [
        f"{count:,} {outcome if count == 1 else _PLURALS[outcome]}"
        for outcome, count in counts.items()
        if count
    ]
    return f"{models}: {', '.join(outcomes) or 'nothing was checked'}"


def as_text(checkup: Checkup) -> str:
    """Every model in order; the text ends with a newline."""
    lines: list[str] = []
    for model in checkup.models:
        lines += [*_model_lines(model, allows=checkup.allows_uncovered), ""]
    for budget in checkup.unmatched_budgets:
        name = f"budget {shortened(budget.name)}: "
        lines += [*prose(name, f"unknown: {_UNMATCHED} {shortened(budget.path)}"), ""]
    lines.append(f"{checkup.outcome.upper()}  {_summary(checkup)}")
    return "\n".join(lines) + "\n"


def _model_lines(model: CheckedModel, *, allows: bool) -> Iterator[str]:
    yield shortened(model.path)
    if not model.is_covered:
        yield from prose("  ", "no budget is of this model" if allows else f"unknown: {_UNCOVERED}")
    for name, checks in groupby(model.checks, key=_setting):
        yield f"  {name}"
        for check in checks:
            yield from _check_lines(check)
    yield from finding_lines(model.findings, "  ")


def _check_lines(check: Check) -> Iterator[str]:
    yield rounded(f"    {check.figure}", check.size_bytes, _verdict(check))
    if check.accuracy is not None and check.accuracy.percent != 0:
        yield from prose("      accuracy: ", error_text(check.accuracy))
    where = _peak_text(check) if check.outcome is Verdict.OVER else ""
    if where:
        yield from prose("      ", where)


_SCHEMA: Final = "onnxmem.check"
_SCHEMA_VERSION: Final = "1.0"


def as_json(checkup: Checkup) -> str:
    """Write the checkup in ASCII: no name can reach a terminal as a command."""
    counts = checkup.counts
    content: JsonDict = {
        "outcome": checkup.outcome.replace(" ", "_"),
        "counts": {outcome.replace(" ", "_"): count for outcome, count in counts.items()},
        "models": [_model_row(model) for model in checkup.models],
        "unmatched_budgets": [
            {"budget": printable(budget.name), "path": printable(budget.path)}
            for budget in checkup.unmatched_budgets
        ],
    }
    return document_text(document(_SCHEMA, _SCHEMA_VERSION, content))


def _model_row(model: CheckedModel) -> JsonDict:
    return {
        "path": printable(model.path),
        "covered": model.is_covered,
        "checks": [_check_row(check) for check in model.checks],
        "findings": finding_rows(model.findings),
    }


def _check_row(check: Check) -> JsonDict:
    growth = check.growth
    return {
        "budget": printable(check.budget),
        "figure": check.figure.replace(" ", "_"),
        "outcome": check.outcome.replace(" ", "_"),
        "rule": _rule_of(check),
        "batch": check.batch,
        "bytes": check.size_bytes,
        "limit_bytes": check.limit_bytes,
        "over_bytes": check.over_bytes,
        "baseline_bytes": check.baseline_bytes,
        "growth": None if growth is None else str(growth),
        "is_lower_bound": check.is_lower_bound,
        **({"is_upper_bound": True} if check.is_upper_bound else {}),
        **({"observed": check.observed} if check.observed else {}),
        "accuracy": None if check.accuracy is None else check.accuracy.row,
        "reason": printable(check.reason)[:_LONGEST_REASON] or None,
        "message": printable(_sentence(check)),
        "peak_node": check.node and printable(check.node),
        "largest": [
            {"tensor": printable(each.label), "bytes": each.size_bytes} for each in check.largest
        ],
    }


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


def as_markdown(checkup: Checkup) -> str:
    """A comment on a pull request: a table, and below it the largest tensors of what does not fit.

    The hidden marker on its first line lets an action find its own comment and write it again.
    GitHub refuses a comment of more than 65,536 characters, so that rows beyond a limit are only
    counted: what is wrong stands before what fits.
    """
    sign = _SIGNS[checkup.outcome]
    top = [MARKER, f"### {sign} onnxmem: {_summary(checkup)}", ""]
    rows = list(_table(checkup))
    details = _within(_largest(checkup), _MOST_DETAILS_BYTES)
    notes = _within(_findings(checkup), _MOST_DETAILS_BYTES)
    left_bytes = MOST_BYTES - _RESERVED_BYTES - _num_bytes((*top, *_HEAD, *details, *notes))
    shown = _within(rows, left_bytes)
    lines = [*top, *_HEAD, *shown] if rows else top
    if len(shown) < len(rows):
        lines += ["", f"{len(rows) - len(shown):,} more rows are in the JSON of this run."]
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


def _table(checkup: Checkup) -> Iterator[str]:
    found = [(model.path, check) for model in checkup.models for check in model.checks]
    for outcome in _ORDER:
        if outcome is Verdict.UNKNOWN:
            yield from _table_without(checkup)
        for path, check in found:
            if check.outcome is outcome:
                yield _table_row(path, check)


def _table_without(checkup: Checkup) -> Iterator[str]:
    """Models without a budget, and budgets without a model."""
    sign = _SIGNS[Verdict.FITS if checkup.allows_uncovered else Verdict.UNKNOWN]
    what = "no budget is of this model" if checkup.allows_uncovered else _UNCOVERED
    for model in checkup.uncovered():
        yield f"| {sign} | {code(model.path)} | | | | {what} |"
    for budget in checkup.unmatched_budgets:
        sign = _SIGNS[Verdict.UNKNOWN]
        yield f"| {sign} | {code(budget.path)} | {code(budget.name)} | | | {_UNMATCHED} |"


def _table_row(path: str, check: Check) -> str:
    batch = "" if check.batch is None else f", batch {check.batch:,}"
    size = "" if check.size_bytes is None else format_bytes(check.size_bytes)
    # A reason quotes names of the model; the other verdicts hold numbers alone.
    text = code(check.reason, 300) if check.outcome is Verdict.UNKNOWN else _verdict(check)
    budget = f"{code(check.budget)}{batch}"
    sign = _SIGNS[check.outcome]
    return f"| {sign} | {code(path)} | {budget} | {check.figure} | {size} | {text} |"


def _largest(checkup: Checkup) -> Iterator[str]:
    for model in checkup.models:
        for check in model.checks:
            if check.outcome is Verdict.OVER and check.largest:
                node = "" if check.node is None else f" at {code(check.node)}"
                yield f"- {code(model.path)}, {check.figure}{node}"
                for each in check.largest:
                    yield f"  - {format_bytes(each.size_bytes)} {code(each.label)}"


def _findings(checkup: Checkup) -> Iterator[str]:
    for model in checkup.models:
        for finding in model.findings:
            yield f"- {code(model.path)}: {code(finding_text(finding), _LONGEST_NOTE)}"


def _within(lines: Iterable[str], most_bytes: int) -> list[str]:
    """The first lines that together stay within bytes."""
    shown: list[str] = []
    for line in lines:
        most_bytes -= _num_bytes((line,))
        if most_bytes < 0:
            break
        shown.append(line)
    return shown


def _num_bytes(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def as_github(checkup: Checkup) -> str:
    """Annotations of a GitHub workflow, the summary last.

    An ``::error`` for each limit that is not known to be met, a ``::notice`` for each note.
    """
    return "\n".join((*_annotations(checkup), _summary(checkup))) + "\n"


def _annotations(checkup: Checkup) -> Iterator[str]:
    for model in checkup.models:
        for check in model.checks:
            if not check.outcome.is_met:
                yield _annotation("error", model.path, _rule_of(check), _sentence(check))
        if not model.is_covered:
            level = "notice" if checkup.allows_uncovered else "error"
            yield _annotation(level, model.path, "uncovered", _UNCOVERED)
        for finding in model.findings:
            yield _annotation("notice", model.path, finding.code, finding_text(finding))
    for budget in checkup.unmatched_budgets:
        message = f"budget {budget.name}: {_UNMATCHED} {budget.path}"
        yield f"::error title=onnxmem unmatched::{_data(message)}"


def _annotation(level: str, path: str, rule: str, message: str) -> str:
    file = _property(path.replace(os.sep, "/"))
    return f"::{level} file={file},title={_property(f'onnxmem {rule}')}::{_data(message)}"


# How values are escaped is the runner's rule (actions/toolkit, packages/core/src/command.ts,
# escapeData and escapeProperty): ``%``, carriage return and line feed everywhere, in properties
# also ``:`` and ``,``. ``printable`` has written carriage returns and line feeds out.
def _data(text: str) -> str:
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


_SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_SARIF_RULES: Final = {
    "over-budget": "A model takes more memory than its budget.",
    "grew": "A model takes more memory than it did, by more than its budget allows.",
    "unknown": "Whether a model keeps its budget cannot be told.",
    "uncovered": "No budget is of a model.",
    "unmatched": "No model is of a budget.",
}
_LEVELS: Final = {Verdict.OVER: "error", Verdict.UNKNOWN: "warning"}
# Brackets in messages would be links and braces placeholders (SARIF 2.1.0, 3.11.5 and 3.11.6).
_ESCAPED: Final = str.maketrans({"[": r"\[", "]": r"\]", "\\": r"\\", "{": "{{", "}": "}}"})


def as_sarif(checkup: Checkup) -> str:
    """SARIF 2.1.0 for code scanning, in ASCII: a result for each limit not known to be met.

    A model has no lines: a result's location is the file, and the node at the peak is a logical
    location.
    """
    results = [
        _result(model, check)
        for model in checkup.models
        for check in model.checks
        if not check.outcome.is_met
    ]
    if not checkup.allows_uncovered:
        results += [
            _bare_result("uncovered", _UNCOVERED, model.path) for model in checkup.uncovered()
        ]
    results += [
        _bare_result("unmatched", f"budget {budget.name}: {_UNMATCHED} {budget.path}")
        for budget in checkup.unmatched_budgets
    ]
    notes = [_notification(model, each) for model in checkup.models for each in model.findings]
    log = {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [_run(results, notes)]}
    return json.dumps(log, indent=1) + "\n"


def _run(results: list[JsonDict], notes: list[JsonDict]) -> JsonDict:
    rules = [
        {"id": rule, "shortDescription": {"text": text}} for rule, text in _SARIF_RULES.items()
    ]
    driver = {"name": "onnxmem", "semanticVersion": __version__, "rules": rules}
    invocation = {"executionSuccessful": True, "toolExecutionNotifications": notes}
    return {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [invocation],
        "results": results,
    }


def _notification(model: CheckedModel, finding: Finding) -> JsonDict:
    """What a model's figures assume: not a result, as the model is not at fault."""
    return {
        "descriptor": {"id": finding.code},
        "level": "note",
        "message": {"text": finding_text(finding).translate(_ESCAPED)},
        "locations": [_location(model.path)],
    }


def _result(model: CheckedModel, check: Check) -> JsonDict:
    location = _location(model.path)
    if check.node is not None:
        node = shortened(check.node)
        location["logicalLocations"] = [{"fullyQualifiedName": node, "kind": "member"}]
    result = _bare_result(_rule_of(check), _sentence(check), model.path)
    return result | {
        "level": _LEVELS[check.outcome],
        "locations": [location],
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


def _bare_result(rule: str, message: str, path: str | None = None) -> JsonDict:
    """A result with no more than a rule, a message and perhaps a file."""
    result: JsonDict = {
        "ruleId": rule,
        "ruleIndex": list(_SARIF_RULES).index(rule),
        "level": "warning",
        "message": {"text": printable(message).translate(_ESCAPED)},
    }
    if path is not None:
        result["locations"] = [_location(path)]
    return result


def _location(path: str) -> JsonDict:
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(path)}}}


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


_TAGS: Final = {Verdict.OVER: "failure", Verdict.UNKNOWN: "error"}


def as_junit(checkup: Checkup) -> str:
    """JUnit XML as Jenkins' xUnit reads it, in ASCII: a suite per model, a case per limit.

    What does not fit is a failure, what is unknown an error.
    """
    suites = ET.Element("testsuites", name="onnxmem")
    for model in checkup.models:
        suite = _suite(suites, model.path)
        for check in model.checks:
            _check_case(suite, model, check)
        if not model.is_covered:
            tag = "skipped" if checkup.allows_uncovered else "error"
            _outcome(_bare_case(suite, model.path, "budgets"), tag, "uncovered", _UNCOVERED)
        if model.findings:
            # The schema has it last in a suite.
            output = ET.SubElement(suite, "system-out")
            output.text = "\n".join(map(finding_text, model.findings))
    for budget in checkup.unmatched_budgets:
        suite = _suite(suites, f"budget {budget.name}")
        message = f"{_UNMATCHED} {budget.path}"
        _outcome(_bare_case(suite, budget.path, "models"), "error", "unmatched", message)
    for suite in suites:
        _count_cases(suite, [suite])
    _count_cases(suites, list(suites))
    ET.indent(suites, " ")
    written: bytes = ET.tostring(suites, encoding="us-ascii", xml_declaration=True)
    return written.decode() + "\n"


def _suite(suites: ET.Element, name: str) -> ET.Element:
    return ET.SubElement(suites, "testsuite", name=printable(name))


def _check_case(suite: ET.Element, model: CheckedModel, check: Check) -> None:
    case = _bare_case(suite, model.path, f"{check.figure} [{_setting(check)}]")
    if not check.outcome.is_met:
        _outcome(case, _TAGS[check.outcome], _rule_of(check), _sentence(check))


def _bare_case(suite: ET.Element, path: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", name=printable(name), classname=printable(path))


def _outcome(case: ET.Element, tag: str, rule: str, message: str) -> None:
    ET.SubElement(case, tag, type=rule, message=printable(message))


def _count_cases(element: ET.Element, suites: list[ET.Element]) -> None:
    """Set the numbers of cases, failures, errors and skipped ones."""
    for attribute, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
        element.set(attribute, str(sum(len(suite.findall(f".//{tag}")) for suite in suites)))
    if element.tag == "testsuite":
        element.set("skipped", str(len(element.findall(".//skipped"))))


FORMATS: Final[Mapping[str, Callable[[Checkup], str]]] = MappingProxyType(
    {
        "text": as_text,
        "json": as_json,
        "markdown": as_markdown,
        "github": as_github,
        "sarif": as_sarif,
        "junit": as_junit,
    }
)
