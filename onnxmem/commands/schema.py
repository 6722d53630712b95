"""``onnxmem schema``: the JSON Schema of the report."""

from argparse import Namespace
from importlib.resources import files

from onnxmem.commands.output import write_stdout
from onnxmem.errors import EXIT_OK


def run(arguments: Namespace) -> int:  # noqa: ARG001 - a command like any other
    """Print the schema that the package ships."""
    schema = files("onnxmem.report") / "schema" / "report-1.0.schema.json"
    write_stdout(schema.read_text(encoding="utf-8"))
    return EXIT_OK
