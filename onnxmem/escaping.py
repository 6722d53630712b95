"""Names from files and command lines, made safe to print.

A name may hold escape sequences that move the cursor, marks that turn the writing direction, or
line breaks that forge a line of a report. Only what Python calls printable stays as it is.
"""

from typing import Final

LONGEST_NAME: Final = 200
"""Characters that ``shortened`` leaves; names of real models are shorter."""

_UNDECODABLE: Final = range(0xDC80, 0xDD00)
"""Bytes of a path that are no text, as Python carries them (``surrogateescape``)."""

_FORMULA_STARTS: Final = (*"=+-@\t\r", "＝", "＋", "－", "＠")  # noqa: RUF001 - the full-width ones
"""What a spreadsheet takes for a formula at the start of a cell (OWASP, CSV Injection)."""


def printable(text: str) -> str:
    r"""Write every character that moves, hides or turns text as ``\xNN`` or ``\uNNNN``.

    >>> printable("conv\x1b[2J")
    'conv\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def shortened(text: str, longest: int = LONGEST_NAME) -> str:
    """Write a printable name, the middle of a very long one as the number of its characters.

    >>> shortened("a" * 150 + "b" * 150, longest=20)
    'aaaaaaaaaa...(280 more)...bbbbbbbbbb'
    """
    safe = printable(text)
    if len(safe) <= longest:
        return safe
    end = longest // 2
    return f"{safe[:end]}...({len(safe) - 2 * end} more)...{safe[-end:]}"


def no_formula(text: str) -> str:
    """Write what a spreadsheet would take for a formula as text, by an apostrophe before it.

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
