"""What a model's figures assume or leave out: its findings, with the same words in every report."""

from collections.abc import Iterable, Iterator
from typing import Final

from onnxmem.errors import Finding, printable, shortened
from onnxmem.report.lines import prose

_LONGEST: Final = 2000
"""Characters of a message, which may name a few long names."""


def sentence(finding: Finding) -> str:
    """Code, message and node on one line.

    >>> sentence(Finding("batch_fixed", "the batch is fixed", "conv"))
    'batch_fixed: the batch is fixed (conv)'
    """
    place = f" ({finding.node})" if finding.node else ""
    return f"{finding.code}: {shortened(finding.message + place, _LONGEST)}"


def note_lines(findings: Iterable[Finding], indent: str = "") -> Iterator[str]:
    """A paragraph for each finding: ``note: batch_fixed: ...``."""
    for finding in findings:
        yield from prose(f"{indent}note: ", sentence(finding))


def note_rows(findings: Iterable[Finding]) -> list[dict[str, object]]:
    """The findings in JSON."""
    return [
        {
            "code": each.code,
            "message": printable(each.message),
            "node": None if each.node is None else printable(each.node),
        }
        for each in findings
    ]
