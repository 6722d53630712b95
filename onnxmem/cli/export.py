"""``onnxmem export MODEL --format NAME``: what a model takes, in the format of another tool."""

import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final, TypeVar

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.analyzing import analyze
from onnxmem.cli.answers import refuse_two_answers
from onnxmem.cli.export_options import BINARY, OF_A_RUN, OF_A_SESSION
from onnxmem.cli.faults import tell
from onnxmem.cli.output import check_output, form_of
from onnxmem.cli.questions import questions_of
from onnxmem.cli.streaming import write_pieces
from onnxmem.cli.unused import refuse_unused_options
from onnxmem.collection.sources import STDIN, local_file, model_names, staged_stdin
from onnxmem.errors import EXIT_OK, UsageError, fault_of, shortened
from onnxmem.export.exporters import EXPORTERS
from onnxmem.settings import Settings
from onnxmem.units import plural

_CHUNK: Final = 1 << 16
"""Characters or bytes that are written at once: a piece may be a few."""
_Text = TypeVar("_Text", str, bytes)


def run(arguments: Namespace) -> int:
    """Analyse one model and write it."""
    refuse_two_answers(arguments)
    name = only_model(arguments, "export")
    _check(arguments)
    _refuse_unused(arguments)
    form_of(arguments.output, arguments.format, ())
    check_output(arguments.output, [name], force=arguments.force)
    try:
        with ExitStack() as stack:
            analysis = analyze(staged(name, stack), **questions_of(arguments))
            _write(replace(analysis, path=name), arguments)
            _tell_unknown(analysis, name, quiet=arguments.quiet)
    except Exception as error:  # noqa: BLE001 - every fault is told with the model's name
        return tell(fault_of(error), error, name)
    return EXIT_OK


def only_model(arguments: Namespace, command: str) -> str:
    """The one model that is named.

    :raises UsageError: there are several.
    """
    names = model_names(arguments.models)
    if len(names) > 1:
        message = f"{len(names)} models; {command} writes one at a time"
        raise UsageError(message)
    return names[0]


def staged(name: str, stack: ExitStack) -> str:
    """A file of this machine for a name, as long as the stack lasts."""
    if name == STDIN:
        return stack.enter_context(staged_stdin())
    return stack.enter_context(local_file(name))


def _check(arguments: Namespace) -> None:
    """Refuse what has no meaning, before any work.

    :raises UsageError: a training step in a format of a run, or bytes on a terminal.
    """
    if arguments.train and arguments.format in OF_A_RUN:
        message = f"--format {arguments.format} shows a run; leave --train out, or write chrome"
        raise UsageError(message)
    if arguments.format in BINARY and arguments.output is None and sys.stdout.isatty():
        message = f"--format {arguments.format} is no text; name a file: -o FILE"
        raise UsageError(message)


def _refuse_unused(arguments: Namespace) -> None:
    """Refuse flags that change nothing; some formats are of a session that no figure is of."""
    asked = questions_of(arguments)
    del asked["context"]
    if arguments.format in OF_A_SESSION:
        asked["runtimes"] = ("ort-cuda",)
    refuse_unused_options(arguments, Settings(**asked))


def _write(analysis: Analysis, arguments: Namespace) -> None:
    pieces = EXPORTERS[arguments.format](analysis)
    if arguments.format in BINARY:
        _write_bytes((piece for piece in pieces if isinstance(piece, bytes)), arguments)
    else:
        texts = (piece for piece in pieces if isinstance(piece, str))
        write_pieces(_chunks(texts, ""), arguments.output, quiet=arguments.quiet)


def _tell_unknown(analysis: Analysis, name: str, *, quiet: bool) -> None:
    """Say what was left out, once there is a file that lacks it: a fault is told in one line."""
    if analysis.coverage.unknown_tensors and not quiet:
        unknown = plural(len(analysis.coverage.unknown_tensors), "tensor")
        print(f"{shortened(name)}: {unknown} of unknown size left out", file=sys.stderr)


def _chunks(pieces: Iterator[_Text], nothing: _Text) -> Iterator[_Text]:
    """The pieces, many at once; the first are made at once, before there is a file."""

    def chunks() -> Iterator[_Text]:
        held: list[_Text] = []
        num_held = 0
        for piece in pieces:
            held.append(piece)
            num_held += len(piece)
            if num_held >= _CHUNK:
                yield nothing.join(held)
                held, num_held = [], 0
        yield nothing.join(held)

    made = chunks()
    return chain([next(made)], made)


def _write_bytes(pieces: Iterable[bytes], arguments: Namespace) -> None:
    """Write to the file asked for, or to stdout, whose reader may go away.

    :raises UsageError: the place cannot be written to.
    """
    data = b"".join(pieces)
    place = "stdout" if arguments.output is None else shortened(arguments.output)
    try:
        if arguments.output is None:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return
        Path(arguments.output).write_bytes(data)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    except OSError as fault:
        message = f"{place}: cannot be written: {fault.strerror}"
        raise UsageError(message) from fault
    if not arguments.quiet:
        print(f"Wrote {place}", file=sys.stderr)
