"""The flags of ``onnxmem fit``; nothing here is slow to import."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter, _ArgumentGroup
from typing import Final

from onnxmem.cli.model_options import add_model_options, dim, named_dim, size
from onnxmem.cli.result_options import (
    add_colour_option,
    add_json_option,
    add_result_options,
)
from onnxmem.cli.runtime_options import add_session_options
from onnxmem.cli.training_options import add_training_options
from onnxmem.cli.verdict_options import add_verdict_options
from onnxmem.settings import RUNTIMES

_EPILOG: Final = """\
exit codes: 0 fits, if only tightly; 1 does not; 2 wrong usage or no such file; 3 unknown, known in
part alone, or known to be too low
"""


def fit_parser(parser_type: type[ArgumentParser]) -> ArgumentParser:
    """Make the parser of ``onnxmem fit``."""
    parser = parser_type(
        prog="onnxmem fit",
        usage="onnxmem fit MODEL... --device NAME|SIZE [options]",
        description="Say whether models fit a device, how far they go on it, and what limits them.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_device(parser)
    add_model_options(parser, named_dim_or_question)
    _add_context(parser)
    _add_runtime(parser)
    add_training_options(parser)
    output = add_result_options(parser)
    add_json_option(output)
    add_colour_option(output)
    return parser


def named_dim_or_question(text: str) -> tuple[str, int | None]:
    """Read ``NAME=N``, or ``NAME=?`` for the dim whose largest number is sought."""
    name, equals, number = text.rpartition("=")
    if name and equals and number == "?":
        return name, None
    return named_dim(text)


def _add_device(parser: ArgumentParser) -> None:
    device = parser.add_argument_group("device")
    device.add_argument("--device", metavar="NAME|SIZE", help="as in 'RTX 4090' or 24GiB")
    device.add_argument(
        "--which-device", action="store_true", help="rank all devices, the smallest that fits first"
    )
    add_devices_file(device)
    device.add_argument(
        "--reserve",
        dest="reserve_bytes",
        type=size,
        default=0,
        metavar="SIZE",
        help="memory to keep free",
    )
    device.add_argument(
        "--instances", type=dim, default=1, metavar="N", help="of each model (default: 1)"
    )
    device.add_argument(
        "--share-weights", action="store_true", help="instances of a model have its weights once"
    )


def add_devices_file(parser: ArgumentParser | _ArgumentGroup) -> None:
    """Add the flag of a user's own devices."""
    parser.add_argument(
        "--devices", dest="devices_file", metavar="FILE", help="a TOML file of more devices"
    )


def _add_context(parser: ArgumentParser) -> None:
    cache = parser.add_argument_group("language models")
    cache.add_argument(
        "--context",
        dest="contexts",
        type=contexts,
        action="extend",
        default=[],
        metavar="N[,N...]",
        help="tokens that the cache holds: the largest batch at each, to decode and to prefill",
    )


def contexts(text: str) -> list[int]:
    """Read positive numbers with commas between them."""
    return [dim(each.strip()) for each in text.split(",")]


def _add_runtime(parser: ArgumentParser) -> None:
    runtime = parser.add_argument_group("runtime")
    runtime.add_argument(
        "--runtime",
        choices=("none", *RUNTIMES),
        help="whose process counts (default or none: the tensors alone)",
    )
    runtime.add_argument(
        "--ask-onnxruntime",
        action="store_true",
        help="ask it for its graph, which takes seconds; else its optimiser is emulated",
    )
    add_session_options(runtime)
    add_verdict_options(runtime)
