"""The flags of ``onnxmem diff``; nothing here is slow to import."""

from argparse import ArgumentParser

from onnxmem.cli.model_options import (
    add_sized_models,
    dim,
    named_dim,
    named_shape,
    size,
)
from onnxmem.cli.result_options import add_json_option, add_result_options
from onnxmem.cli.training_options import add_training_options
from onnxmem.cli.verdict_options import add_verdict_options
from onnxmem.settings import OPTIMIZERS, PRECISIONS


def diff_parser(parser_type: type[ArgumentParser]) -> ArgumentParser:
    """Make the parser of ``onnxmem diff``."""
    parser = parser_type(
        prog="onnxmem diff",
        usage="onnxmem diff A [B] [options]",
        description="Say what changed between two models, two settings (--b-batch 8), or a report "
        "saved by onnxmem MODEL --json -o FILE and a model now.",
        allow_abbrev=False,
    )
    add_sized_models(parser)
    parser.set_defaults(values=[])
    add_training_options(parser)
    _add_own_options(parser)
    _add_output(parser)
    return parser


def _add_own_options(parser: ArgumentParser) -> None:
    own = parser.add_argument_group("setting of B, where it differs from A's")
    own.add_argument("--b-batch", type=dim, metavar="N")
    for flag, kind, shown in (
        ("dim", named_dim, "NAME=N"),
        ("shape", named_shape, "INPUT:1,3,224,224"),
    ):
        own.add_argument(
            f"--b-{flag}", dest=f"b_{flag}s", type=kind, action="append", default=[], metavar=shown
        )
    own.add_argument("--b-optimizer", choices=OPTIMIZERS, metavar="NAME")
    own.add_argument("--b-precision", choices=PRECISIONS, metavar="NAME")
    own.add_argument("--b-checkpoint", metavar="HOW")


def _add_output(parser: ArgumentParser) -> None:
    output = add_result_options(parser)
    output.add_argument(
        "--budget",
        dest="budget_bytes",
        type=size,
        metavar="SIZE",
        help="whether both sides fit in this; exit with 1 if B does not, with 3 if that is unknown",
    )
    add_verdict_options(output)
    output.add_argument(
        "--fail-on-growth",
        metavar="PERCENT",
        help="exit with 1 if weights or a peak grew by more than this, as in 5%%",
    )
    add_json_option(output)
    output.add_argument("--html", metavar="FILE", help="write a page too: timelines, bars, layers")
