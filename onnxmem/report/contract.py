"""The JSON report: the contract ``onnxmem.report`` 1.0, additive within 1.x."""

import json
from collections.abc import Iterable
from typing import Final

from onnxmem.analysis import Analysis
from onnxmem.analysis.json_row import Failure, Row
from onnxmem.version import __version__

SCHEMA: Final = "onnxmem.report"
SCHEMA_VERSION: Final = "1.0"


def report(entries: Iterable[Analysis | Failure], *, with_layers: bool = False) -> Row:
    """One row per model, in order; a failure is a row like any other."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "onnxmem", "version": __version__},
        "models": [
            entry.to_dict() if isinstance(entry, Failure) else entry.to_dict(layers=with_layers)
            for entry in entries
        ],
    }


def as_json(entries: Iterable[Analysis | Failure], *, with_layers: bool = False) -> str:
    """Write the report as JSON text in ASCII: no name can reach a terminal as a command."""
    return json.dumps(report(entries, with_layers=with_layers), indent=1) + "\n"
