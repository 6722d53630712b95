"""A row of block characters: the shape of a timeline in a line of text."""

from collections.abc import Sequence
from typing import Final

from onnxmem.report.charts.buckets import buckets

BLOCKS: Final = "▁▂▃▄▅▆▇█"
_HALF: Final = "▄"
_BAR: Final = 20
_IN_ASCII: Final = str.maketrans(BLOCKS, "_.-=+*#@")


def spark(values: Sequence[int], width: int, top: int | None = None) -> str:
    """Draw values from 0 to ``top``, or to their largest, in at most ``width`` characters.

    Each character is the largest of its bucket, so the peak is the tallest; nothing at all is a
    blank.

    >>> spark([0, 1, 4, 8], width=4)
    ' ▁▄█'
    """
    top = max(values, default=0) if top is None else top
    largest = (max(values[start:stop]) for start, stop in buckets(len(values), width))
    return "".join(BLOCKS[(each * len(BLOCKS) - 1) // top] if each else " " for each in largest)


def bar(value: int, whole: int | None, width: int = _BAR) -> str:
    """Draw a share of a whole, ``width`` characters; a share that rounds to nothing is a blank.

    >>> bar(3, 4, width=8)
    '▄▄▄▄▄▄'
    """
    return _HALF * ((2 * width * value + whole) // (2 * whole)) if whole else ""


def legible(text: str, encoding: str | None) -> str:
    """Text whose blocks an encoding can write: in ASCII where it lacks one of them.

    A stream without an encoding takes any text.
    """
    try:
        BLOCKS.encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return text.translate(_IN_ASCII)
    return text
