"""Exceptions, exit codes, findings, and how names are printed in messages.

The text of an error is one line: where, what, and what to do next. ``code`` is its stable name in
reports.

A name in a model may contain escape sequences that move the cursor, characters that change the
direction of text, or line breaks that forge a line of a report. So all characters that Python does
not call printable are escaped.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import ClassVar, Final

EXIT_OK = 0
EXIT_GATE_FAILED = 1
EXIT_USAGE = 2
EXIT_UNANALYZED = 3
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130

_SEVERITY = (EXIT_INTERRUPTED, EXIT_INTERNAL, EXIT_USAGE, EXIT_UNANALYZED, EXIT_GATE_FAILED)


class OnnxmemError(Exception):
    """An error that a user can fix; its text is one line."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = EXIT_UNANALYZED


class UsageError(OnnxmemError):
    """An invalid command, flag or argument."""

    code = "usage"
    exit_code = EXIT_USAGE


class MissingFileError(OnnxmemError):
    """Nothing at a path can be opened."""

    code = "missing_file"
    exit_code = EXIT_USAGE


class ModelFileError(OnnxmemError):
    """The bytes are not an ONNX model, or an incomplete one."""

    code = "model_file"


class GraphError(OnnxmemError):
    """An invalid graph: it has a cycle, or a tensor that is defined twice or never."""

    code = "graph"


class ShapeError(OnnxmemError):
    """The requested shapes do not fit the model."""

    code = "shape"
    exit_code = EXIT_USAGE


def worst_exit_code(codes: list[int]) -> int:
    """The exit code for several results, the most severe: 130 > 70 > 2 > 3 > 1 > 0."""
    return next((code for code in _SEVERITY if code in codes), EXIT_OK)


_HINT: Final = "please report it; ONNXMEM_DEBUG=1 shows where"


@dataclass(frozen=True, slots=True)
class Fault:
    """An error as reports and shells show it."""

    code: str
    message: str
    exit_code: int


def fault_of(error: BaseException) -> Fault:
    """The code, message and exit code of an exception."""
    if isinstance(error, OnnxmemError):
        return Fault(error.code, str(error), error.exit_code)
    if isinstance(error, KeyboardInterrupt):
        return Fault("interrupted", "stopped by a signal", EXIT_INTERRUPTED)
    if isinstance(error, MemoryError):
        message = "this machine does not have enough memory for the model, even without its weights"
        return Fault("out_of_memory", message, EXIT_UNANALYZED)
    if isinstance(error, FileNotFoundError) and not _has_current_folder():
        return Fault("usage", "the current folder was removed; change to another", EXIT_USAGE)
    return Fault("internal", f"{type(error).__name__}: {error}; {_HINT}", EXIT_INTERNAL)


def _has_current_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Finding:
    """A warning or a note on a model; ``code`` is stable, ``node`` is the name of a node."""

    code: str
    message: str
    node: str | None = None


def listed(names: Sequence[str], at_most: int = 5) -> str:
    """Quote the first names and count the rest: ``'a', 'b' and 7 more``."""
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(repr(name) for name in names[:at_most]) + more


def nearest(name: str, known: Sequence[str]) -> str:
    """Suggest the most similar known name: ``did you mean 'a'?``, or ``""`` if none is."""
    from difflib import get_close_matches

    found = get_close_matches(name, known, n=1)
    return f"did you mean {found[0]!r}? " if found else ""


LONGEST_NAME: Final = 200
"""The length to which ``shortened`` cuts a text; names in real models are shorter."""

_UNDECODABLE: Final = range(0xDC80, 0xDD00)
"""Bytes of a path that are not UTF-8, as Python represents them (``surrogateescape``)."""

_FORMULA_STARTS: Final = (*"=+-@\t\r", "＝", "＋", "－", "＠")  # noqa: RUF001 - the full-width ones
"""A cell that starts with one of these is a formula in a spreadsheet (OWASP, CSV Injection)."""


def shell_words(words: Iterable[str]) -> str:
    """Words of a command that is shown, quoted for the shell and safe for a terminal.

    >>> shell_words(["--dim", "a b=3"])
    "--dim 'a b=3'"
    """
    return " ".join(quote(printable(word)) for word in words)


def printable(text: str) -> str:
    r"""Escape every character that is not printable as ``\xNN`` or ``\uNNNN``.

    >>> printable("conv\x1b[2J")
    'conv\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def shortened(text: str, longest: int = LONGEST_NAME) -> str:
    """A printable name; the middle of a very long one is replaced by its length.

    >>> shortened("a" * 150 + "b" * 150, longest=20)
    'aaaaaaaaaa...(280 more)...bbbbbbbbbb'
    """
    safe = printable(text)
    if len(safe) <= longest:
        return safe
    end = longest // 2
    return f"{safe[:end]}...({len(safe) - 2 * end} more)...{safe[-end:]}"


def no_formula(text: str) -> str:
    """Prefix a text that a spreadsheet would evaluate as a formula with an apostrophe.

    >>> no_formula("=HYPERLINK()")
    "'=HYPERLINK()"
    """
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _escaped(char: str) -> str:
    code = ord(char)
    if code in _UNDECODABLE:
        code -= 0xDC00
    if code <= 0xFF:  # noqa: PLR2004 - one byte
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004 - two bytes
