"""The flags of ``onnxmem explain``; nothing here is slow to import."""

from argparse import ArgumentParser

from onnxmem.cli.model_options import add_context_option, add_dims, add_shapes, add_values, dim
from onnxmem.cli.reorder_options import add_order_option
from onnxmem.cli.result_options import add_json_option, add_result_options
from onnxmem.cli.runtime_options import add_runtime_options
from onnxmem.cli.training_options import add_training_options


def explain_parser(parser_type: type[ArgumentParser]) -> ArgumentParser:
    """Make the parser of ``onnxmem explain``."""
    parser = parser_type(
        prog="onnxmem explain",
        usage="onnxmem explain [WHAT [MODEL]] [options]",
        description="Say what a figure, a code or an out-of-memory message means, and what a model "
        "says to it.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        help="a figure (held), a code (OM301, batch_fixed) or a message, quoted; - reads it from "
        "stdin (default: list them all)",
    )
    model = parser.add_argument_group("model")
    model.add_argument("model", nargs="?", metavar="MODEL", help="path of an .onnx file")
    model.add_argument("--batch", type=dim, metavar="N", help="samples at once")
    add_dims(model)
    add_shapes(model)
    add_values(model)
    add_training_options(parser)
    add_runtime_options(parser)
    add_order_option(parser)
    add_context_option(parser)
    add_json_option(add_result_options(parser))
    return parser
