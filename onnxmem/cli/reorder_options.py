"""The flags of the order of execution; nothing here is slow to import."""

from argparse import ArgumentParser

from onnxmem.cli.model_options import add_dims, add_shapes, dim
from onnxmem.cli.result_options import add_result_options
from onnxmem.settings import ORDERS


def add_order_option(parser: ArgumentParser) -> None:
    """Add the order that activations are counted in."""
    order = parser.add_argument_group("order of execution")
    order.add_argument(
        "--order",
        choices=ORDERS,
        default="file",
        help="count activations in this order: the file's, onnxruntime's own, or the best found",
    )


def reorder_parser(parser_type: type[ArgumentParser]) -> ArgumentParser:
    """Make the parser of ``onnxmem reorder``."""
    parser = parser_type(
        prog="onnxmem reorder",
        usage="onnxmem reorder MODEL [-o FILE.onnx] [options]",
        description="Write a model with its nodes in an order that takes less, weights untouched; "
        "without -o say what there is to gain.",
        allow_abbrev=False,
    )
    model = parser.add_argument_group("model")
    model.add_argument("model", metavar="MODEL", help="path of an .onnx file")
    model.add_argument("--batch", type=dim, metavar="N", help="samples at once")
    add_dims(model)
    add_shapes(model)
    add_result_options(parser)
    return parser
