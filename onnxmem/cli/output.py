"""Where a result goes: stdout, or a file that is not overwritten unasked."""

import io
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from onnxmem.errors import UsageError, shortened
from onnxmem.report.text import colored

_FORMS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        ".csv": ("csv", "ort-node-stats"),
        ".dot": ("dot",),
        ".graphml": ("graphml",),
        ".htm": ("html",),
        ".html": ("html",),
        ".json": ("json", "chrome", "metrics", "sarif"),
        ".jsonl": ("jsonl",),
        ".markdown": ("markdown", "model-card"),
        ".md": ("markdown", "model-card"),
        ".ndjson": ("jsonl",),
        ".sarif": ("sarif",),
        ".xml": ("junit",),
    }
)
"""What a file of each ending may hold; the first is what it holds where no flag says."""


def form_of(path: str | None, asked: str | None, known: Iterable[str]) -> str:
    """The form of a result: what a flag asks for, else what the file's ending says, else text.

    :raises UsageError: the two contradict each other, or this command has no such form.
    """
    forms = () if path is None else _FORMS.get(Path(path).suffix.lower(), ())
    if path is None or not forms or asked in forms:
        return asked or "text"
    if asked is not None:
        message = f"{shortened(path)}: its ending says {forms[0]}, a flag {asked}; choose one"
        raise UsageError(message)
    known = tuple(known)
    if forms[0] not in known:
        message = f"{shortened(path)}: {forms[0]} is not written here, only {', '.join(known)}"
        raise UsageError(message)
    return forms[0]


def settle_json(arguments: Namespace, others: Iterable[str] = ()) -> str:
    """The form of a command that writes text or JSON; ``json`` is set where it is the one."""
    asked = "json" if arguments.json else None
    form = form_of(arguments.output, asked, ("text", "json", *others))
    arguments.json = form == "json"
    return form


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


def write_result(text: str, arguments: Namespace) -> None:
    """Write a result to the file that is asked for, else to stdout."""
    if arguments.output is None:
        write_stdout(text)
    else:
        write_file(text, arguments.output, quiet=arguments.quiet)


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


def in_colour(text: str, arguments: Namespace) -> str:
    """Colour a result that is text where ``--color`` says so; JSON stays as it is."""
    to_file = arguments.output is not None
    if arguments.json or not wants_colour(arguments.color, to_file=to_file):
        return text
    return colored(text)


def wants_colour(choice: str, *, to_file: bool) -> bool:
    """Whether text is to be colored; ``auto`` colors for a terminal that does not decline."""
    if choice != "auto":
        return choice == "always"
    declines = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return not to_file and not declines and sys.stdout.isatty()
