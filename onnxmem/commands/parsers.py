"""The flags of every command; nothing here is slow to import."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NoReturn

from onnxmem.commands.advise_options import advise_parser
from onnxmem.commands.annotate_options import annotate_parser
from onnxmem.commands.check_options import check_parser
from onnxmem.commands.devices_options import devices_parser
from onnxmem.commands.diff_options import diff_parser
from onnxmem.commands.explain_options import explain_parser
from onnxmem.commands.export_options import export_parser
from onnxmem.commands.fit_options import fit_parser
from onnxmem.commands.measure_options import add_measure_options
from onnxmem.commands.model_options import add_model_options, dim, size
from onnxmem.commands.registry_options import add_registry_options
from onnxmem.commands.reorder_options import add_order_option, reorder_parser
from onnxmem.commands.result_options import (
    add_colour_option,
    add_json_option,
    add_result_options,
)
from onnxmem.commands.runtime_options import add_runtime_options
from onnxmem.commands.training_options import add_training_options
from onnxmem.commands.view_options import add_page_options, view_parser
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
    _add_context_option(parser)
    _add_budget_options(parser)
    _add_report_options(parser)
    add_registry_options(parser)
    _add_output_options(parser)


def _add_measuring_option(parser: ArgumentParser) -> None:
    measurement = parser.add_argument_group("measurement")
    measurement.add_argument(
        "--measure", choices=BACKENDS, help="run the model in onnxruntime too, in a child process"
    )


def _add_context_option(parser: ArgumentParser) -> None:
    cache = parser.add_argument_group("language models")
    cache.add_argument(
        "--context",
        type=dim,
        metavar="N",
        help="tokens that the cache holds: a decode step after N - 1, and a prefill of N",
    )


def _add_budget_options(parser: ArgumentParser) -> None:
    budget = parser.add_argument_group("budget")
    budget.add_argument(
        "--budget",
        dest="budget_bytes",
        type=size,
        metavar="SIZE",
        help="find the largest batch that fits, as in 24GiB or 512MiB",
    )


def _add_report_options(parser: ArgumentParser) -> None:
    report = parser.add_argument_group("report")
    report.add_argument("--layers", action="store_true", help="add a row for every node")
    report.add_argument(
        "--strict", action="store_true", help="exit with 3 if anything is left out of a figure"
    )
    add_colour_option(report)


def _add_output_options(parser: ArgumentParser) -> None:
    add_json_option(add_result_options(parser))


def _measure_parser() -> ArgumentParser:
    parser = _Parser(
        prog="onnxmem measure",
        usage="onnxmem measure MODEL... [options]",
        description="Run a model in onnxruntime, in a process of its own, and say what it took.",
        allow_abbrev=False,
    )
    add_model_options(parser)
    add_measure_options(parser)
    _add_report_options(parser)
    _add_output_options(parser)
    return parser


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


PARSERS: Final[Mapping[str, Callable[[], ArgumentParser]]] = MappingProxyType(
    {
        DEFAULT: _analyze_parser,
        "measure": _measure_parser,
        "view": lambda: view_parser(_Parser, _add_analyze_options),
        "advise": lambda: advise_parser(_Parser),
        "check": lambda: check_parser(_Parser),
        "diff": lambda: diff_parser(_Parser),
        "fit": lambda: fit_parser(_Parser),
        "devices": lambda: devices_parser(_Parser),
        "export": lambda: export_parser(_Parser),
        "annotate": lambda: annotate_parser(_Parser),
        "explain": lambda: explain_parser(_Parser),
        "reorder": lambda: reorder_parser(_Parser),
        "schema": _schema_parser,
    }
)
"""A parser for each command, by the name of the command and of its module."""
