"""The flags of every command; nothing here is slow to import."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Final, NoReturn

from onnxmem.cli.model_options import add_context_option, add_model_options, size
from onnxmem.cli.registry_options import add_registry_options
from onnxmem.cli.reorder_options import add_order_option
from onnxmem.cli.result_options import (
    add_json_option,
    add_report_options,
    add_result_options,
)
from onnxmem.cli.runtime_options import add_runtime_options
from onnxmem.cli.training_options import add_training_options
from onnxmem.cli.verdict_options import add_verdict_options
from onnxmem.cli.view_options import add_page_options, view_parser
from onnxmem.errors import UsageError
from onnxmem.settings import BACKENDS

DEFAULT: Final = "analyze"
"""The command where none is named: ``onnxmem model.onnx``."""

_EPILOG = """\
commands:
  onnxmem [analyze] MODEL...   what a model takes (this help)
  onnxmem measure MODEL...     run it in onnxruntime and say what it took
  onnxmem view MODEL...        the same as a page in a browser
  onnxmem advise MODEL...      what would lower its memory, and how to meet a budget
  onnxmem check PATH...        hold models against budgets, for CI
  onnxmem diff A [B]           what changed between two models, settings or points in time
  onnxmem fit MODEL...         whether it fits a device, the largest batch, what limits it
  onnxmem devices [NAME...]    devices, and how fast a model can be on them
  onnxmem export MODEL         traces, tables, graphs and statistics for other tools
  onnxmem annotate MODEL       a copy of it with its figures as metadata, for Netron
  onnxmem explain WHAT [MODEL] what a figure, a code or an out-of-memory message means
  onnxmem reorder MODEL        a copy of it whose nodes run in an order that takes less
  onnxmem schema               print the JSON Schema of --json

exit codes: 0 ok, 1 a budget or gate failed, 2 wrong usage or no such file, 3 a model could not be
analysed (with --strict: or only in part), 70 a fault of onnxmem, 130 interrupted
"""


class _Parser(ArgumentParser):
    """A parser whose faults are told like any other."""

    def error(self, message: str) -> NoReturn:
        message = f"{message}; see {self.prog} --help"
        raise UsageError(message)


def _analyze_parser() -> ArgumentParser:
    parser = _Parser(
        prog="onnxmem",
        usage="onnxmem MODEL... [options]",
        description="Say how much memory an ONNX model takes, to run and to train.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_analyze_options(parser)
    add_page_options(parser)
    return parser


def _add_analyze_options(parser: ArgumentParser) -> None:
    add_model_options(parser)
    add_training_options(parser)
    add_runtime_options(parser)
    add_order_option(parser)
    _add_measuring_option(parser)
    add_context_option(parser)
    _add_budget_options(parser)
    add_report_options(parser)
    add_registry_options(parser)
    add_json_option(add_result_options(parser))


def _add_measuring_option(parser: ArgumentParser) -> None:
    measurement = parser.add_argument_group("measurement")
    measurement.add_argument(
        "--measure", choices=BACKENDS, help="run the model in onnxruntime too, in a child process"
    )


def _add_budget_options(parser: ArgumentParser) -> None:
    budget = parser.add_argument_group("budget")
    budget.add_argument(
        "--budget",
        dest="budget_bytes",
        type=size,
        metavar="SIZE",
        help="find the largest batch that fits, as in 24GiB; exit with 1 if this batch does not",
    )
    add_verdict_options(budget)


def _schema_parser() -> ArgumentParser:
    parser = _Parser(
        prog="onnxmem schema",
        usage="onnxmem schema [NAME]",
        description="Print the JSON Schema of what --json writes.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "name",
        nargs="?",
        default="report",
        metavar="NAME",
        help="report (the default), check, diff, fit, devices and so on",
    )
    return parser


def _parser_of(command: str) -> ArgumentParser:
    """Of a command whose flags are imported when it is the one that runs."""
    flags = import_module(f"onnxmem.cli.{command}_options")
    parser: ArgumentParser = getattr(flags, f"{command}_parser")(_Parser)
    return parser


_WITH_OWN_FLAGS: Final = (
    *("measure", "advise", "check", "diff", "fit", "devices", "export"),
    *("annotate", "explain", "reorder"),
)

PARSERS: Final[Mapping[str, Callable[[], ArgumentParser]]] = MappingProxyType(
    {
        DEFAULT: _analyze_parser,
        "view": lambda: view_parser(_Parser, _add_analyze_options),
        "schema": _schema_parser,
        **{command: partial(_parser_of, command) for command in _WITH_OWN_FLAGS},
    }
)
"""A parser for each command, by the name of the command and of its module."""
