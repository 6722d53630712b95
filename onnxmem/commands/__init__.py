"""The command line: the only room that prints and the only one that exits.

A command's module is imported when the command runs: analysing needs onnx, which takes longer to
import than ``onnxmem --help`` should take to answer.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module

from onnxmem.collecting import without_collection, without_last_collection
from onnxmem.commands.faults import tell
from onnxmem.commands.parsers import DEFAULT, PARSERS
from onnxmem.faults import fault_of

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``analyze`` where none is named."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = words.pop(0) if words and words[0] in PARSERS else DEFAULT
    without_last_collection()
    try:
        arguments = PARSERS[command]().parse_intermixed_args(words)
        # A tenth of the time to import: classes are cycles, and none of them dies.
        with without_collection():
            run: Callable[[Namespace], int] = import_module(f"{__name__}.{command}").run
        return run(arguments)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - every fault has a code
        return tell(fault_of(error), error)
