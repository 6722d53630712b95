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
    MARGIN,
    Frame,
    Scale,
    box,
    byte_label,
    color,
    count_label,
    cut,
    decades,
    distinct,
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

_NAMES: Final = 0.36
"""Share of the width for names, at the left."""
_SIZES: Final = 84
"""Pixels for sizes, at the right."""
_ROW: Final = 20
_NARROW: Final = 480
"""Pixels of a chart below which names stand above their bars."""
_MOST: Final = 24
"""Bars; what comes after the largest of them is one more."""


def bars_svg(
    items: Sequence[tuple[str, int]],
    frame: Frame,
) -> str:
    """Draw sizes in bytes so that they add up to the last line; some may be below 0.

    Of many items the largest are shown, by their order, and the rest as one. On a phone's width a
    name stands above its bar.
    """
    width = frame.width
    is_narrow = width < _NARROW
    shown = _shown(items, _MOST // 2 if is_narrow else _MOST)
    ends = list(accumulate((size for _, size in shown), initial=0))
    left = 8.0 if is_narrow else _NAMES * width + 8
    x = Scale(min(ends), max(*ends, 1), left, width - (2 if is_narrow else _SIZES))
    row = 2 * _ROW - 4 if is_narrow else _ROW
    table = _Table(x, row, width, shown)
    body = [*_rows(table, ends), *_total(table, ends[-1])]
    height = len(shown) * row + _ROW + 10
    return framed(body, height, frame)


def _shown(items: Sequence[tuple[str, int]], most: int) -> Sequence[tuple[str, int]]:
    if len(items) <= most + 1:
        return items
    # The largest, in their own order: the bars are a waterfall, in which each begins where the last
    # ends.
    largest = sorted(range(len(items)), key=lambda index: -abs(items[index][1]))[:most]
    shown = [items[index] for index in sorted(largest)]
    rest = sum(size for _, size in items) - sum(size for _, size in shown)
    return [*shown, (plural(len(items) - most, "other"), rest)]


@dataclass(frozen=True, slots=True)
class _Table:
    """Where the rows of bars lie."""

    x: Scale
    row: int
    """Pixels from one row to the next."""
    width: int
    items: Sequence[tuple[str, int]]

    @property
    def is_narrow(self) -> bool:
        return self.row > _ROW

    def words(self, y: float, name: str, size: str) -> str:
        """A name and a size on one line: beside the bars, or above one of them."""
        anchor, at = ("start", 2.0) if self.is_narrow else ("end", self.x.start - 8)
        return words(at, y, name, anchor) + words(self.width - 2, y, size, "end")


def _rows(table: _Table, ends: Sequence[int]) -> Iterator[str]:
    x, items = table.x, table.items
    is_signed = any(size < 0 for _, size in items)
    room = table.width - _SIZES - 4 if table.is_narrow else x.start - 8
    labels = distinct([name for name, _ in items], room)
    for number, (name, size) in enumerate(items):
        top = number * table.row + 4
        bar_top = top + table.row - _ROW
        start, stop = sorted((x(ends[number]), x(ends[number + 1])))
        css_class = "c-activations" if not is_signed else "c-more" if size > 0 else "c-less"
        bar = box(start, bar_top, max(stop - start, 1), _ROW - 6, css_class)
        line_of = table.words(top + 11, labels[number], _size(size, is_signed=is_signed))
        if number and not table.is_narrow:
            yield line(x(ends[number]), top - 6, x(ends[number]), top)
        yield with_tooltip(line_of + bar, f"{cut(name, 2000)}: {size:,} B")


def _total(table: _Table, total: int) -> Iterator[str]:
    y = len(table.items) * table.row
    yield line(2 if table.is_narrow else table.x.start, y + 4, table.width, y + 4)
    yield table.words(y + LINE + 1, "total", _size(total, is_signed=table.x.low < 0))


def _size(size: int, *, is_signed: bool) -> str:
    return f"+{format_bytes(size)}" if is_signed and size > 0 else format_bytes(size)


_HEIGHT: Final = 340
_LARGEST: Final = 26
"""Radius of the largest bubble in pixels."""
_SMALLEST: Final = 3
_NAMED_RADIUS: Final = 7
"""Of a bubble that always has its name in the chart."""
_TICK: Final = 64
"""Pixels from one label of the horizontal axis to the next, at least."""
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
    link: str = ""
    """Where a click on it leads."""


@dataclass(frozen=True, slots=True)
class Axes:
    """What a chart of bubbles shows along its axes."""

    x: str
    y: str
    is_log: bool = True
    """Whether the horizontal axis is logarithmic; the vertical one always is."""


@dataclass(frozen=True, slots=True)
class _Drawn:
    bubble: Bubble
    x: float
    y: float
    radius: float


def bubbles_svg(
    bubbles: Sequence[Bubble],
    frame: Frame,
    *,
    lines: Sequence[tuple[str, int]],
    axes: Axes,
    groups: Sequence[tuple[str, str]] = (),
) -> str:
    """Draw bubbles by ``x`` and bytes, on logarithmic scales unless the axis is linear.

    ``lines`` are budgets in bytes: those that separate models are drawn, and the nearest beyond
    them. ``groups`` name each class of bubbles. A bubble with a number of 0 lies on the edge of a
    logarithmic scale.
    """
    width = frame.width
    pieces, top = legend(groups, LEFT, 14, width)
    top += LINE + 4
    pieces.append(words(LEFT, top - 2, "circle area = parameters", is_faint=True))
    top += LINE
    bottom = top + _HEIGHT
    limits = _useful_lines(lines, [each.y for each in bubbles])
    y_ticks = _byte_ticks([*(each.y for each in bubbles), *(size for _, size in limits)])
    y = _logarithmic(y_ticks[0], y_ticks[-1], (bottom, top))
    across = LEFT + _LARGEST, width - MARGIN - _LARGEST
    x, x_ticks = _across(bubbles, axes, across)
    largest = max((each.area for each in bubbles), default=0) or 1
    drawn = [
        _Drawn(each, x(each.x), y(each.y), _radius(each.area, largest))
        # Large circles first, so that small ones are drawn over them.
        for each in sorted(bubbles, key=lambda each: -each.area)
    ]
    right = width - MARGIN
    names = dict(_names(drawn, right))
    middle = (top + bottom) / 2
    body = [
        *pieces,
        *grid([(y(tick), byte_label(tick)) for tick in y_ticks], LEFT, right),
        *(words(at, bottom + 18, label, "middle", is_faint=True) for at, label in x_ticks),
        words((LEFT + right) / 2, bottom + 36, axes.x, "middle", is_faint=True),
        f'<g transform="rotate(-90 12 {middle:.4g})">',
        words(12, middle, axes.y, "middle", is_faint=True),
        "</g>",
        *_limits(limits, y, right),
        *(_linked(each, axes, names.get(number, "")) for number, each in enumerate(drawn)),
    ]
    return framed(body, bottom + 44, frame)


def _useful_lines(lines: Sequence[tuple[str, int]], sizes: Sequence[int]) -> list[tuple[str, int]]:
    """Budgets that separate models, the least that all keep and the largest that none keeps."""
    low, high = min(sizes, default=0), max(sizes, default=0)
    # Memories far beyond all bubbles would squeeze them: of these only the next above and below.
    within = [each for each in lines if low <= each[1] < high]
    above = min((each[1] for each in lines if each[1] >= high), default=None)
    below = max((each[1] for each in lines if each[1] < low), default=None)
    return [*within, *(each for each in lines if each[1] in {above, below})]


def _byte_ticks(sizes: Sequence[int]) -> tuple[int, ...]:
    """Powers of two around some sizes, at most nine: by twos, fours, 32s, 1024s or more."""
    low = max(min(sizes, default=1), 1).bit_length() - 1
    high = (max(*sizes, 2) - 1).bit_length() if sizes else 1
    # The finest of these steps that gives few enough ticks.
    for doublings in (1, 2, 5, 10, 20):
        first, last = low // doublings, max(-(-high // doublings), low // doublings + 1)
        if last - first <= 8:  # noqa: PLR2004 - ticks, less the first
            break
    return tuple(2 ** (doublings * power) for power in range(first, last + 1))


def _logarithmic(low: float, high: float, ends: tuple[float, float]) -> Callable[[float], float]:
    scale = Scale(math.log(low), math.log(high), *ends)
    return lambda value: scale(math.log(max(value, low)))


def _across(
    bubbles: Sequence[Bubble], axes: Axes, ends: tuple[float, float]
) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    numbers = [each.x for each in bubbles] or [1.0]
    low, high = min(numbers), max(numbers)
    if axes.is_log:
        positive = [number for number in numbers if number > 0] or [1.0]
        powers = decades(int(min(positive)), math.ceil(high))
        x = _logarithmic(powers[0], powers[-1], ends)
        every = 1 + len(powers) * _TICK // int(ends[1] - ends[0])
        return x, [(x(power), count_label(power)) for power in powers[::every]]
    margin = (high - low) * 0.08 or abs(high) * 0.05 or 1.0
    linear = Scale(low - margin, high + margin, *ends)
    ticks = round_ticks(linear.low, linear.high, max(int(ends[1] - ends[0]) // _TICK, 2))
    return linear, [(linear(number), f"{number:.6g}") for number in ticks]


def _radius(area: int, largest: int) -> float:
    return max(_LARGEST * math.sqrt(area / largest), _SMALLEST)


def _circle(drawn: _Drawn, axes: Axes) -> str:
    each = drawn.bubble
    number = format_count(int(each.x)) if axes.is_log else f"{each.x:g}"
    text = (
        f"{cut(each.name, 2000)}: {format_bytes(each.y)}, {format_count(each.area)} parameters,"
        f" {axes.x} {number}"
    )
    return (
        f'<circle class="{each.css_class}" fill="{color(each.css_class)}" fill-opacity=".7"'
        f' stroke="currentColor" stroke-opacity=".5" cx="{drawn.x:.4g}" cy="{drawn.y:.4g}"'
        f' r="{drawn.radius:.3g}"><title>{markup(text)}</title></circle>'
    )


def _linked(drawn: _Drawn, axes: Axes, name: str) -> str:
    """A bubble with its name, and what a click on either opens."""
    picture = _circle(drawn, axes) + name
    if not drawn.bubble.link:
        return picture
    label = markup(cut(drawn.bubble.name, 2000))
    return f'<a href="{markup(drawn.bubble.link)}" aria-label="{label}">{picture}</a>'


def _limits(
    lines: Sequence[tuple[str, int]], y: Callable[[float], float], right: float
) -> Iterator[str]:
    """A dashed line for each budget, its name over its end; lines that are close share a name."""
    names: list[tuple[float, str]] = []
    above = -math.inf
    for name, size_bytes in sorted(lines, key=lambda each: -each[1]):
        at = y(size_bytes)
        yield line(LEFT, at, right, at, dash="5 4")
        if at - above < LINE - 2:
            names[-1] = names[-1][0], f"{names[-1][1]}, {name}"
        else:
            names.append((at, name))
        above = at
    for at, name in names:
        yield words(right, at - 3, cut(name, right - LEFT), "end")


_Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""


def _names(drawn: Sequence[_Drawn], right: float) -> Iterator[tuple[int, str]]:
    """Names beside bubbles, the largest first, where they cover no other name or bubble.

    Greedy: the largest bubble chooses first, among the positions that ``_spots`` lists. A large one
    for which none is free has its name farther away, with a line to it, and in the end over other
    bubbles; a small one has it in the tooltip alone.
    """
    circles = [(p.x - p.radius, p.y - p.radius, p.x + p.radius, p.y + p.radius) for p in drawn]
    taken: list[_Box] = []
    for number, each in enumerate(drawn):
        text = cut(each.bubble.name, _NAME)
        width = text_width(text)
        near = list(_spots(each, width))
        is_large = each.radius >= _NAMED_RADIUS
        far = list(_far_spots(each, width)) if is_large else []
        # A name that covers a circle is better than none, for a large circle only.
        spot = _free([*near, *far], [*taken, *circles], right, width)
        if spot is None and is_large:
            spot = _free([*near, *far], taken, right, width)
        if spot is None:
            continue
        left, base = spot
        taken.append((left, base - 10, left + width, base + 3))
        pointer = "" if spot in near else _pointer(each, spot, width)
        yield number, pointer + words(left, base, text)


def _free(
    spots: Sequence[tuple[float, float]], taken: Sequence[_Box], right: float, width: float
) -> tuple[float, float] | None:
    """The first place within the plot that covers nothing."""
    for left, base in spots:
        # Above and below the base line, as text of this size is drawn.
        spot = (left, base - 10, left + width, base + 3)
        if left > LEFT and spot[2] < right and not any(_overlap(spot, each) for each in taken):
            return left, base
    return None


def _spots(drawn: _Drawn, width: float) -> Iterator[tuple[float, float]]:
    """Where a name of a width may begin: right, left, above and below its bubble."""
    yield drawn.x + drawn.radius + 3, drawn.y + 4
    yield drawn.x - drawn.radius - 3 - width, drawn.y + 4
    yield drawn.x - width / 2, drawn.y - drawn.radius - 4
    yield drawn.x - width / 2, drawn.y + drawn.radius + 12


def _far_spots(drawn: _Drawn, width: float) -> Iterator[tuple[float, float]]:
    """Around a bubble, ever farther."""
    for distance in range(12, 100, 12):
        for number in range(16):
            angle = math.tau * number / 16
            x = drawn.x + (drawn.radius + distance + width / 2) * math.cos(angle)
            yield x - width / 2, drawn.y + (drawn.radius + distance) * math.sin(angle) + 4


def _pointer(drawn: _Drawn, spot: tuple[float, float], width: float) -> str:
    """A line from the edge of a bubble to the nearest point of its name."""
    x = min(max(drawn.x, spot[0]), spot[0] + width)
    y = spot[1] - 4
    length = math.hypot(x - drawn.x, y - drawn.y) or 1.0
    # From the edge of the circle, not from its center.
    share = min(drawn.radius / length, 1.0)
    start = drawn.x + (x - drawn.x) * share, drawn.y + (y - drawn.y) * share
    return line(*start, x, y, dash="1 2")


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
