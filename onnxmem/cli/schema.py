"""``onnxmem schema [NAME]``: the JSON Schema of what a command writes."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from onnxmem.cli.output import write_stdout
from onnxmem.cli.parsing import Parser
from onnxmem.errors import EXIT_OK, UsageError, shortened

_SUFFIX: Final = ".schema.json"


def schema_parser() -> ArgumentParser:
    """The flags of ``onnxmem schema``."""
    parser = Parser("schema", "[NAME]", "Print the JSON Schema of what --json writes.", run)
    parser.add_argument(
        "name",
        nargs="?",
        default="report",
        metavar="NAME",
        help="report (the default), check, diff, fit, devices and so on",
    )
    return parser


def run(arguments: Namespace) -> int:
    """Print a schema that the package ships.

    :raises UsageError: there is none of that name.
    """
    known = _schemas()
    if arguments.name not in known:
        name = shortened(arguments.name)
        message = f"there is no schema {name!r}; choose one of {', '.join(sorted(known))}"
        raise UsageError(message)
    write_stdout(known[arguments.name].read_text(encoding="utf-8"))
    return EXIT_OK


def _schemas() -> Mapping[str, Traversable]:
    """Each schema by what it is of: ``report-1.0.schema.json`` is ``report``."""
    folder = files("onnxmem.report") / "schema"
    return {
        entry.name.partition("-")[0]: entry
        for entry in folder.iterdir()
        if entry.name.endswith(_SUFFIX)
    }
