"""The flags of ``onnxmem export``; nothing here is slow to import."""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import Final

from onnxmem.cli.model_options import add_model_options, dim, size
from onnxmem.cli.result_options import add_result_options
from onnxmem.cli.runtime_options import add_runtime_options
from onnxmem.cli.training_options import add_training_options

FORMATS: Final = (
    *("chrome", "torch-snapshot", "csv", "graphml", "dot"),
    *("ort-node-stats", "model-card", "metrics"),
)
OF_A_RUN: Final = frozenset({"csv", "graphml", "dot", "ort-node-stats"})
"""Those that show nothing of a training step."""
OF_A_SESSION: Final = frozenset({"ort-node-stats"})
"""Those of an optimised graph, whatever the figures are of."""
BINARY: Final = frozenset({"torch-snapshot"})

_EPILOG: Final = """\
formats:
  chrome          trace of bytes and nodes, for ui.perfetto.dev and chrome://tracing
  torch-snapshot  snapshot for PyTorch's memory viewer, pytorch.org/memory_viz
  csv             a row for every node
  graphml, dot    the DAG with its bytes, for yEd, Gephi, networkx, Graphviz
  ort-node-stats  what onnxruntime's session.resource_cuda_partitioning_settings reads
  model-card      a block of markdown
  metrics         a flat JSON object, for an experiment tracker
"""


def export_parser(parser_type: type[ArgumentParser]) -> ArgumentParser:
    """Make the parser of ``onnxmem export``."""
    parser = parser_type(
        prog="onnxmem export",
        usage="onnxmem export MODEL --format NAME [options]",
        description="Write what a model takes in the format of another tool.",
        epilog=_EPILOG,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_model_options(parser)
    parser.add_argument(
        "--format", choices=FORMATS, required=True, metavar="NAME", help="see below"
    )
    add_training_options(parser)
    add_runtime_options(parser)
    _add_questions(parser)
    add_result_options(parser)
    return parser


def _add_questions(parser: ArgumentParser) -> None:
    asked = parser.add_argument_group("budget and context")
    asked.add_argument(
        "--budget",
        dest="budget_bytes",
        type=size,
        metavar="SIZE",
        help="find the largest batch that fits, as in 24GiB: among the metrics",
    )
    asked.add_argument(
        "--context",
        type=dim,
        metavar="N",
        help="tokens that a language model's cache holds after a decode step",
    )
