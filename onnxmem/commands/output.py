"""Where a result goes: stdout, or a file that is not overwritten unasked."""

import io
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from onnxmem.errors import UsageError
from onnxmem.escaping import shortened


def check_output(path: str | None, models: Iterable[str], *, force: bool) -> None:
    """Refuse a file that cannot be written or is a model, before any work is done for it."""
    if path is None:
        return
    if any(_is_same_file(path, model) for model in models):
        message = f"{shortened(path)}: is a model; choose another file for the result"
        raise UsageError(message)
    if os.path.lexists(path) and not force:
        message = f"{shortened(path)}: exists; pass --force to overwrite it"
        raise UsageError(message)
    if not Path(path).parent.is_dir():
        message = f"{shortened(path)}: its folder does not exist"
        raise UsageError(message)


def _is_same_file(path: str, model: str) -> bool:
    try:
        return Path(path).samefile(model)
    except OSError:
        return False


def write_file(text: str, path: str, *, quiet: bool) -> None:
    """Write a result to a file and say so."""
    try:
        Path(path).write_text(text, encoding="utf-8", newline="\n")
    except OSError as fault:
        message = f"{shortened(path)}: cannot be written: {fault.strerror}"
        raise UsageError(message) from fault
    if not quiet:
        print(f"Wrote {shortened(path)}", file=sys.stderr)


def write_stdout(text: str) -> None:
    """Write a result to stdout; a reader that has gone away is no fault."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal's encoding lacks must not cost the report.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at exit, which would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as fault:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        message = f"stdout: cannot be written: {fault.strerror}"
        raise UsageError(message) from fault


def wants_colour(choice: str, *, to_file: bool) -> bool:
    """Whether text is to be coloured; ``auto`` colours for a terminal that does not decline."""
    if choice != "auto":
        return choice == "always"
    declines = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return not to_file and not declines and sys.stdout.isatty()
