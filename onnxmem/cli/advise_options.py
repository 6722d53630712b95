"""The flags of ``onnxmem advise``; nothing here is slow to import."""

from argparse import ArgumentParser
from typing import Final

from onnxmem.cli.model_options import add_model_options, size
from onnxmem.cli.result_options import add_json_option, add_result_options
from onnxmem.cli.runtime_options import add_runtime_options
from onnxmem.cli.training_options import add_training_options
from onnxmem.cli.verdict_options import add_verdict_options

EMITTED: Final = ("python", "json", "triton")


def advise_parser(parser_type: type[ArgumentParser]) -> ArgumentParser:
    """Make the parser of ``onnxmem advise``."""
    parser = parser_type(
        prog="onnxmem advise",
        usage="onnxmem advise MODEL... [options]",
        description="Work out what would lower a model's memory, what it saves and what it costs.",
        allow_abbrev=False,
    )
    add_model_options(parser)
    advice = parser.add_argument_group("advice")
    advice.add_argument(
        "--budget",
        dest="budget_bytes",
        type=size,
        metavar="SIZE",
        help="find what meets it, alone or together, as in 24GiB or 512MiB",
    )
    add_verdict_options(advice)
    advice.add_argument(
        "--emit",
        choices=EMITTED,
        help="write the settings that meet the budget (or the best) as onnxruntime's Python, a "
        "settings file, or lines of Triton's config.pbtxt",
    )
    add_training_options(parser)
    add_runtime_options(parser)
    add_json_option(add_result_options(parser))
    return parser
