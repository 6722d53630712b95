"""What every JSON document of the tool begins with, and how it is written."""

import json

from onnxmem.analysis.json_row import Row
from onnxmem.version import __version__


def document(schema: str, schema_version: str, content: Row) -> Row:
    """Put the contract that a document keeps and the tool that writes it before its content."""
    return {
        "schema": schema,
        "schema_version": schema_version,
        "tool": {"name": "onnxmem", "version": __version__},
        **content,
    }


def document_text(written: Row) -> str:
    """Write a document in ASCII: no name can reach a terminal as a command."""
    return json.dumps(written, indent=1) + "\n"
