"""The command line: the only room that prints and the only one that exits.

A command's module is imported when the command runs: analysing needs onnx, which takes longer to
import than ``onnxmem --help`` should take to answer.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module

from onnxmem.children.safe_path import leave_current_folder_out
from onnxmem.cli.faults import tell
from onnxmem.cli.parsers import DEFAULT, PARSERS
from onnxmem.collecting import made_to_last
from onnxmem.errors import fault_of

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``analyze`` where none is named.

    Without arguments it is this process's own command, and nothing more is imported from the
    current folder. A program that calls it with some keeps its path.
    """
    if argv is None:
        leave_current_folder_out()
    words = list(sys.argv[1:] if argv is None else argv)
    command = words.pop(0) if words and words[0] in PARSERS else DEFAULT
    try:
        arguments = PARSERS[command]().parse_intermixed_args(words)
        return _imported(f"{__name__}.{command}")(arguments)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - every fault has a code
        return tell(fault_of(error), error)


def _imported(module: str) -> Callable[[Namespace], int]:
    """What runs a command."""
    if module not in sys.modules:
        with made_to_last():
            import_module(module)
    run: Callable[[Namespace], int] = sys.modules[module].run
    return run
