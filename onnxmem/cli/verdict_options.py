"""The flags of every command that gives a verdict on memory."""

from argparse import ArgumentParser, _ArgumentGroup

from onnxmem.settings import BASES


def add_verdict_options(group: ArgumentParser | _ArgumentGroup) -> None:
    """Add what a verdict compares, and which warnings it may disregard."""
    group.add_argument(
        "--basis",
        choices=BASES,
        help="what is compared: the tensors alone, or the process with its allocator and context "
        "(default: process with --train or --runtime)",
    )
    group.add_argument(
        "--accept",
        dest="accepted",
        action="append",
        default=[],
        metavar="CODE",
        help="give a verdict though this warning leaves it in doubt",
    )
