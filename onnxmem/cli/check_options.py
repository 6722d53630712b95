"""The flags of ``onnxmem check``; nothing here is slow to import."""

from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from typing import Final

from onnxmem.cli.model_options import add_dims, add_shapes, dim, size
from onnxmem.cli.result_options import add_result_options
from onnxmem.cli.training_options import add_training_options
from onnxmem.cli.verdict_options import add_verdict_options

FORMATS: Final = ("text", "json", "markdown", "github", "sarif", "junit")

_EPILOG: Final = """\
budgets, in pyproject.toml or onnxmem.toml of this folder or one above it:
  [[tool.onnxmem.budgets]]
  name = "edge"
  path = "models/edge/*.onnx"       # which models; without it all
  batch = 8                         # or dims = { seq = 128 }
  peak = "256 MiB"                  # weights, inputs and activations
  weights = "64 MiB"
  training = "2 GiB"                # the peak of a training step
  growth = "5%"                     # against the baseline
  baseline = "before.json"          # written by onnxmem MODEL --json -o FILE

exit codes: 0 all fit, 1 one does not fit, 2 wrong usage, configuration or a missing file,
3 one is unknown: it never passes
"""


def check_parser(parser_type: type[ArgumentParser]) -> ArgumentParser:
    """Make the parser of ``onnxmem check``."""
    parser = parser_type(
        prog="onnxmem check",
        usage="onnxmem check [PATH...] [options]",
        description="Hold models against budgets; the exit code tells whether all of them fit.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_models(parser)
    _add_budgets(parser)
    add_training_options(parser)
    _add_output(parser)
    parser.set_defaults(values=[])
    return parser


def _add_models(parser: ArgumentParser) -> None:
    model = parser.add_argument_group("models")
    model.add_argument(
        "models",
        nargs="*",
        metavar="PATH",
        help="files, folders, patterns (default: what the budgets' paths are of)",
    )
    model.add_argument("--batch", type=dim, metavar="N", help="samples at once")
    add_dims(model)
    add_shapes(model)
    model.add_argument(
        "--allow-uncovered", action="store_true", help="let models pass that no budget is of"
    )


def _add_budgets(parser: ArgumentParser) -> None:
    budget = parser.add_argument_group("budget")
    budget.add_argument("--config", metavar="FILE", help="budgets from this file")
    for name, what in (
        ("peak", "weights, inputs and activations"),
        ("weights", "weights alone"),
        ("training", "a training step, as --basis says"),
    ):
        budget.add_argument(
            f"--budget-{name}",
            type=size,
            metavar="SIZE",
            help=f"for {what}, in place of the configuration's budgets",
        )
    add_verdict_options(budget)
    budget.add_argument(
        "--max-growth", metavar="5%|SIZE", help="what peaks may grow by against the baseline"
    )
    budget.add_argument(
        "--baseline", metavar="FILE", help="what models took before: onnxmem MODEL --json -o FILE"
    )


def _add_output(parser: ArgumentParser) -> None:
    output = add_result_options(parser)
    output.add_argument(
        "--format", choices=FORMATS, help="default: by the ending of -o FILE, or text"
    )
    output.add_argument(
        "--also",
        type=_format_and_file,
        action="append",
        default=[],
        metavar="FORMAT=FILE",
        help="write another format to a file, too (repeatable)",
    )


def _format_and_file(text: str) -> tuple[str, str]:
    name, equals, file = text.partition("=")
    if name not in FORMATS or not (equals and file):
        message = f"{text!r} is not FORMAT=FILE, with one of {', '.join(FORMATS)}"
        raise ArgumentTypeError(message)
    return name, file
