"""The flags of where a result goes and how it looks."""

from argparse import ArgumentParser, _ArgumentGroup

from onnxmem.version import __version__


def add_result_options(parser: ArgumentParser) -> _ArgumentGroup:
    """Add the file that a result goes to; returns the group, for what one command alone writes."""
    output = parser.add_argument_group("output")
    output.add_argument("-o", "--output", metavar="FILE", help="write to a file")
    output.add_argument("--force", action="store_true", help="overwrite a file that exists")
    output.add_argument("-q", "--quiet", action="store_true", help="no remarks on stderr")
    output.add_argument("-V", "--version", action="version", version=f"onnxmem {__version__}")
    return output


def add_json_option(output: _ArgumentGroup) -> None:
    """Add JSON as the other form of a result."""
    output.add_argument(
        "--json", action="store_true", help="write JSON instead of text, as -o FILE.json does"
    )


def add_colour_option(output: ArgumentParser | _ArgumentGroup) -> None:
    """Add whether text is coloured."""
    output.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colour the text; auto: on a terminal, unless NO_COLOR is set",
    )


def add_report_options(parser: ArgumentParser) -> None:
    """Add what a report holds, and how it is shown."""
    report = parser.add_argument_group("report")
    report.add_argument("--layers", action="store_true", help="add a row for every node")
    report.add_argument(
        "--strict", action="store_true", help="exit with 3 if anything is left out of a figure"
    )
    add_colour_option(report)
