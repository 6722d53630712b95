"""The command line: the only package that prints and the only one that exits.

A command's module is imported when the command runs: analysing needs onnx, which takes longer to
import than ``onnxmem --help`` should take to answer.
"""

import atexit
import gc
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final

from onnxmem.children.safe_path import leave_current_folder_out
from onnxmem.cli.faults import tell
from onnxmem.cli.parsers import DEFAULT, PARSERS
from onnxmem.errors import fault_of

__all__ = ["main"]

_OBJECTS_PER_COLLECTION: Final = 1_000_000
"""New objects after which the garbage collector of a command runs; Python's default is 700.

A graph of 100,000 nodes is a million objects that hold no cycles, and the default walks those that
are there again and again while more are made: a third of the time, to find nothing. One analysis
leaves at most about 1,000 objects in cycles, so many models in one process stay small.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``analyze`` where none is named.

    Without arguments it is this process's own command: nothing more is imported from the current
    folder, and the garbage collector runs rarely. A program that calls it with some keeps its path
    and its collector.
    """
    if argv is None:
        leave_current_folder_out()
        gc.set_threshold(_OBJECTS_PER_COLLECTION)
    words = list(sys.argv[1:] if argv is None else argv)
    command = words.pop(0) if words and words[0] in PARSERS else DEFAULT
    try:
        arguments = PARSERS[command]().parse_intermixed_args(words)
        run = _imported(f"{__name__}.{command}")
        if argv is None:
            _freeze()
        return run(arguments)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - every fault has a code
        return tell(fault_of(error), error)


def _imported(module: str) -> Callable[[Namespace], int]:
    """What runs a command."""
    run: Callable[[Namespace], int] = import_module(module).run
    return run


def _freeze() -> None:
    """Take modules and classes, cycles that live as long as the process, out of collections.

    Python collects once more as it ends: what is there by then is frozen as well.
    """
    gc.freeze()
    atexit.register(gc.freeze)
