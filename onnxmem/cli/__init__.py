"""The command line: the only package that prints and the only one that exits.

The words of a command come in, a result on stdout and an exit code go out. Begin with ``main`` and
the module of a command, which has its flags and what runs it; ``options`` and ``output`` are
shared. A command's module imports what works on models where it runs: onnx takes longer to import
than ``onnxmem --help`` should take to answer.
"""

import atexit
import gc
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import takewhile
from types import MappingProxyType
from typing import Final

from onnxmem.children.safe_path import leave_current_folder_out
from onnxmem.cli.output import WAITING, open_closed_streams, report_fault
from onnxmem.cli.parsing import Parser
from onnxmem.errors import UsageError, fault_of, nearest, shortened

COMMANDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "analyze": "analyze",
        "view": "analyze",
        "annotate": "rewrite",
        "reorder": "rewrite",
        **{
            name: name
            for name in (
                *("advise", "check", "devices", "diff", "explain", "export", "fit", "measure"),
                *("schema", "simulate", "sweep"),
            )
        },
    }
)
"""Each command's module, which has its parser, ``NAME_parser``; the parser says what runs it."""
_DEFAULT: Final = "analyze"
"""The command where none is named: ``onnxmem model.onnx``."""
HELP: Final = "help"
"""The word before a command whose help is requested."""
COMPLETING: Final = "_ARGCOMPLETE"
"""The variable of a shell that completes a line: the number of words before the arguments."""

_PATH: Final = frozenset("/\\*@:[")
_OBJECTS_PER_COLLECTION: Final = 2_000_000
"""New objects after which the garbage collector of a command runs; Python's default is 700.

A graph of 100,000 nodes, or of 50,000 with a subgraph in every block, is up to two million objects
that hold no cycles, and the default walks those that are there again and again while more are made:
a third of the time, to find nothing. One analysis leaves few objects in cycles, so many models in
one process stay small.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``analyze`` where none is named.

    Without arguments it is this process's own command: nothing more is imported from the current
    folder, and the garbage collector runs rarely. A program that calls it with some keeps its path
    and its collector.
    """
    if argv is None:
        open_closed_streams()
        leave_current_folder_out()
        gc.set_threshold(_OBJECTS_PER_COLLECTION)
        if COMPLETING in os.environ:
            import_module(f"{__name__}.completion").complete(parser_of)
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        command, words = _command(words)
        arguments = parser_of(command).parse_command(words)
        if argv is None:
            _freeze()
            if not (getattr(arguments, "quiet", False) or getattr(arguments, "no_progress", False)):
                WAITING.start(f"onnxmem {command}")
        run: Callable[[Namespace], int] = arguments.run
        return run(arguments)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - every fault has a code
        return report_fault(fault_of(error), error)
    finally:
        WAITING.stop()


def parser_of(command: str) -> Parser:
    """The parser of a command, whose module is imported for it."""
    module = import_module(f"{__name__}.{COMMANDS[command]}")
    parser: Parser = getattr(module, f"{command}_parser")()
    parser.commands_with = _commands_with
    return parser


def _commands_with(flag: str) -> list[str]:
    """The commands that have a flag; ``view`` has those of a report."""
    parsers = (parser_of(command) for command in COMMANDS if command != "view")
    having = (parser.prog for parser in parsers if flag in parser.flags)
    return ["onnxmem MODEL" if prog == "onnxmem" else prog for prog in having]


def _command(words: list[str]) -> tuple[str, list[str]]:
    """The command of a command line, and what follows it; ``help COMMAND`` is its ``--help``.

    :raises UsageError: its first word is neither a command nor a file, but like a command.
    """
    first = words[0] if words else ""
    if first == HELP:
        command, rest = _command(words[1:])
        if words[1:] and words[1] not in COMMANDS and not words[1].startswith("-"):
            message = f"{shortened(words[1])}: no command of that name; see onnxmem --help"
            raise UsageError(message)
        return command, ["--help", *rest]
    if first in COMMANDS:
        return first, words[1:]
    if first.isalpha() and not os.path.lexists(first):
        hint = nearest(first, [*COMMANDS, HELP])
        if hint:
            message = f"{first}: no command or file of that name; {hint}see onnxmem --help"
            raise UsageError(message)
    asked = list(takewhile(lambda word: not word.startswith("-"), words))
    if len(" ".join(asked).split()) > 1 and not any(map(_is_path, asked)):
        question = shortened(shlex.quote(" ".join(asked)))
        message = f"{shortened(first)}: no such file or command; to ask: onnxmem explain {question}"
        raise UsageError(message)
    return _DEFAULT, words


def _is_path(word: str) -> bool:
    """Whether a word is a file or written like one: a path, a pattern, a list, an address."""
    return os.path.lexists(word) or word.endswith(".onnx") or not _PATH.isdisjoint(word)


def _freeze() -> None:
    """Take modules and classes, cycles that live as long as the process, out of collections.

    Python collects once more as it ends: what is there by then is frozen as well.
    """
    gc.freeze()
    atexit.register(gc.freeze)
