"""The JSON report: the contract ``onnxmem.report`` 1.0, additive within 1.x."""

from collections.abc import Iterable
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.json_rows import Failure, Row, document, document_text

SCHEMA: Final = "onnxmem.report"
SCHEMA_VERSION: Final = "1.0"


def report(entries: Iterable[Analysis | Failure], *, with_layers: bool = False) -> Row:
    """One row per model, in order; a failure is a row like any other."""
    content: Row = {
        "models": [
            entry.to_dict() if isinstance(entry, Failure) else entry.to_dict(layers=with_layers)
            for entry in entries
        ]
    }
    return document(SCHEMA, SCHEMA_VERSION, content)


def as_json(entries: Iterable[Analysis | Failure], *, with_layers: bool = False) -> str:
    """Write the report as JSON text in ASCII: no name can reach a terminal as a command."""
    return document_text(report(entries, with_layers=with_layers))
