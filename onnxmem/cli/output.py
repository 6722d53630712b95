"""Where a result goes: stdout, or a file that is not overwritten unasked; faults go to stderr.

The form of a result follows from a flag or from the file's ending. A result may be written piece by
piece; a reader of stdout that goes away ends the work, and is not a fault.

Every command imports this module: what takes milliseconds to import (pathlib: 5) is imported where
it is used.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Final, TextIO

from onnxmem.errors import Fault, UsageError, printable, shortened
from onnxmem.files import is_stream, reason_of, remove_stale_parts, replaced

if TYPE_CHECKING:
    import threading

_FORMS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        ".csv": ("csv",),
        ".dot": ("dot",),
        ".graphml": ("graphml",),
        ".htm": ("html",),
        ".html": ("html",),
        ".json": ("json", "sarif"),
        ".jsonl": ("jsonl",),
        ".markdown": ("markdown",),
        ".md": ("markdown",),
        ".ndjson": ("jsonl",),
        ".sarif": ("sarif",),
        ".xml": ("junit",),
    }
)
"""What a file of each ending may hold; the first is what it holds where no flag says.

Formats of ``onnxmem export`` name their endings themselves (``cli/export.py``).
"""
_STDERR: Final = 2
_LINE: Final = 79
"""Characters of a line that a terminal does not wrap: a wrapped one cannot be rewritten."""
_LONGEST: Final = 2000
"""Characters of a message, which may name a few long names."""


def form_of(path: str | None, requested: str | None, known: Iterable[str]) -> str:
    """The form of a result: the one a flag names, else the one of the file's ending, else text.

    :raises UsageError: the two contradict each other, or this command has no such form.
    """
    from pathlib import Path

    forms = () if path is None else _FORMS.get(Path(path).suffix.lower(), ())
    if path is None or not forms or requested in forms:
        return requested or "text"
    if requested is not None:
        message = f"{shortened(path)}: its ending says {forms[0]}, a flag {requested}; choose one"
        raise UsageError(message)
    known = tuple(known)
    if forms[0] not in known:
        message = f"{shortened(path)}: {forms[0]} is not written here, only {', '.join(known)}"
        raise UsageError(message)
    return forms[0]


def settle_json(arguments: Namespace, others: Iterable[str] = ()) -> str:
    """The form of a command that writes text or JSON; ``json`` is set where it is the one."""
    requested = "json" if arguments.json else None
    form = form_of(arguments.output, requested, ("text", "json", *others))
    arguments.json = form == "json"
    return form


def check_output(path: str | None, models: Iterable[str], *, force: bool) -> None:
    """Refuse a file that cannot be written or is a model, before any work is done for it."""
    from pathlib import Path

    if path is None:
        return
    if any(_is_same_file(path, model) for model in models):
        message = f"{shortened(path)}: is a model; choose another file for the result"
        raise UsageError(message)
    if os.path.lexists(path) and not force and not is_stream(path):
        message = f"{shortened(path)}: exists; pass --force to overwrite it"
        raise UsageError(message)
    if os.path.isdir(path):
        message = f"{shortened(path)}: is a folder; name a file in it"
        raise UsageError(message)
    if not Path(path).parent.is_dir():
        message = f"{shortened(path)}: its folder does not exist"
        raise UsageError(message)


def refuse_same_output(page: str | None, output: str | None) -> None:
    """Refuse a page and a result in one file: the second would overwrite the first.

    :raises UsageError: both are the same file.
    """
    if page is None or output is None or os.path.normpath(page) != os.path.normpath(output):
        return
    message = f"{shortened(page)}: is requested twice; name another file with -o"
    raise UsageError(message)


def is_watched() -> bool:
    """Whether a person waits at a terminal that can rewrite a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _is_same_file(path: str, model: str) -> bool:
    from pathlib import Path

    try:
        return Path(path).samefile(model)
    except OSError:
        return False


class Waiting:
    """Mutable: a line on a terminal that says how long a command has been at work.

    It appears after a second and goes with the first output, so that nothing is written over.
    """

    def __init__(self) -> None:
        self._ticking: tuple[threading.Event, threading.Lock] | None = None
        self._is_shown = False
        self._at_work = ""

    def say(self, text: str) -> None:
        """Have the line say what the command is at."""
        self._at_work = f", {text}"

    def start(self, text: str) -> None:
        """Show the line to a person who waits: only on a terminal."""
        if not is_watched():
            return
        import threading

        self._ticking = threading.Event(), threading.Lock()
        arguments = (shortened(text), *self._ticking)
        threading.Thread(target=self._tick, args=arguments, daemon=True).start()

    def stop(self) -> None:
        """Leave the line to what is written next."""
        if self._ticking is None:
            return
        (stopped, lock), self._ticking = self._ticking, None
        # Under the lock no tick can write between the two.
        with lock:
            stopped.set()
            if self._is_shown:
                self._write("")

    def _tick(self, text: str, stopped: threading.Event, lock: threading.Lock) -> None:
        number = 0
        while not stopped.wait(1):
            number += 1
            with lock:
                if not stopped.is_set():
                    self._is_shown = True
                    self._write(printable(f"{text}: {number:,} s{self._at_work}")[:_LINE])

    @staticmethod
    def _write(text: str) -> None:
        # Not by ``sys.stderr``, whose lock the interrupted main thread may hold.
        with suppress(OSError):
            os.write(_STDERR, f"\r\x1b[K{text}".encode(errors="backslashreplace"))


WAITING: Final = Waiting()
"""The line of this process's command."""


def write_result(text: str, arguments: Namespace) -> None:
    """Write a result to the requested file, else to stdout."""
    if arguments.output is None:
        write_stdout(text)
    else:
        write_file(text, arguments.output, quiet=arguments.quiet)


def write_file(text: str, path: str, *, quiet: bool) -> None:
    """Write a result to a file and say so."""
    write_bytes([text.encode()], path)
    if not quiet:
        notify(f"Wrote {shortened(path)}")


def write_bytes_to_stdout(pieces: Iterable[bytes]) -> None:
    """Write a result of bytes to stdout; a reader that has gone away is no fault.

    :raises UsageError: it cannot be written.
    """
    WAITING.stop()
    try:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except OSError as fault:
        _drop(sys.stdout)
        if not isinstance(fault, BrokenPipeError):
            message = f"stdout: cannot be written: {reason_of(fault)}"
            raise UsageError(message) from fault


def write_bytes(pieces: Iterable[bytes], path: str) -> None:
    """Write a file whole, or leave what is there as it is.

    :raises UsageError: it cannot be written.
    """
    try:
        with replaced(path) as file:
            file.writelines(pieces)
    except OSError as fault:
        message = f"{shortened(path)}: cannot be written: {reason_of(fault)}"
        raise UsageError(message) from fault


def write_stdout(text: str) -> None:
    """Write a result to stdout; a reader that has gone away is no fault."""
    _escape_unencodable(sys.stdout)
    _is_written(text, sys.stdout, "stdout")


def in_color(text: str, arguments: Namespace) -> str:
    """Color a result that is text where ``--color`` says so; JSON stays as it is."""
    to_file = arguments.output is not None
    if arguments.json or not wants_color(arguments.color, to_file=to_file):
        return text
    from onnxmem.report.text import colored

    return colored(text)


def is_seen_whole(*, to_file: bool) -> bool:
    """Whether stdout and stderr are read together, in one terminal."""
    return not to_file and sys.stdout.isatty() and sys.stderr.isatty()


def wants_color(choice: str, *, to_file: bool) -> bool:
    """Whether text is to be colored; ``auto`` colors for a terminal that does not decline."""
    if choice != "auto":
        return choice == "always"
    declines = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return not to_file and not declines and sys.stdout.isatty()


def write_pieces(pieces: Iterable[str], path: str | None, *, quiet: bool) -> None:
    """Write each piece: to a file, which is there once it is whole, or to stdout.

    A reader of stdout that has gone away ends the work, and is no fault.

    :raises UsageError: it cannot be written.
    """
    if path is not None:
        write_bytes((piece.encode() for piece in pieces), path)
        if not quiet:
            notify(f"Wrote {shortened(path)}")
        return
    with pieces_to(None, quiet=quiet) as write:
        for piece in pieces:
            if not write(piece):
                return


@contextmanager
def pieces_to(
    path: str | None, *, quiet: bool, is_by_row: bool = False
) -> Iterator[Callable[[str], bool]]:
    """A function that writes a piece and flushes it; false: the reader of stdout has gone away.

    A file is there once it is whole. A new file that is written by row has the rows so far.

    :raises UsageError: it cannot be written.
    """
    from onnxmem.report.text import legible

    name = "stdout" if path is None else shortened(path)
    with ExitStack() as stack:
        if path is None:
            stream: TextIO = sys.stdout
        else:
            is_new = is_by_row and not os.path.lexists(path)
            stream = stack.enter_context(_opened(path, name, is_new=is_new))
        _escape_unencodable(stream)
        yield lambda piece: _is_written(legible(piece, stream.encoding), stream, name)
    if path is not None and not quiet:
        notify(f"Wrote {name}")


@contextmanager
def _opened(path: str, name: str, *, is_new: bool) -> Iterator[TextIO]:
    """Text that goes to a new file at once, or replaces one at the end.

    :raises UsageError: it cannot be written.
    """
    try:
        with _new_file(path) if is_new else replaced(path) as file:
            stream = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
            try:
                yield stream
            finally:
                # Each piece was flushed: what is left is one that could not be written, which was
                # reported.
                with suppress(OSError, ValueError):
                    stream.detach()
    except OSError as fault:
        message = f"{name}: cannot be written: {reason_of(fault)}"
        raise UsageError(message) from fault


@contextmanager
def _new_file(path: str) -> Iterator[IO[bytes]]:
    """A file that is written in its place.

    :raises OSError: it cannot be written, or was removed meanwhile.
    """
    remove_stale_parts(os.path.dirname(path) or os.curdir)
    with open(path, "wb") as file:
        yield file
        if not os.path.exists(path):
            raise FileNotFoundError(errno.ENOENT, "it was removed meanwhile")


def _escape_unencodable(stream: TextIO) -> None:
    """A name that the terminal's encoding lacks must not cost the report."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def _is_written(piece: str, stream: TextIO, name: str) -> bool:
    """Write and flush a piece; false: the reader of stdout has gone away.

    :raises UsageError: it cannot be written.
    """
    if stream is sys.stdout:
        WAITING.stop()
    if not piece:  # a full device refuses even that
        return True
    try:
        stream.write(piece)
        stream.flush()
    except OSError as fault:
        if stream is sys.stdout:
            _drop(stream)
        if isinstance(fault, BrokenPipeError):
            return False
        message = f"{name}: cannot be written: {reason_of(fault)}"
        raise UsageError(message) from fault
    return True


def open_closed_streams() -> None:
    """Give a command that was started without stdin, stdout or stderr something in their place.

    Else the next file that is opened gets that number, and what a library writes to stderr goes to
    it. Reading such a stdin and writing to such a stdout fail; messages are lost.
    """
    for number, flags in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free: those below it are open by now.
            os.open(os.devnull, flags)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - it stays open


def notify(text: str, end: str = "\n") -> None:
    """Write a message to stderr; one that stderr does not take is lost, and costs no result."""
    WAITING.stop()
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)


def _drop(stream: TextIO) -> None:
    """Let a stream that failed lead nowhere: Python flushes it once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def report_fault(fault: Fault, error: BaseException | None = None, path: str | None = None) -> int:
    """Write a fault as one line on stderr and return its exit code; ``path`` names the model."""
    where = "" if path is None else f"{shortened(path)}: "
    # An internal error says so at the head of its line, where others say their code after the file.
    kind, code = (
        ("internal error", "") if fault.code == "internal" else ("error", f"{fault.code}: ")
    )
    notify(f"{kind}: {where}{code}{shortened(fault.message, _LONGEST)}")
    if error is not None and os.environ.get("ONNXMEM_DEBUG"):
        import traceback

        notify("".join(traceback.format_exception(error)), end="")
    return fault.exit_code
