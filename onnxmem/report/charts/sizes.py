"""Charts of items by their sizes: bars that add up, and bubbles of many models.

Each bar begins where the one above it ends. A bubble shows a model's memory over its
arithmetic or its accuracy; its area is the number of parameters.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from onnxmem.report.charts.drawing import (
    LEFT,
    LINE,
    RIGHT,
    WIDTH,
    Scale,
    box,
    byte_label,
    color,
    count_label,
    cut,
    decades,
    framed,
    grid,
    legend,
    line,
    markup,
    round_ticks,
    text_width,
    with_tooltip,
    words,
)
from onnxmem.units import format_bytes, format_count, plural

_NAMES: Final = 250
"""Pixels for names, at the left."""
_SIZES: Final = 84
"""Pixels for sizes, at the right."""
_ROW: Final = 20
_MOST: Final = 24
"""Bars; what comes after the largest of them is one more."""


def bars_svg(
    items: Sequence[tuple[str, int]], *, chart_id: str, title: str, description: str
) -> str:
    """Draw sizes in bytes so that they add up to the last line; some may be below 0.

    Of many items the largest are shown, by their order, and the rest as one.
    """
    shown = _shown(items)
    ends = list(accumulate((size for _, size in shown), initial=0))
    x = Scale(min(ends), max(*ends, 1), _NAMES + 8, WIDTH - _SIZES)
    body = [*_rows(shown, ends, x), *_total(ends[-1], len(shown) * _ROW, is_signed=min(ends) < 0)]
    height = (len(shown) + 1) * _ROW + 10
    return framed(body, height, chart_id=chart_id, title=title, description=description)


def _shown(items: Sequence[tuple[str, int]]) -> Sequence[tuple[str, int]]:
    if len(items) <= _MOST + 1:
        return items
    largest = sorted(range(len(items)), key=lambda index: -abs(items[index][1]))[:_MOST]
    shown = [items[index] for index in sorted(largest)]
    rest = sum(size for _, size in items) - sum(size for _, size in shown)
    return [*shown, (plural(len(items) - _MOST, "other"), rest)]


def _rows(items: Sequence[tuple[str, int]], ends: Sequence[int], x: Scale) -> Iterator[str]:
    is_signed = any(size < 0 for _, size in items)
    for number, (name, size) in enumerate(items):
        top = number * _ROW + 4
        start, stop = sorted((x(ends[number]), x(ends[number + 1])))
        css_class = "c-activations" if not is_signed else "c-more" if size > 0 else "c-less"
        bar = box(start, top, max(stop - start, 1), _ROW - 6, css_class)
        label = words(_NAMES, top + 11, cut(name, _NAMES), "end")
        sized = words(WIDTH - 2, top + 11, _size(size, is_signed=is_signed), "end")
        if number:
            yield line(x(ends[number]), top - 6, x(ends[number]), top)
        yield with_tooltip(label + bar + sized, f"{cut(name, 2000)}: {size:,} B")


def _total(total: int, y: float, *, is_signed: bool) -> Iterator[str]:
    yield line(_NAMES + 8, y + 4, WIDTH, y + 4)
    yield words(_NAMES, y + LINE + 1, "together", "end")
    yield words(WIDTH - 2, y + LINE + 1, _size(total, is_signed=is_signed), "end")


def _size(size: int, *, is_signed: bool) -> str:
    return f"+{format_bytes(size)}" if is_signed and size > 0 else format_bytes(size)


_HEIGHT: Final = 340
_LARGEST: Final = 26
"""Radius of the largest bubble in pixels."""
_SMALLEST: Final = 3
_NAME: Final = 130
"""Pixels for a name beside its bubble."""


@dataclass(frozen=True, slots=True)
class Bubble:
    """One model."""

    name: str
    x: float
    y: int
    """Bytes."""
    area: int
    """Parameters."""
    css_class: str = "c-activations"


@dataclass(frozen=True, slots=True)
class Axis:
    """What the horizontal axis shows."""

    label: str
    is_log: bool = True


@dataclass(frozen=True, slots=True)
class _Placed:
    bubble: Bubble
    x: float
    y: float
    radius: float


def bubbles_svg(  # noqa: PLR0913 - the parts of a picture, each by its name
    bubbles: Sequence[Bubble],
    *,
    lines: Sequence[tuple[str, int]],
    axis: Axis,
    chart_id: str,
    title: str,
    description: str,
    groups: Sequence[tuple[str, str]] = (),
) -> str:
    """Draw bubbles by ``x`` and bytes, on logarithmic scales unless the axis is linear.

    ``lines`` are budgets in bytes: those that separate models are drawn, and the nearest beyond
    them. ``groups`` name each class of bubbles. A bubble with a number of 0 lies on the edge of a
    logarithmic scale.
    """
    pieces, top = legend(groups, LEFT, 14)
    top += LINE if groups else 0
    bottom = top + _HEIGHT
    limits = _useful_lines(lines, [each.y for each in bubbles])
    y_ticks = _byte_ticks([*(each.y for each in bubbles), *(size for _, size in limits)])
    y = _logarithmic(y_ticks[0], y_ticks[-1], bottom, top)
    x, x_ticks = _across(bubbles, axis)
    largest = max((each.area for each in bubbles), default=0) or 1
    placed = [
        _Placed(each, x(each.x), y(each.y), _radius(each.area, largest))
        for each in sorted(bubbles, key=lambda each: -each.area)
    ]
    body = [
        *pieces,
        *grid([(y(tick), byte_label(tick)) for tick in y_ticks], LEFT, RIGHT),
        *(words(at, bottom + 18, label, _anchor(at), is_faint=True) for at, label in x_ticks),
        words((LEFT + RIGHT) / 2, bottom + 34, axis.label, "middle", is_faint=True),
        *(_circle(each, axis) for each in placed),
        *_limits(limits, y),
        *_names(placed),
    ]
    return framed(body, bottom + 42, chart_id=chart_id, title=title, description=description)


def _anchor(at: float) -> str:
    """The last label ends with the picture."""
    return "middle" if at < RIGHT - _LARGEST else "end"


def _useful_lines(lines: Sequence[tuple[str, int]], sizes: Sequence[int]) -> list[tuple[str, int]]:
    """Budgets that separate models, the least that all keep and the largest that none keeps."""
    low, high = min(sizes, default=0), max(sizes, default=0)
    within = [each for each in lines if low <= each[1] < high]
    above = min((each[1] for each in lines if each[1] >= high), default=None)
    below = max((each[1] for each in lines if each[1] < low), default=None)
    return [*within, *(each for each in lines if each[1] in {above, below})]


def _byte_ticks(sizes: Sequence[int]) -> tuple[int, ...]:
    """Powers of two around some sizes, at most nine: by twos, fours, 32s, 1024s or more."""
    low = max(min(sizes, default=1), 1).bit_length() - 1
    high = (max(*sizes, 2) - 1).bit_length() if sizes else 1
    for doublings in (1, 2, 5, 10, 20):
        first, last = low // doublings, max(-(-high // doublings), low // doublings + 1)
        if last - first <= 8:  # noqa: PLR2004 - ticks, less the first
            break
    return tuple(2 ** (doublings * power) for power in range(first, last + 1))


def _logarithmic(low: float, high: float, start: float, stop: float) -> Callable[[float], float]:
    scale = Scale(math.log(low), math.log(high), start, stop)
    return lambda value: scale(math.log(max(value, low)))


def _across(
    bubbles: Sequence[Bubble], axis: Axis
) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    numbers = [each.x for each in bubbles] or [1.0]
    low, high = min(numbers), max(numbers)
    if axis.is_log:
        positive = [number for number in numbers if number > 0] or [1.0]
        powers = decades(int(min(positive)), math.ceil(high))
        x = _logarithmic(powers[0], powers[-1], LEFT, RIGHT)
        every = 1 + len(powers) // 9
        return x, [(x(power), count_label(power)) for power in powers[::every]]
    margin = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    linear = Scale(low - margin, high + margin, LEFT, RIGHT)
    ticks = round_ticks(linear.low, linear.high)
    return linear, [(linear(number), f"{number:.6g}") for number in ticks]


def _radius(area: int, largest: int) -> float:
    return max(_LARGEST * math.sqrt(area / largest), _SMALLEST)


def _circle(placed: _Placed, axis: Axis) -> str:
    each = placed.bubble
    number = format_count(int(each.x)) if axis.is_log else f"{each.x:g}"
    text = (
        f"{cut(each.name, 2000)}: {format_bytes(each.y)}, {format_count(each.area)} parameters,"
        f" {axis.label} {number}"
    )
    return (
        f'<circle class="{each.css_class}" fill="{color(each.css_class)}" fill-opacity=".7"'
        f' stroke="currentColor" stroke-opacity=".5" cx="{placed.x:.4g}" cy="{placed.y:.4g}"'
        f' r="{placed.radius:.3g}"><title>{markup(text)}</title></circle>'
    )


def _limits(lines: Sequence[tuple[str, int]], y: Callable[[float], float]) -> Iterator[str]:
    """A dashed line for each budget, its name over its end; lines that are close share a name."""
    names: list[tuple[float, str]] = []
    above = -math.inf
    for name, size_bytes in sorted(lines, key=lambda each: -each[1]):
        at = y(size_bytes)
        yield line(LEFT, at, RIGHT, at, dash="5 4")
        if at - above < LINE - 2:
            names[-1] = names[-1][0], f"{names[-1][1]}, {name}"
        else:
            names.append((at, name))
        above = at
    for at, name in names:
        yield words(RIGHT, at - 3, cut(name, 400), "end")


def _names(placed: Sequence[_Placed]) -> Iterator[str]:
    """Names beside bubbles, of the largest first, where they cover no other name or bubble.

    Greedy: the largest bubble chooses first, among four positions; a name that fits at none of
    them is left out, and stands in the tooltip alone.
    """
    taken = [(p.x - p.radius, p.y - p.radius, p.x + p.radius, p.y + p.radius) for p in placed]
    for each in placed:
        text = cut(each.bubble.name, _NAME)
        width = text_width(text)
        for left, base in _spots(each, width):
            spot = (left, base - 10, left + width, base + 3)
            if left > LEFT and spot[2] < RIGHT and not any(_overlap(spot, o) for o in taken):
                taken.append(spot)
                yield words(left, base, text)
                break


def _spots(placed: _Placed, width: float) -> Iterator[tuple[float, float]]:
    """Where a name of a width may begin: right, left, above and below its bubble."""
    yield placed.x + placed.radius + 3, placed.y + 4
    yield placed.x - placed.radius - 3 - width, placed.y + 4
    yield placed.x - width / 2, placed.y - placed.radius - 4
    yield placed.x - width / 2, placed.y + placed.radius + 12


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
