"""A checkup as JUnit XML, as Jenkins' xUnit reads it: a suite per model, a case per limit."""

from typing import Final
from xml.etree import ElementTree as ET

from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.decisions.check.checking import Check, CheckedModel, Checkup
from onnxmem.errors import printable
from onnxmem.report.check.wording import UNCOVERED, UNMATCHED, rule_of, sentence, setting
from onnxmem.report.notes import sentence as note

_TAGS: Final = {Verdict.OVER: "failure", Verdict.UNKNOWN: "error"}


def render(checkup: Checkup) -> str:
    """What does not fit is a failure, what is unknown an error; the text is ASCII."""
    suites = ET.Element("testsuites", name="onnxmem")
    for model in checkup.models:
        suite = _suite(suites, model.path)
        for check in model.checks:
            _case(suite, model, check)
        if not model.is_covered:
            tag = "skipped" if checkup.allows_uncovered else "error"
            _told(_bare_case(suite, model.path, "budgets"), tag, "uncovered", UNCOVERED)
        if model.findings:
            # The schema has it last in a suite.
            output = ET.SubElement(suite, "system-out")
            output.text = "\n".join(map(note, model.findings))
    for budget in checkup.unmatched:
        suite = _suite(suites, f"budget {budget.name}")
        message = f"{UNMATCHED} {budget.path}"
        _told(_bare_case(suite, budget.path, "models"), "error", "unmatched", message)
    for suite in suites:
        _count(suite, [suite])
    _count(suites, list(suites))
    ET.indent(suites, " ")
    written: bytes = ET.tostring(suites, encoding="us-ascii", xml_declaration=True)
    return written.decode() + "\n"


def _suite(suites: ET.Element, name: str) -> ET.Element:
    return ET.SubElement(suites, "testsuite", name=printable(name))


def _case(suite: ET.Element, model: CheckedModel, check: Check) -> None:
    case = _bare_case(suite, model.path, f"{check.figure} [{setting(check)}]")
    if not check.outcome.is_met:
        _told(case, _TAGS[check.outcome], rule_of(check), sentence(check))


def _bare_case(suite: ET.Element, path: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", name=printable(name), classname=printable(path))


def _told(case: ET.Element, tag: str, rule: str, message: str) -> None:
    ET.SubElement(case, tag, type=rule, message=printable(message))


def _count(element: ET.Element, suites: list[ET.Element]) -> None:
    """Say how many cases there are, and how many of them went wrong."""
    for attribute, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
        element.set(attribute, str(sum(len(suite.findall(f".//{tag}")) for suite in suites)))
    if element.tag == "testsuite":
        element.set("skipped", str(len(element.findall(".//skipped"))))
