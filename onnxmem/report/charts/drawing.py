"""What every chart is made of: colors, the frame, words, lines, a legend, scales and their ticks.

The colors are those of Okabe and Ito, "Color Universal Design", 2002 (2008), their gray and a
darker one: they are distinct for readers of any color vision.
"""

import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from types import MappingProxyType
from typing import Final

from onnxmem.errors import printable
from onnxmem.units import format_count

_BLUE: Final = "#0072b2"
_SKY: Final = "#56b4e9"
_GREEN: Final = "#009e73"
_YELLOW: Final = "#f0e442"
_ORANGE: Final = "#e69f00"
_VERMILION: Final = "#d55e00"
_PURPLE: Final = "#cc79a7"
_GRAY: Final = "#999999"
_DARK: Final = "#5d5d5d"

COLORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "c-weights": _SKY,
        "c-buffers": _DARK,
        "c-optimizer": _GREEN,
        "c-inputs": _GRAY,
        "c-activations": _ORANGE,
        "c-saved": _BLUE,
        "c-gradients": _VERMILION,
        "c-activation-gradients": _YELLOW,
        "c-temporary": _PURPLE,
        "c-more": _VERMILION,
        "c-less": _BLUE,
    }
)
"""A color for each class that a chart may be given."""

CYCLE: Final = ("c-activations", "c-saved", "c-weights", "c-optimizer", "c-temporary")
"""Classes in turn, where neighbors must differ and the color means nothing."""


def color(css_class: str) -> str:
    """The color of a class; gray of one that is not known."""
    return COLORS.get(css_class, _GRAY)


WIDTH: Final = 720
"""Pixels of a chart, unless it is drawn for a screen of another width."""
LEFT: Final = 72
"""Where a plot begins: left of it stand the labels of its axis."""
MARGIN: Final = 12
"""Right of a plot."""
FONT: Final = 12
LINE: Final = 18
"""Pixels from one line of words to the next."""
_NARROW: Final = 0.61
"""Width of a letter of a sans-serif face in ems, on the safe side; East Asian ones take 1."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a picture is called, and its width."""

    chart_id: str
    """Of its element; each chart of a document has another."""
    title: str
    description: str
    """The text alternative."""
    width: int = WIDTH


def framed(body: Iterable[str], height: float, frame: Frame) -> str:
    """One picture with its text alternative; it scales with what it stands in."""
    chart_id, width = frame.chart_id, frame.width
    name, text = (markup(each) for each in (frame.title, frame.description))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" id="{chart_id}" role="img"'
        f' aria-labelledby="{chart_id}-title {chart_id}-desc" viewBox="0 0 {width} {height:g}"'
        f' width="100%" font-family="system-ui,sans-serif" font-size="{FONT}" fill="currentColor">'
        f'<title id="{chart_id}-title">{name}</title><desc id="{chart_id}-desc">{text}</desc>'
        f"{''.join(body)}</svg>"
    )


def markup(text: str) -> str:
    """Text as it may stand in XML and HTML, whoever wrote it."""
    return escape(printable(text))


def words(x: float, y: float, text: str, anchor: str = "start", *, is_faint: bool = False) -> str:
    """A line of words with its baseline at ``y``; ``anchor`` is start, middle or end."""
    at = "" if anchor == "start" else f' text-anchor="{anchor}"'
    faint = ' opacity=".75"' if is_faint else ""
    return f'<text x="{x:.4g}" y="{y:.4g}"{at}{faint}>{markup(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, *, dash: str = "") -> str:
    """A thin line; without a dash it is one of a grid."""
    style = f' stroke-dasharray="{dash}" stroke-opacity=".8"' if dash else ' stroke-opacity=".18"'
    return (
        f'<path class="line" d="M{x1:.4g} {y1:.4g}L{x2:.4g} {y2:.4g}" stroke="currentColor"'
        f'{style} fill="none"/>'
    )


def box(x: float, y: float, width: float, height: float, css_class: str) -> str:
    """A filled rectangle."""
    return (
        f'<rect class="{css_class}" fill="{color(css_class)}" x="{x:.5g}" y="{y:.5g}"'
        f' width="{width:.4g}" height="{height:.4g}"/>'
    )


def with_tooltip(content: str, text: str) -> str:
    """A piece that shows a text where a pointer rests on it."""
    return f"<g>{content}<title>{markup(text)}</title></g>"


def text_width(text: str) -> float:
    """Pixels that a line takes at most, near enough."""
    return FONT * sum(1 if unicodedata.east_asian_width(c) in "WF" else _NARROW for c in text)


def cut(text: str, width: float) -> str:
    """A name that fits into a width: the middle of a long one is left out.

    The end of a tensor's name differs from its neighbors', the start says which block it is in.
    """
    # Names may have megabytes: no more of one is looked at than could ever fit.
    is_long = len(text) > 2 * WIDTH
    safe = printable(text[:WIDTH] + text[-WIDTH:] if is_long else text)
    if not is_long and text_width(safe) <= width:
        return safe
    start, end = "", ""
    left = width - FONT
    # From both ends inwards: names begin alike, and what tells them apart is often at the end.
    for first, last in zip(safe, reversed(safe), strict=True):
        left -= text_width(first) + text_width(last)
        if left < 0 or len(start) * 2 + 2 > len(safe):
            break
        start, end = start + first, last + end
    return f"{start}\N{HORIZONTAL ELLIPSIS}{end}"


def num_shared(one: str, other: str) -> int:
    """How many letters two names begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    longest = min(len(one), len(other))
    return next((index for index, (a, b) in pairs if a != b), longest)


def distinct(names: Sequence[str], width: float) -> list[str]:
    """Names that fit into a width, cut so that those that differ still do.

    Where two names are cut to the same text, what they begin with in common is left out instead;
    where that is not enough they are numbered.
    """
    short = [cut(name, width) for name in names]
    groups: dict[str, list[int]] = {}
    for index, text in enumerate(short):
        groups.setdefault(text, []).append(index)
    for indices in groups.values():
        if len({names[index] for index in indices}) > 1:
            first = names[indices[0]]
            # Names that are cut alike begin alike: what tells them apart comes after the last slash
            # that they share.
            shared = min(num_shared(first, names[index]) for index in indices)
            start = first.rfind("/", 0, shared) + 1
            for index in indices:
                short[index] = cut(f"\N{HORIZONTAL ELLIPSIS}{names[index][start:]}", width)
    seen: dict[str, str] = {}
    for index, text in enumerate(short):
        number = 2
        while seen.setdefault(short[index], names[index]) != names[index]:
            short[index] = cut(f"{number}: {text}", width)
            number += 1
    return short


def legend(
    entries: Iterable[tuple[str, str]], x: float, y: float, width: int
) -> tuple[list[str], float]:
    """Swatches and names from a point on, in as many rows as they take, and the last row's y."""
    pieces: list[str] = []
    left = x
    for name, css_class in entries:
        shown = cut(name, 240)
        taken = text_width(shown) + 30
        # An entry wider than a line has the line to itself.
        if left > x and left + taken > width:
            left, y = x, y + LINE
        pieces += [box(left, y - 9, 10, 10, css_class), words(left + 15, y, shown)]
        left += taken
    return pieces, y


def grid(ticks: Iterable[tuple[float, str]], left: float, right: float) -> Iterator[str]:
    """Lines across a plot with their labels at the left: (pixel, label)."""
    for y, label in ticks:
        yield line(left, y, right, y)
        yield words(left - 6, y + 4, label, "end", is_faint=True)


_MOST_BYTE_TICKS: Final = 5
"""Of an axis, its 0 left out."""
_ROUND: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers from ``low`` to ``high`` laid over pixels from ``start`` to ``stop``."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.0
        return self.start + share * (self.stop - self.start)


def byte_ticks(top_bytes: int) -> tuple[int, ...]:
    """Round sizes from 0 up to ``top_bytes``, at most five after the 0.

    They are 1, 2, 5 or their tens in the unit of the largest, or its halves, quarters and eighths,
    which are whole bytes. Past all units there is no round size, and the largest stands alone.
    """
    if top_bytes <= 0:
        return (0,)
    unit = 1024 ** _power(top_bytes)
    # Halves, quarters and eighths of a unit stay whole numbers of bytes.
    fractions = [unit // part for part in (8, 4, 2) if unit > 1]
    steps = (*fractions, *(unit * round_ for round_ in _ROUND))
    step = next((step for step in steps if top_bytes // step <= _MOST_BYTE_TICKS), top_bytes)
    return tuple(range(0, top_bytes + 1, step))


def byte_label(num_bytes: int, top_bytes: int | None = None) -> str:
    """Write a tick in the unit of the axis, or its own: ``0``, ``0.5 GiB``, ``200 MiB``."""
    if not num_bytes:
        return "0"
    power = _power(num_bytes if top_bytes is None else top_bytes)
    return f"{num_bytes / 1024**power:.4g} {_UNITS[power]}"


def step_ticks(num_steps: int, at_most: int = 8) -> tuple[int, ...]:
    """Round step numbers, counted from 1, which is always one of them."""
    size = next(
        round_ * 10**power
        for power in range(20)
        for round_ in (1, 2, 5)
        if num_steps // (round_ * 10**power) < at_most
    )
    return (1, *(number for number in range(size, num_steps + 1, size) if number > 1))


def round_ticks(low: float, high: float, at_most: int = 7) -> tuple[float, ...]:
    """Round numbers between two: multiples of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return (low,)
    finest = math.floor(math.log10((high - low) / at_most))
    size = next(
        round_ * 10.0**power
        for power in range(finest, finest + 3)
        for round_ in (1, 2, 5)
        if (high - low) / (round_ * 10.0**power) < at_most
    )
    return tuple(
        number * size for number in range(math.ceil(low / size), math.floor(high / size) + 1)
    )


def decades(low: int, high: int) -> tuple[int, ...]:
    """Powers of ten from below the lowest to above the highest number."""
    first, last = len(str(max(low, 1))) - 1, len(str(max(high - 1, 1)))
    return tuple(10**power for power in range(first, max(last, first + 1) + 1))


def count_label(count: int) -> str:
    """Write a count short: ``1 k``, ``10 M``, ``1 G``."""
    return format_count(count) if count >= 10_000 else f"{count:,}"  # noqa: PLR2004 - four digits are short


def _power(num_bytes: int) -> int:
    """The largest unit that is no larger than a size."""
    power = 0
    while num_bytes >= 1024 ** (power + 1) and power + 1 < len(_UNITS):
        power += 1
    return power
