"""The flags of ``onnxmem devices``; nothing here is slow to import."""

from argparse import ArgumentParser

from onnxmem.commands.fit_options import add_devices_file, add_output_options
from onnxmem.commands.model_options import dim, named_dim
from onnxmem.commands.training_options import add_training_options


def devices_parser(parser_type: type[ArgumentParser]) -> ArgumentParser:
    """Make the parser of ``onnxmem devices``."""
    parser = parser_type(
        prog="onnxmem devices",
        usage="onnxmem devices [NAME...] [options]",
        description="List devices, or bound the time that a model takes on each.",
        allow_abbrev=False,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="devices to list (default: all)")
    add_devices_file(parser)
    model = parser.add_argument_group("model")
    model.add_argument("--model", metavar="MODEL", help="bound its time by the roofline")
    model.add_argument("--batch", type=dim, metavar="N", help="samples at once")
    model.add_argument(
        "--dim",
        dest="dims",
        type=named_dim,
        action="append",
        default=[],
        metavar="NAME=N",
        help="a number for a symbolic dim (repeatable)",
    )
    add_training_options(parser)
    add_output_options(parser)
    return parser
