"""Charts over the steps of a program: stacked areas of live bytes, and a packed block as strips.

The chart of a packed block has the steps on one axis and addresses on the other. Of more steps
than a picture has columns those are drawn that reach furthest.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from onnxmem.report.charts.drawing import (
    CYCLE,
    LEFT,
    LINE,
    MARGIN,
    Frame,
    Scale,
    byte_label,
    byte_ticks,
    color,
    cut,
    framed,
    grid,
    legend,
    line,
    markup,
    step_ticks,
    text_width,
    words,
)
from onnxmem.report.text import buckets
from onnxmem.units import format_bytes, plural

_Tooltip = tuple[float, float, float, float, str]


def _across(num_steps: int, width: int) -> Scale:
    """Where each step lies; it is as wide as to the next."""
    return Scale(0, max(num_steps, 1), LEFT, width - MARGIN)


def _steps_axis(x: Scale, bottom: float) -> Iterator[str]:
    """A line below the plot, and step numbers from 1."""
    yield line(x.start, bottom, x.stop, bottom)
    at_most = max(int(x.stop - x.start) // 80, 2)
    for tick in step_ticks(int(x.high), at_most):
        yield words(x(tick - 0.5), bottom + 16, f"{tick:,}", "middle", is_faint=True)
    yield words((x.start + x.stop) / 2, bottom + 32, "step", "middle", is_faint=True)


def _tooltips(boxes: Iterable[_Tooltip]) -> Iterator[str]:
    """Transparent boxes (left, top, width, height, text) that show a text under a pointer."""
    yield '<g fill="#000" fill-opacity="0">'
    for left, top, width, height, text in boxes:
        yield (
            f'<rect x="{left:.4g}" y="{top:.4g}" width="{width:.4g}" height="{height:.4g}">'
            f"<title>{markup(text)}</title></rect>"
        )
    yield "</g>"


@dataclass(frozen=True, slots=True)
class Series:
    """One area of a stack."""

    name: str
    values: tuple[int, ...]
    """Bytes at each step."""
    css_class: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A part of the steps, as a phase of a training step."""

    start: int
    """Its first step."""
    name: str


def decimated(
    series: Sequence[Series], num_points: int
) -> tuple[tuple[int, ...], tuple[Series, ...]]:
    """Keep at most so many steps: of each bucket of neighbors the first with the largest sum.

    The values of one step stay together, so that they still add up; the peak of the sum is always
    kept, being the largest of its bucket. Returns the steps, and the series at them.
    """
    sums = stacked(series)
    if len(sums) <= num_points:
        return tuple(range(len(sums))), tuple(series)
    steps = tuple(
        max(range(start, stop), key=sums.__getitem__)
        for start, stop in buckets(len(sums), num_points)
    )
    return steps, tuple(
        Series(each.name, tuple(each.values[step] for step in steps), each.css_class)
        for each in series
    )


def stacked(series: Sequence[Series]) -> tuple[int, ...]:
    """The sum of all series at each step."""
    return tuple(map(sum, zip(*(each.values for each in series), strict=True)))


_AREAS_HEIGHT: Final = 220
"""Of the plot, in pixels."""
_FARTHEST_LIMIT: Final = 2.5
"""Times the largest sum up to which a limit is drawn."""
_MOST_POINTS: Final = 1000
_MOST_TOOLTIPS: Final = 200
"""Steps up to which each has a tooltip; of strips the largest so many have one."""
_LONGEST: Final = 1000
"""Pixels that a name takes in a tooltip."""


def area_svg(  # noqa: PLR0913 - the parts of a picture, each by its name
    series: Sequence[Series],
    frame: Frame,
    *,
    peak_step: int | None,
    labels: Sequence[str] | None,
    marks: Sequence[Mark] = (),
    scale_bytes: int = 0,
    scale_steps: int = 0,
    limit: tuple[str, int] | None = None,
) -> str:
    """Draw the bytes of each series on top of one another over the steps, the first lowest.

    ``peak_step`` is marked. ``labels`` name each step in a tooltip, if there are few steps;
    ``marks`` name parts of the steps. The axes reach ``scale_bytes`` and ``scale_steps`` at least,
    so that two charts can share them. ``limit`` is a name and bytes: a dashed line, unless it is so
    far above the areas that they would be flat; then its name says so.
    """
    width = frame.width
    steps, drawn = decimated(series, _MOST_POINTS)
    num_steps = len(series[0].values) if series else 0
    sums = stacked(drawn)
    highest = max(*sums, scale_bytes) if sums else scale_bytes
    is_drawn = limit is not None and limit[1] <= _FARTHEST_LIMIT * highest
    top_bytes = max(highest, limit[1]) if limit is not None and is_drawn else highest
    pieces, top = legend([(each.name, each.css_class) for each in series], LEFT, 14, width)
    top += LINE * (2 if marks else 1)
    y = Scale(0, max(top_bytes, 1), top + _AREAS_HEIGHT, top + LINE + 6)
    x = _across(max(num_steps, scale_steps), width)
    ticks = [(y(tick), byte_label(tick, top_bytes)) for tick in byte_ticks(top_bytes)]
    # Points are spread evenly, as their buckets are.
    edges = [x(number * num_steps / max(len(steps), 1)) for number in range(len(steps) + 1)]
    body = [
        *pieces,
        *grid(ticks, x.start, x.stop),
        *_areas(drawn, edges, y),
        *_marks(marks, x, (top, top + _AREAS_HEIGHT), num_steps),
        *_steps_axis(x, top + _AREAS_HEIGHT),
    ]
    if peak_step is not None and num_steps:
        peak_bytes = sum(each.values[peak_step] for each in series)
        text = f"peak {format_bytes(peak_bytes)}, step {peak_step + 1:,}"
        starts = [x(mark.start) for mark in marks if mark.start]
        body += _peak((x(peak_step + 0.5), y(peak_bytes)), text, starts, x.stop)
    if limit is not None:
        body += _limit(limit, x, y, is_drawn=is_drawn)
    if labels is not None and num_steps <= _MOST_TOOLTIPS:
        body += _tooltips(_step_tooltips(labels, sums, edges, (top, top + _AREAS_HEIGHT)))
    return framed(body, top + _AREAS_HEIGHT + 38, frame)


def _areas(series: Sequence[Series], edges: Sequence[float], y: Scale) -> Iterator[str]:
    """Areas from the highest down, so that each is painted over the one behind it.

    Only upper edges are written: what a lower area does not cover is left to see.
    """
    sums = stacked(series)
    yield '<g transform="scale(.1)">'
    for each in reversed(series):
        if any(each.values):
            path = _path(sums, edges, y)
            yield f'<path class="{each.css_class}" fill="{color(each.css_class)}" d="{path}"/>'
        sums = tuple(total - value for total, value in zip(sums, each.values, strict=True))
    yield "</g>"


def _path(heights: Sequence[int], edges: Sequence[float], y: Scale) -> str:
    """The outline of steps in whole tenths of a pixel, by relative commands."""
    base = round(10 * y(0))
    at_x, at_y = round(10 * edges[0]), base
    parts = [f"M{at_x} {at_y}"]
    for edge, height in zip(edges, heights, strict=False):
        to_x, to_y = round(10 * edge), round(10 * y(height))
        if to_y != at_y:
            parts.append(f"h{to_x - at_x}v{to_y - at_y}")
            at_x, at_y = to_x, to_y
    return f"{''.join(parts)}h{round(10 * edges[-1]) - at_x}V{base}z"


def _marks(
    marks: Sequence[Mark], x: Scale, rows: tuple[float, float], num_steps: int
) -> Iterator[str]:
    """A line where each part begins, its name above."""
    top, bottom = rows
    starts = [*(mark.start for mark in marks), num_steps]
    for mark, end in zip(marks, starts[1:], strict=True):
        start = x(mark.start)
        if mark.start:
            yield line(start, top - 12, start, bottom, dash="2 3")
        if text_width(mark.name) <= x(end) - start - 4:
            yield words(start + 4, top - 2, mark.name, is_faint=True)


def _peak(
    at: tuple[float, float], text: str, lines: Sequence[float], right: float
) -> Iterator[str]:
    """A dot on the peak and its words over it, inside the plot and beside the lines of phases."""
    x, y = at
    half = text_width(text) / 2
    # Within the chart, and right of a phase's line that would cross the text.
    middle = min(max(x, LEFT + half), right - half)
    for line_x in lines:
        if abs(line_x - middle) < half and line_x + 4 + 2 * half < right:
            middle = line_x + half + 4
    yield f'<circle class="peak" cx="{x:.4g}" cy="{y:.4g}" r="3.5"/>'
    yield words(middle, y - 8, text, "middle")


def _limit(limit: tuple[str, int], x: Scale, y: Scale, *, is_drawn: bool) -> Iterator[str]:
    """A line at a size and its name over it, or the name alone at the top."""
    name, size_bytes = limit
    text = f"{name} {format_bytes(size_bytes)}"
    if not is_drawn:
        yield words(x.stop, y.stop + 4, f"{text}, above this chart", "end", is_faint=True)
        return
    yield line(x.start, y(size_bytes), x.stop, y(size_bytes), dash="5 4")
    yield words(x.stop, y(size_bytes) - 4, text, "end")


def _step_tooltips(
    labels: Sequence[str], sums: Sequence[int], edges: Sequence[float], rows: tuple[float, float]
) -> Iterator[_Tooltip]:
    """One for each step, over the whole height of the plot."""
    top, bottom = rows
    for number, (label, size_bytes) in enumerate(zip(labels, sums, strict=True)):
        text = f"step {number + 1:,}: {cut(label, _LONGEST)}, {format_bytes(size_bytes)}"
        yield edges[number], top, edges[number + 1] - edges[number], bottom - top, text


_TOP: Final = 10
_STRIPS_HEIGHT: Final = 300
_MOST: Final = 4000
"""Strips that are drawn, the largest in bytes x steps: smaller ones are less than a pixel."""


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
    frame: Frame,
    *,
    num_steps: int,
    size_bytes: int,
    most_tooltips: int = _MOST_TOOLTIPS,
) -> str:
    """Draw each strip at its steps (across) and its addresses (upwards from 0).

    The largest, ``most_tooltips`` of them, are named in a tooltip.
    """
    x = _across(num_steps, frame.width)
    y = Scale(0, max(size_bytes, 1), _TOP + _STRIPS_HEIGHT, _TOP)
    # By area, bytes times steps, as an eye sees them.
    largest = sorted(strips, key=lambda each: each.size_bytes * (each.start - each.stop))
    shown = sorted(largest[:_MOST], key=lambda each: (each.start, each.offset_bytes))
    ticks = [(y(tick), byte_label(tick, size_bytes)) for tick in byte_ticks(size_bytes)]
    bottom = _TOP + _STRIPS_HEIGHT
    body = [*grid(ticks, x.start, x.stop), *_rectangles(shown, x, y), *_steps_axis(x, bottom)]
    body += _tooltips(_strip_tooltips(largest[:most_tooltips], x, y))
    left_out = len(strips) - len(shown)
    if left_out:
        text = f"{plural(left_out, 'buffer')} too small to be drawn"
        body.append(words(x.stop, bottom + LINE + 14, text, "end", is_faint=True))
    return framed(body, bottom + 38, frame)


def _rectangles(strips: Sequence[Strip], x: Scale, y: Scale) -> Iterator[str]:
    """One path for each color: neighbors in time have different ones."""
    yield '<g transform="scale(.1)">'
    for number, css_class in enumerate(CYCLE):
        # One path for each color keeps the file small; neighbors in time differ in color.
        path = "".join(_outline(strip, x, y) for strip in strips[number :: len(CYCLE)])
        if path:
            yield f'<path class="{css_class}" fill="{color(css_class)}" d="{path}"/>'
    yield "</g>"


def _outline(strip: Strip, x: Scale, y: Scale) -> str:
    """A rectangle in tenths of a pixel, half a pixel smaller where it is large enough."""
    left, right = round(10 * x(strip.start)), round(10 * x(strip.stop))
    top = round(10 * y(strip.offset_bytes + strip.size_bytes))
    bottom = round(10 * y(strip.offset_bytes))
    wide, high = (max(size - (5 if size > 20 else 0), 1) for size in (right - left, bottom - top))  # noqa: PLR2004 - two pixels
    return f"M{left} {bottom}v{-high}h{wide}v{high}z"


def _strip_tooltips(strips: Sequence[Strip], x: Scale, y: Scale) -> Iterator[_Tooltip]:
    for strip in strips:
        left, top = x(strip.start), y(strip.offset_bytes + strip.size_bytes)
        name = cut(strip.name, _LONGEST)
        text = (
            f"{name}: {format_bytes(strip.size_bytes)} at {strip.offset_bytes:,},"
            f" steps {strip.start + 1:,} to {strip.stop:,}"
        )
        yield left, top, x(strip.stop) - left, y(strip.offset_bytes) - top, text
