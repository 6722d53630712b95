"""The flags of many models: who works them out, what is kept, how they are summed up."""

from argparse import ArgumentParser, BooleanOptionalAction
from typing import Final

from onnxmem.cli.fit_options import add_devices_file
from onnxmem.cli.model_options import dim, seconds

FORMATS: Final = ("text", "json", "jsonl", "csv")


def add_registry_options(parser: ArgumentParser) -> None:
    """Add what matters where there are several models."""
    group = parser.add_argument_group(
        "many models",
        "MODEL may be a file, a folder, a pattern, @list.txt, - (stdin) or a URL of fsspec",
    )
    group.add_argument(
        "--jobs", type=dim, metavar="N", help="processes at once (default: one per core)"
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="give a model up that takes longer, with the process that works it out",
    )
    group.add_argument(
        "--cache", metavar="DIR", help="keep rows there, and take those that are there already"
    )
    group.add_argument(
        "--dask", metavar="ADDRESS", help="work on a dask.distributed cluster, as tcp://host:8786"
    )
    group.add_argument(
        "--format",
        choices=FORMATS,
        help="of the result (default: by the ending of -o FILE, or text); jsonl and csv: a line a "
        "model, as they come",
    )
    group.add_argument(
        "--summary",
        action=BooleanOptionalAction,
        help="as text: a line a model and a summary (default: of more than 10 models)",
    )
    group.add_argument(
        "--device",
        dest="places",
        action="append",
        default=[],
        metavar="NAME|SIZE",
        help="count the models that fit it (repeatable; default: common sizes of GPUs)",
    )
    add_devices_file(group)
    group.add_argument("--no-progress", action="store_true", help="no counter on a terminal")
