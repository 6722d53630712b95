"""The flags of ``onnxmem annotate``; nothing here is slow to import."""

from argparse import ArgumentParser

from onnxmem.cli.model_options import add_model_options
from onnxmem.cli.result_options import add_result_options
from onnxmem.cli.training_options import add_training_options


def annotate_parser(parser_type: type[ArgumentParser]) -> ArgumentParser:
    """Make the parser of ``onnxmem annotate``."""
    parser = parser_type(
        prog="onnxmem annotate",
        usage="onnxmem annotate MODEL -o FILE.onnx [options]",
        description="Write a copy of a model with its figures as metadata, which Netron shows. "
        "Nothing else is changed, and no weight is read.",
        allow_abbrev=False,
    )
    add_model_options(parser)
    add_training_options(parser)
    add_result_options(parser)
    return parser
