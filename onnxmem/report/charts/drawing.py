"""The pieces that every chart is made of: the frame, words, lines, a legend."""

import unicodedata
from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

from onnxmem.errors import printable
from onnxmem.report.charts.palette import colour

WIDTH: Final = 720
"""Pixels of every chart, before it is scaled to where it stands."""
FONT: Final = 12
LINE: Final = 18
"""Pixels from one line of words to the next."""
_NARROW: Final = 0.61
"""Width of a letter of a sans-serif face in ems, on the safe side; East Asian ones take 1."""


def framed(
    body: Iterable[str], height: float, *, chart_id: str, title: str, description: str
) -> str:
    """One picture with its text alternative; it scales with what it stands in."""
    name, text = (markup(each) for each in (title, description))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" id="{chart_id}" role="img"'
        f' aria-labelledby="{chart_id}-title {chart_id}-desc" viewBox="0 0 {WIDTH} {height:g}"'
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
        f'<rect class="{css_class}" fill="{colour(css_class)}" x="{x:.5g}" y="{y:.5g}"'
        f' width="{width:.4g}" height="{height:.4g}"/>'
    )


def told(content: str, text: str) -> str:
    """A piece that says something where a pointer rests on it."""
    return f"<g>{content}<title>{markup(text)}</title></g>"


def text_width(text: str) -> float:
    """Pixels that a line takes at most, near enough."""
    return FONT * sum(1 if unicodedata.east_asian_width(c) in "WF" else _NARROW for c in text)


def cut(text: str, width: float) -> str:
    """A name that fits into a width: the middle of a long one is left out.

    The end of a tensor's name tells it from its neighbours, the start says where it belongs.
    """
    # Of a very long name no more is looked at than could ever fit.
    is_long = len(text) > 2 * WIDTH
    safe = printable(text[:WIDTH] + text[-WIDTH:] if is_long else text)
    if not is_long and text_width(safe) <= width:
        return safe
    start, end = "", ""
    left = width - FONT
    for first, last in zip(safe, reversed(safe), strict=True):
        left -= text_width(first) + text_width(last)
        if left < 0 or len(start) * 2 + 2 > len(safe):
            break
        start, end = start + first, last + end
    return f"{start}\N{HORIZONTAL ELLIPSIS}{end}"


def legend(entries: Iterable[tuple[str, str]], x: float, y: float) -> tuple[list[str], float]:
    """Swatches and names from a place on, in as many rows as they take; and where they end."""
    pieces: list[str] = []
    left = x
    for name, css_class in entries:
        shown = cut(name, 240)
        width = text_width(shown) + 30
        if left > x and left + width > WIDTH:
            left, y = x, y + LINE
        pieces += [box(left, y - 9, 10, 10, css_class), words(left + 15, y, shown)]
        left += width
    return pieces, y


def grid(ticks: Iterable[tuple[float, str]], left: float, right: float) -> Iterator[str]:
    """Lines across a plot with their labels at the left: (pixel, label)."""
    for y, label in ticks:
        yield line(left, y, right, y)
        yield words(left - 6, y + 4, label, "end", is_faint=True)
