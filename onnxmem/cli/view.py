"""``onnxmem view MODEL...``: the page of a model, opened in the browser."""

import sys
import tempfile
import webbrowser
from argparse import Namespace
from pathlib import Path

from onnxmem.cli import analyze
from onnxmem.errors import UsageError, shortened


def run(arguments: Namespace) -> int:
    """Write the page as ``onnxmem MODEL --html`` does, without the text, and open it."""
    if arguments.json or arguments.format:
        message = "view shows a page; onnxmem MODEL --html FILE writes one beside another form"
        raise UsageError(message)
    place = arguments.output or _temporary(arguments.models)
    arguments.html, arguments.output, arguments.format = place, None, "nothing"
    code = analyze.run(arguments)
    if not arguments.no_open and not webbrowser.open(Path(place).absolute().as_uri()):
        hint = "open it yourself, or pass -o FILE for another place"
        print(
            f"no browser could be opened; the page is {shortened(place)}; {hint}", file=sys.stderr
        )
    return code


def _temporary(models: list[str]) -> str:
    """A file in a folder of its own, named like the model; the system tidies it up."""
    stem = Path(models[0]).stem if len(models) == 1 else ""
    safe = "".join(char if char.isalnum() else "-" for char in stem[:60]).strip("-")
    return str(Path(tempfile.mkdtemp(prefix="onnxmem-")) / f"{safe or 'models'}.html")
