"""A result that is written piece by piece, as it comes."""

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

from onnxmem.errors import UsageError, shortened
from onnxmem.report.text import legible


def write_pieces(pieces: Iterable[str], path: str | None, *, quiet: bool) -> None:
    """Write each piece and flush it: to a file, which is named at the end, or to stdout.

    A reader of stdout that has gone away ends the work, and is no fault.

    :raises UsageError: the place cannot be written to.
    """
    with writing(path, quiet=quiet) as write:
        for piece in pieces:
            if not write(piece):
                return


@contextmanager
def writing(path: str | None, *, quiet: bool) -> Iterator[Callable[[str], bool]]:
    """A function that writes a piece and flushes it; false: the reader of stdout has gone away.

    :raises UsageError: the place cannot be written to.
    """
    place = "stdout" if path is None else shortened(path)
    with ExitStack() as stack:
        stream = sys.stdout if path is None else stack.enter_context(_opened(path, place))
        if isinstance(stream, io.TextIOWrapper):
            # A name that the terminal's encoding lacks must not cost the report.
            stream.reconfigure(errors="backslashreplace")
        yield lambda piece: _is_written(piece, stream, place)
    if path is not None and not quiet:
        print(f"Wrote {place}", file=sys.stderr)


@contextmanager
def _opened(path: str, place: str) -> Iterator[TextIO]:
    try:
        stream = Path(path).open("w", encoding="utf-8", newline="\n")  # noqa: SIM115
    except OSError as fault:
        message = f"{place}: cannot be written: {fault.strerror}"
        raise UsageError(message) from fault
    try:
        yield stream
    finally:
        # Each piece was flushed: what is left is one that could not be written, which was told.
        with suppress(OSError):
            stream.close()


def _is_written(piece: str, stream: TextIO, place: str) -> bool:
    try:
        stream.write(legible(piece, stream.encoding))
        stream.flush()
    except OSError as fault:
        if stream is sys.stdout:
            # Python flushes once more at exit, which would complain again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if isinstance(fault, BrokenPipeError):
            return False
        message = f"{place}: cannot be written: {fault.strerror}"
        raise UsageError(message) from fault
    return True
