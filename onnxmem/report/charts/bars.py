"""Bars that add up: each begins where the one above it ends."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from onnxmem.report.charts.drawing import LINE, WIDTH, box, cut, framed, line, told, words
from onnxmem.report.charts.scales import Scale
from onnxmem.units import format_bytes, plural

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
    largest = sorted(range(len(items)), key=lambda place: -abs(items[place][1]))[:_MOST]
    kept = [items[place] for place in sorted(largest)]
    rest = sum(size for _, size in items) - sum(size for _, size in kept)
    return [*kept, (plural(len(items) - _MOST, "other"), rest)]


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
        yield told(label + bar + sized, f"{cut(name, 2000)}: {size:,} B")


def _total(total: int, y: float, *, is_signed: bool) -> Iterator[str]:
    yield line(_NAMES + 8, y + 4, WIDTH, y + 4)
    yield words(_NAMES, y + LINE + 1, "together", "end")
    yield words(WIDTH - 2, y + LINE + 1, _size(total, is_signed=is_signed), "end")


def _size(size: int, *, is_signed: bool) -> str:
    return f"+{format_bytes(size)}" if is_signed and size > 0 else format_bytes(size)
