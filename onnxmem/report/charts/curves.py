"""A curve of one figure over batches: a point for each, over a scale of powers of two."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from onnxmem.report.charts.drawing import (
    LEFT,
    LINE,
    MARGIN,
    Frame,
    Scale,
    color,
    framed,
    grid,
    line,
    text_width,
    with_tooltip,
    words,
)

_HEIGHT: Final = 220
_TOP: Final = 24
"""Above the plot: the name of a mark."""
_AXIS: Final = "batch, on a scale of powers of two"
_GAP: Final = 8
"""Pixels between two labels of the axis."""


def curve_svg(
    points: Sequence[tuple[int, float]],
    ticks: Sequence[tuple[float, str]],
    label: Callable[[float], str],
    marks: Mapping[int, str],
    frame: Frame,
    limit: tuple[float, str] | None = None,
) -> str:
    """Draw (batch, value) in order, from 0 to the largest value.

    ``ticks`` are values and what is written beside them, ``label`` writes the value of a point, and
    ``marks`` are named batches, each with a line across the plot; ``limit`` is a value with its
    name, and a line along it.
    """
    bottom, right = _TOP + _HEIGHT, frame.width - MARGIN
    batches = [batch for batch, _ in points]
    low, high = (math.log2(batch) for batch in (batches[0], batches[-1]))
    x = Scale(low, high, LEFT + 6, right - 6)
    values = [*(value for _, value in points), 0, *([] if limit is None else [limit[0]])]
    y = Scale(0, max(values) or 1, bottom, _TOP)
    places = [(x(math.log2(batch)), y(value)) for batch, value in points]
    body = [
        *grid([(y(value), text) for value, text in ticks], LEFT, right),
        *_axis(batches, x, bottom),
        *_marks(marks, x, bottom, right),
        *(() if limit is None else _limit(y(limit[0]), limit[1], right)),
        _path(places),
        *(
            with_tooltip(_dot(*place), f"batch {batch:,}: {label(value)}")
            for place, (batch, value) in zip(places, points, strict=True)
        ),
    ]
    return framed(body, bottom + 2 * LINE, frame)


def _axis(batches: Sequence[int], x: Scale, bottom: float) -> Iterator[str]:
    """As many batches below the plot as there is place for."""
    free = -math.inf
    for batch in batches:
        text, middle = f"{batch:,}", x(math.log2(batch))
        half = text_width(text) / 2
        # Greedy from the left: a label that would touch the one before it is left out.
        if middle - half >= free:
            yield words(middle, bottom + LINE, text, "middle", is_faint=True)
            free = middle + half + _GAP
    yield words((x.start + x.stop) / 2, bottom + 2 * LINE - 4, _AXIS, "middle", is_faint=True)


def _marks(marks: Mapping[int, str], x: Scale, bottom: float, right: float) -> Iterator[str]:
    for batch, text in marks.items():
        at = x(math.log2(batch))
        yield line(at, _TOP, at, bottom, dash="4 3")
        is_left = at + text_width(text) / 2 > right
        yield words(min(at, right), _TOP - 8, text, "end" if is_left else "middle")


def _limit(at: float, text: str, right: float) -> Iterator[str]:
    """A line along the plot, its name over the left end, or below it where the plot ends."""
    yield line(LEFT, at, right, at, dash="6 3")
    yield words(LEFT + 6, at - 4 if at - LINE > _TOP else at + LINE - 2, text, "start")


def _path(places: Sequence[tuple[float, float]]) -> str:
    steps = "L".join(f"{left:.4g} {top:.4g}" for left, top in places)
    return f'<path d="M{steps}" stroke="{color("c-saved")}" stroke-width="2" fill="none"/>'


def _dot(left: float, top: float) -> str:
    return f'<circle cx="{left:.4g}" cy="{top:.4g}" r="4" fill="{color("c-saved")}"/>'
