"""A checkup as annotations of a GitHub workflow: a line for what is wrong, the summary last.

How values are escaped is the runner's rule (actions/toolkit, packages/core/src/command.ts):
``%``, carriage return and line feed everywhere, in properties also ``:`` and ``,``.
"""

import os
from collections.abc import Iterator

from onnxmem.decisions.check.checking import Checkup
from onnxmem.errors import printable
from onnxmem.report.check.wording import UNCOVERED, UNMATCHED, rule_of, sentence, summary
from onnxmem.report.notes import sentence as note


def render(checkup: Checkup) -> str:
    """An ``::error`` for each limit that is not known to be kept, a ``::notice`` for each note."""
    return "\n".join((*_annotations(checkup), summary(checkup))) + "\n"


def _annotations(checkup: Checkup) -> Iterator[str]:
    for model in checkup.models:
        for check in model.checks:
            if not check.outcome.is_met:
                yield _annotation("error", model.path, rule_of(check), sentence(check))
        if not model.is_covered:
            level = "notice" if checkup.allows_uncovered else "error"
            yield _annotation(level, model.path, "uncovered", UNCOVERED)
        for finding in model.findings:
            yield _annotation("notice", model.path, finding.code, note(finding))
    for budget in checkup.unmatched:
        message = f"budget {budget.name}: {UNMATCHED} {budget.path}"
        yield f"::error title=onnxmem unmatched::{_data(message)}"


def _annotation(level: str, path: str, rule: str, message: str) -> str:
    file = _property(path.replace(os.sep, "/"))
    return f"::{level} file={file},title={_property(f'onnxmem {rule}')}::{_data(message)}"


def _data(text: str) -> str:
    return printable(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
