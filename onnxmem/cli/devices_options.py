"""The flags of ``onnxmem devices``; nothing here is slow to import."""

from argparse import ArgumentParser

from onnxmem.cli.fit_options import add_devices_file
from onnxmem.cli.model_options import add_dims, dim
from onnxmem.cli.result_options import (
    add_colour_option,
    add_json_option,
    add_result_options,
)
from onnxmem.cli.training_options import add_training_options


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
    add_dims(model)
    add_training_options(parser)
    output = add_result_options(parser)
    add_json_option(output)
    add_colour_option(output)
    return parser
