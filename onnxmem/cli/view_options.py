"""The flags of HTML pages and of ``onnxmem view``; nothing here is slow to import."""

from argparse import ArgumentParser, _ArgumentGroup
from collections.abc import Callable


def add_page_options(parser: ArgumentParser) -> None:
    """Add the page that is written beside the result."""
    page = parser.add_argument_group("page")
    page.add_argument(
        "--html",
        metavar="FILE",
        help="write a page too: of one model its timeline, layers and figures at other batches, of "
        "several a chart",
    )
    _add_accuracy(page)


def view_parser(
    parser_type: type[ArgumentParser], add_options: Callable[[ArgumentParser], None]
) -> ArgumentParser:
    """Make the parser of ``onnxmem view``; ``add_options`` adds the flags of ``onnxmem MODEL``."""
    parser = parser_type(
        prog="onnxmem view",
        usage="onnxmem view MODEL... [options]",
        description="Show what a model takes as a page in the browser: one file, which needs no "
        "network. -o says where it stays; else it is a temporary file.",
        allow_abbrev=False,
    )
    add_options(parser)
    page = parser.add_argument_group("page")
    page.add_argument("--no-open", action="store_true", help="write the page, open no browser")
    _add_accuracy(page)
    return parser


def _add_accuracy(page: _ArgumentGroup) -> None:
    page.add_argument(
        "--accuracy",
        metavar="FILE.csv",
        help="of several models: a table of model and accuracy, which is then across the chart",
    )
