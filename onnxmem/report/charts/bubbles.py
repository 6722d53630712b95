"""Bubbles: many models by what they compute, what they take, and how large they are."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from onnxmem.report.charts.drawing import (
    LINE,
    cut,
    framed,
    grid,
    legend,
    line,
    markup,
    text_width,
    words,
)
from onnxmem.report.charts.palette import colour
from onnxmem.report.charts.scales import Scale, byte_label, count_label, decades, round_ticks
from onnxmem.report.charts.steps import LEFT, RIGHT
from onnxmem.units import format_bytes, format_count

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
    """What lies across."""

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
    """Draw bubbles by ``x`` and bytes, both on scales by factors of ten unless the axis says not.

    ``lines`` are budgets in bytes, across: those that tell models apart and the nearest beyond
    them. ``groups`` say what each class of bubbles is. A bubble of which a number is 0 lies on the
    edge of a scale by factors.
    """
    pieces, top = legend(groups, LEFT, 14)
    top += LINE if groups else 0
    bottom = top + _HEIGHT
    limits = _telling(lines, [each.y for each in bubbles])
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


def _telling(lines: Sequence[tuple[str, int]], sizes: Sequence[int]) -> list[tuple[str, int]]:
    """Of budgets that all models keep within the least, of those that none does the largest."""
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
    room = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    linear = Scale(low - room, high + room, LEFT, RIGHT)
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
        f'<circle class="{each.css_class}" fill="{colour(each.css_class)}" fill-opacity=".7"'
        f' stroke="currentColor" stroke-opacity=".5" cx="{placed.x:.4g}" cy="{placed.y:.4g}"'
        f' r="{placed.radius:.3g}"><title>{markup(text)}</title></circle>'
    )


def _limits(lines: Sequence[tuple[str, int]], y: Callable[[float], float]) -> Iterator[str]:
    """A dashed line a budget, its name over its right end; lines that are close share one."""
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
    """Names beside bubbles, of the largest first, where they cover no other name or bubble."""
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
