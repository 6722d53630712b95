"""The flags of ``onnxmem measure``; nothing here is slow to import."""

from argparse import ArgumentParser, ArgumentTypeError
from typing import Final

from onnxmem.cli.model_options import add_model_options, seconds, size
from onnxmem.cli.result_options import (
    add_json_option,
    add_report_options,
    add_result_options,
)
from onnxmem.runtimes.onnxruntime.session_options import LEVELS

_MOST_RUNS: Final = 10**6


def measure_parser(parser_type: type[ArgumentParser]) -> ArgumentParser:
    """Make the parser of ``onnxmem measure``."""
    parser = parser_type(
        prog="onnxmem measure",
        usage="onnxmem measure MODEL... [options]",
        description="Run a model in onnxruntime, in a process of its own, and say what it took.",
        allow_abbrev=False,
    )
    add_model_options(parser)
    _add_run_options(parser)
    _add_session_options(parser)
    add_report_options(parser)
    add_json_option(add_result_options(parser))
    return parser


def _add_run_options(parser: ArgumentParser) -> None:
    run = parser.add_argument_group("run")
    run.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    run.add_argument("--inputs", metavar="FILE.npz", help="real inputs: an array for each, by name")
    run.add_argument("--runs", type=_runs, default=3, metavar="N", help="how often (default: 3)")
    run.add_argument(
        "--timeout",
        type=seconds,
        default=300.0,
        metavar="SECONDS",
        help="of each process that runs the model (default: 300)",
    )
    run.add_argument(
        "--memory-limit",
        dest="memory_bytes",
        type=size,
        metavar="SIZE",
        help="of each such process, as in 4GiB (default: what is free)",
    )


def _add_session_options(parser: ArgumentParser) -> None:
    session = parser.add_argument_group("session of onnxruntime")
    session.add_argument(
        "--graph",
        choices=tuple(LEVELS),
        default="ort-all",
        metavar="LEVEL",
        help=f"optimisation: {', '.join(LEVELS)} (default: ort-all)",
    )
    session.add_argument(
        "--fixed-dims", action="store_true", help="open it with numbers for the symbolic dims"
    )
    session.add_argument("--no-mem-pattern", action="store_true", help="enable_mem_pattern=False")
    session.add_argument("--no-mem-reuse", action="store_true", help="enable_mem_reuse=False")


def _runs(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _MOST_RUNS):
        message = f"{text!r} is no number of runs"
        raise ArgumentTypeError(message)
    return int(text[:9])
