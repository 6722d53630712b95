"""Strips in time and address: how an arena is packed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from onnxmem.report.charts.drawing import LINE, cut, framed, grid, words
from onnxmem.report.charts.palette import CYCLE, colour
from onnxmem.report.charts.scales import Scale, byte_label, byte_ticks
from onnxmem.report.charts.steps import LEFT, RIGHT, across, steps_axis, unseen
from onnxmem.units import format_bytes, plural

_TOP: Final = 10
_HEIGHT: Final = 300
_MOST: Final = 4000
"""Strips that are drawn, the largest in bytes x steps: smaller ones are less than a pixel."""
_MOST_TOLD: Final = 200
"""Strips that say what they are where a pointer rests on them, the largest."""
_LONGEST: Final = 1000
"""Pixels that a name takes there."""


@dataclass(frozen=True, slots=True)
class Strip:
    """Bytes at one address from one step to another."""

    name: str
    start: int
    stop: int
    """Half-open: ``[start, stop)``."""
    offset_bytes: int
    size_bytes: int


def strips_svg(
    strips: Sequence[Strip],
    *,
    num_steps: int,
    size_bytes: int,
    chart_id: str,
    title: str,
    description: str,
) -> str:
    """Draw each strip at its steps (across) and its addresses (upwards from 0)."""
    x = across(num_steps)
    y = Scale(0, max(size_bytes, 1), _TOP + _HEIGHT, _TOP)
    largest = sorted(strips, key=lambda each: each.size_bytes * (each.start - each.stop))
    shown = sorted(largest[:_MOST], key=lambda each: (each.start, each.offset_bytes))
    ticks = [(y(tick), byte_label(tick, size_bytes)) for tick in byte_ticks(size_bytes)]
    bottom = _TOP + _HEIGHT
    body = [*grid(ticks, LEFT, RIGHT), *_colours(shown, x, y), *steps_axis(num_steps, bottom)]
    body += unseen(_told(largest[:_MOST_TOLD], x, y))
    left_out = len(strips) - len(shown)
    if left_out:
        text = f"{plural(left_out, 'buffer')} too small to be drawn"
        body.append(words(RIGHT, bottom + LINE + 14, text, "end", is_faint=True))
    return framed(body, bottom + 38, chart_id=chart_id, title=title, description=description)


def _colours(strips: Sequence[Strip], x: Scale, y: Scale) -> Iterator[str]:
    """One path a colour: neighbours in time have different ones."""
    yield '<g transform="scale(.1)">'
    for number, css_class in enumerate(CYCLE):
        path = "".join(_outline(strip, x, y) for strip in strips[number :: len(CYCLE)])
        if path:
            yield f'<path class="{css_class}" fill="{colour(css_class)}" d="{path}"/>'
    yield "</g>"


def _outline(strip: Strip, x: Scale, y: Scale) -> str:
    """A rectangle in tenths of a pixel, half a pixel less than it is where there is room."""
    left, right = round(10 * x(strip.start)), round(10 * x(strip.stop))
    top = round(10 * y(strip.offset_bytes + strip.size_bytes))
    bottom = round(10 * y(strip.offset_bytes))
    wide, high = (max(size - (5 if size > 20 else 0), 1) for size in (right - left, bottom - top))  # noqa: PLR2004 - two pixels
    return f"M{left} {bottom}v{-high}h{wide}v{high}z"


def _told(
    strips: Sequence[Strip], x: Scale, y: Scale
) -> Iterator[tuple[float, float, float, float, str]]:
    for strip in strips:
        left, top = x(strip.start), y(strip.offset_bytes + strip.size_bytes)
        name = cut(strip.name, _LONGEST)
        text = (
            f"{name}: {format_bytes(strip.size_bytes)} at {strip.offset_bytes:,},"
            f" steps {strip.start + 1:,} to {strip.stop:,}"
        )
        yield left, top, x(strip.stop) - left, y(strip.offset_bytes) - top, text
