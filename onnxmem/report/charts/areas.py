"""Stacked areas: what is held at each step, by what it is."""

from collections.abc import Iterator, Sequence
from typing import Final

from onnxmem.report.charts.drawing import (
    LINE,
    cut,
    framed,
    grid,
    legend,
    line,
    text_width,
    words,
)
from onnxmem.report.charts.palette import colour
from onnxmem.report.charts.scales import Scale, byte_label, byte_ticks
from onnxmem.report.charts.series import Mark, Series, decimated, stacked
from onnxmem.report.charts.steps import LEFT, RIGHT, across, steps_axis, unseen
from onnxmem.units import format_bytes

_HEIGHT: Final = 220
"""Of the plot."""
_MOST_POINTS: Final = 1000
_MOST_TOLD: Final = 200
"""Steps up to which each says what it is where a pointer rests on it."""
_LONGEST: Final = 1000
"""Pixels that a name takes where a step says it."""


def area_svg(  # noqa: PLR0913 - the parts of a picture, each by its name
    series: Sequence[Series],
    *,
    chart_id: str,
    title: str,
    description: str,
    peak_step: int | None,
    labels: Sequence[str] | None,
    marks: Sequence[Mark] = (),
    scale_bytes: int = 0,
) -> str:
    """Draw the bytes of each series on top of one another over the steps, the first lowest.

    ``peak_step`` is marked. ``labels`` name each step, which says its bytes where a pointer rests
    on it if there are few; ``marks`` name parts of the run. The axis reaches ``scale_bytes`` at
    least, so that two charts can have one.
    """
    steps, kept = decimated(series, _MOST_POINTS)
    num_steps = len(series[0].values) if series else 0
    sums = stacked(kept)
    top_bytes = max(*sums, scale_bytes) if sums else scale_bytes
    pieces, top = legend([(each.name, each.css_class) for each in series], LEFT, 14)
    top += LINE * (2 if marks else 1)
    y = Scale(0, max(top_bytes, 1), top + _HEIGHT, top + LINE + 6)
    x = across(num_steps)
    ticks = [(y(tick), byte_label(tick, top_bytes)) for tick in byte_ticks(top_bytes)]
    # Points are spread evenly, as their buckets are.
    edges = [x(number * num_steps / max(len(steps), 1)) for number in range(len(steps) + 1)]
    body = [
        *pieces,
        *grid(ticks, LEFT, RIGHT),
        *_areas(kept, edges, y),
        *_marks(marks, x, top, top + _HEIGHT),
        *steps_axis(num_steps, top + _HEIGHT),
    ]
    if peak_step is not None and num_steps:
        peak_bytes = sum(each.values[peak_step] for each in series)
        text = f"peak {format_bytes(peak_bytes)}, step {peak_step + 1:,}"
        starts = [x(mark.start) for mark in marks if mark.start]
        body += _peak((x(peak_step + 0.5), y(peak_bytes)), text, starts)
    if labels is not None and num_steps <= _MOST_TOLD:
        body += unseen(_told(labels, sums, edges, (top, top + _HEIGHT)))
    return framed(body, top + _HEIGHT + 38, chart_id=chart_id, title=title, description=description)


def _areas(series: Sequence[Series], edges: Sequence[float], y: Scale) -> Iterator[str]:
    """Areas from the highest down, each over what is behind it: only upper edges are written."""
    sums = stacked(series)
    yield '<g transform="scale(.1)">'
    for each in reversed(series):
        if any(each.values):
            path = _path(sums, edges, y)
            yield f'<path class="{each.css_class}" fill="{colour(each.css_class)}" d="{path}"/>'
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


def _marks(marks: Sequence[Mark], x: Scale, top: float, bottom: float) -> Iterator[str]:
    """A line where each part begins, its name above."""
    starts = [*(mark.start for mark in marks), x.high]
    for mark, end in zip(marks, starts[1:], strict=True):
        start = x(mark.start)
        if mark.start:
            yield line(start, top - 12, start, bottom, dash="2 3")
        room = x(end) - start - 4
        if text_width(mark.name) <= room:
            yield words(start + 4, top - 2, mark.name, is_faint=True)


def _peak(at: tuple[float, float], text: str, lines: Sequence[float]) -> Iterator[str]:
    """A dot on the peak and its words over it, inside the plot and beside the lines of phases."""
    x, y = at
    half = text_width(text) / 2
    middle = min(max(x, LEFT + half), RIGHT - half)
    for line_x in lines:
        if abs(line_x - middle) < half and line_x + 4 + 2 * half < RIGHT:
            middle = line_x + half + 4
    yield f'<circle class="peak" cx="{x:.4g}" cy="{y:.4g}" r="3.5"/>'
    yield words(middle, y - 8, text, "middle")


def _told(
    labels: Sequence[str], sums: Sequence[int], edges: Sequence[float], rows: tuple[float, float]
) -> Iterator[tuple[float, float, float, float, str]]:
    """What each step says, over the whole height of the plot."""
    top, bottom = rows
    for number, (label, size_bytes) in enumerate(zip(labels, sums, strict=True)):
        text = f"step {number + 1:,}: {cut(label, _LONGEST)}, {format_bytes(size_bytes)}"
        yield edges[number], top, edges[number + 1] - edges[number], bottom - top, text
