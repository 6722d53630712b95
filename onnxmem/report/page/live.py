"""What is alive at the peaks as bars that add up, and how activations are packed in one block."""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from itertools import accumulate
from typing import Final, NamedTuple

from onnxmem.analysis.analysis import Analysis
from onnxmem.errors import shortened
from onnxmem.model.module_paths import dotted_path
from onnxmem.report.charts.drawing import Frame
from onnxmem.report.charts.steps import Strip, strips_svg
from onnxmem.report.page import markup
from onnxmem.report.page.markup import section, swatch
from onnxmem.report.page.stops import Stop, Stops
from onnxmem.report.text import percent
from onnxmem.report.timelines import GROUPS, groups_of
from onnxmem.units import format_bytes, plural

_MOST_PACKED: Final = 30_000
"""Characters of the charts of packed blocks at other batches."""
_NAMED_PERCENT: Final = 90
"""Of a peak's bytes: the tensors that hold them have a bar each, the others are one."""
_MOST_BARS: Final = 200
NO_MODULE: Final = "(no module)"
_DERIVED: Final = re.compile(r"^.* (?:of|beside) ")
"""What stands before a tensor's own name: gradients and states of it."""
_DEEPEST: Final = 8


class _Bar(NamedTuple):
    """A tensor that is alive at a peak, or all that are left."""

    name: str
    group: str
    """A key of ``GROUPS``; empty for what is left."""
    size_bytes: int


_Bars = Sequence[_Bar]
_LIVE_TITLES: Final = {
    "live-train": "Training step",
    "live-modules": "Training step, by module",
    "live-run": "Inference, activations alone",
}


def live_section(analysis: Analysis) -> str:
    """What is alive at the peaks, as bars that add up."""

    def is_folded(key: str) -> bool:
        return key == "live-run" and analysis.training is not None

    body = "".join(
        f"<details{'' if is_folded(key) else ' open'}>"
        f"<summary><h3>{_LIVE_TITLES[key]}</h3></summary>"
        f"{_bars_table(key, _largest(live_of(analysis)))}</details>"
        for key, live_of in _live_tables(analysis).items()
    )
    remark = (
        "What is alive at once at the peak, the largest first: what holds"
        f" {_NAMED_PERCENT} % of the bytes, {_MOST_BARS} at most. A bar begins where the one above"
        " ends."
    )
    return section("live", "Live at the peak", body, remark)


def _live_tables(analysis: Analysis) -> Mapping[str, Callable[[Analysis], _Bars]]:
    """What is alive, by the element that shows it."""
    if analysis.training is None:
        return {"live-run": _inference_live}
    depth = useful_depth((bar.name, bar.size_bytes) for bar in _training_live(analysis))
    by_module = {} if depth is None else {"live-modules": partial(_module_live, depth)}
    return {"live-train": _training_live, **by_module, "live-run": _inference_live}


def live_data(analysis: Analysis, stops: Stops) -> Mapping[str, object]:
    """The bars at each stop: the index of a name with its group, and bytes.

    Every stop has as many names as the one that needs most of them, so that two stops can have the
    same; a script leaves out those beyond 90 %. Last comes the number of the others, below 0, and
    their bytes.
    """
    names: dict[tuple[str, int], int] = {}
    groups = list(GROUPS)

    def index(bar: _Bar) -> int:
        key = bar.name, groups.index(bar.group) if bar.group else -1
        return names.setdefault(key, len(names))

    shown: dict[str, list[list[list[int]]]] = {}
    for key, live_of in _live_tables(analysis).items():
        live_sets = [live_of(stop.analysis) for stop in stops.all]
        count = min(max(map(_num_named, live_sets)), _MOST_BARS)
        shown[key] = [
            [
                *([index(each), each.size_bytes] for each in bars[:count]),
                *_rest(bars[count:]),
            ]
            for bars in live_sets
        ]
    return {
        "names": list(names),
        "percent": _NAMED_PERCENT,
        "most": _MOST_BARS,
        "groups": [[name, css_class] for name, css_class in GROUPS.items()],
        "tables": shown,
    }


def _inference_live(analysis: Analysis) -> _Bars:
    """What is alive at the peak of inference, the largest first."""
    live = analysis.activations.live_at_peak
    return [_Bar(shortened(each.label), each.category.value, each.size_bytes) for each in live]


def _training_live(analysis: Analysis) -> _Bars:
    """What is alive at the peak of a training step, the largest first."""
    if analysis.training is None:
        return ()
    replay = analysis.training.replay
    program, groups, names = replay.program, groups_of(replay), list(GROUPS)
    alive = program.alive_after(replay.peak.num_events)
    alive.sort(key=replay.sizes.bytes_of, reverse=True)
    return [
        _Bar(shortened(program.labels[n]), names[groups[n]], replay.sizes.bytes_of(n))
        for n in alive
    ]


def _module_live(depth: int, analysis: Analysis) -> _Bars:
    """The same by module, the largest first, each with the category that has most of its bytes."""
    found: dict[str, Counter[str]] = {}
    for bar in _training_live(analysis):
        groups = found.setdefault(module_at(bar.name, depth), Counter())
        groups[bar.group] += bar.size_bytes
    bars = (
        _Bar(name, max(of, key=lambda each: of[each]), of.total()) for name, of in found.items()
    )
    return sorted(bars, key=lambda bar: -bar.size_bytes)


def _rest(bars: _Bars) -> Iterator[list[int]]:
    if bars:
        yield [-len(bars), sum(each.size_bytes for each in bars)]


def _largest(bars: _Bars) -> _Bars:
    """As many of the largest as hold 90 % of the peak, and the others as one."""
    return _with_rest(bars, min(_num_named(bars), _MOST_BARS))


def _num_named(bars: _Bars) -> int:
    sums = list(accumulate(each.size_bytes for each in bars))
    least = -(-_NAMED_PERCENT * sums[-1] // 100) if sums else 0
    return bisect_left(sums, least) + 1 if sums else 0


def _with_rest(bars: _Bars, count: int) -> _Bars:
    more = len(bars) - count
    if more <= 0:
        return bars
    rest = sum(each.size_bytes for each in bars[count:])
    return [*bars[:count], _Bar(f"{more:,} more", "", rest)]


def _bars_table(table_id: str, bars: _Bars) -> str:
    total = sum(each.size_bytes for each in bars)
    rows = "".join(_bar_rows(bars, total))
    label = f"live at the peak, {_LIVE_TITLES[table_id].lower()}"
    is_modules = table_id == "live-modules"
    what, category = ("module", "most of it") if is_modules else ("tensor", "category")
    return markup.scrolling(
        label,
        f'<table class="bars" id="{table_id}" aria-label="{label}"><thead>'
        f'<tr><th scope="col">{what}</th>'
        f'<th scope="col">{category}</th><th scope="col" class="num">size</th>'
        f'<th scope="col">share</th></tr></thead><tbody>{rows}</tbody>'
        f'<tfoot><tr><th scope="row">total</th><td></td><td class="num">{markup.size(total)}</td>'
        "<td></td></tr></tfoot></table>",
    )


def _bar_rows(bars: _Bars, total: int) -> Iterable[str]:
    start = 0
    for each in bars:
        yield (
            f'<tr><th scope="row" class="name">{escape(each.name)}</th>'
            f"<td>{swatch(each.group) if each.group else ''}{escape(each.group)}</td>"
            f'<td class="num">{markup.size(each.size_bytes)}</td>'
            f"<td>{_bar(start, each, total)}</td></tr>"
        )
        start += each.size_bytes


def _bar(start: int, bar: _Bar, total: int) -> str:
    left, width = (100 * each / total if total else 0 for each in (start, bar.size_bytes))
    return (
        f'<svg class="bar" aria-hidden="true"><rect class="{GROUPS.get(bar.group, "c-rest")}"'
        f' x="{left:.2f}%" width="{width:.2f}%" height="14"/></svg>'
    )


def packing_section(stops: Stops) -> str:
    """How the activations of inference are packed, at as many stops as are not too large."""
    requested = stops.requested
    shown = _packed(requested, "onnxmem-packing", 100)
    if shown is None:
        return ""
    others, left = list[str](), _MOST_PACKED
    by_distance = sorted(stops.all, key=lambda stop: abs(stop.batch - requested.batch))
    for stop in by_distance[1:] if stops.can_move else ():
        drawn = _packed(stop, f"onnxmem-packing-{stop.batch}", 12)
        left -= len(drawn or "")
        if left < 0:
            break
        others.append(f'<template data-packing="{stop.batch}">{drawn or ""}</template>')
    caption = (
        '<p class="remark">Each strip is a buffer of an inference.'
        f"{_drawn_at(stops.requested) if stops.can_move else ''}</p>"
    )
    batch = f' data-packing="{requested.batch}"' if stops.can_move else ""
    held = f'<div id="onnxmem-packing-chart"{batch}>{shown}</div>{"".join(others)}'
    return section("packing", "How the activations are packed", caption + held, is_open=False)


def _drawn_at(stop: Stop) -> str:
    return f" Drawn at batch <span data-packed-batch>{stop.batch:,}</span>."


def _packed(stop: Stop, chart_id: str, most_tooltips: int) -> str | None:
    """The buffers of one batch in one block; ``None`` where no buffer has bytes."""
    memory = stop.analysis.activations
    if not memory.in_place_peak_bytes:
        return None
    program, sizes, packing = memory.replay.program, memory.replay.sizes, memory.packing
    starts, stops = (column.tolist() for column in program.lifetimes)
    # No node runs in the first step of the program.
    strips = [
        Strip(program.labels[n], starts[n] - 1, stops[n] - 1, offset, sizes.bytes_of(n))
        for n, offset in sorted(packing.offsets.items())
    ]
    share = percent(100 * packing.gap_bytes / packing.size_bytes)
    quality = "optimal" if packing.is_optimal else f"fragmentation {share}"
    packed = f"{format_bytes(packing.size_bytes)} ({quality})"
    count = plural(len(strips), "buffer")
    svg = strips_svg(
        strips,
        Frame(chart_id, "Buffers over steps and addresses", f"{count} in one block of {packed}."),
        num_steps=len(program.steps) - 1,
        size_bytes=packing.size_bytes,
        most_tooltips=most_tooltips,
    )
    figure = markup.chart(svg, "buffers over steps and addresses")
    return (
        f"<figure>{figure}<figcaption>{plural(len(strips), 'buffer')} in one block:"
        f" {packed}.</figcaption></figure>"
    )


# Tensors by module. PyTorch's exporters write the weight ``layers.0.conv1.weight`` and the node
# ``/layers/layers.0/conv1/Conv``: both are in the module ``layers.0.conv1``. The page's script has
# the same rule, ``pathOf``.


def module_path(name: str) -> str:
    """The dotted path of a tensor or a node, its own name last.

    >>> module_path("/layers/layers.0/conv1/Conv_output_0")
    'layers.0.conv1.Conv_output_0'
    >>> module_path("state of layers.0.conv1.weight")
    'layers.0.conv1.weight'
    """
    return dotted_path(_DERIVED.sub("", name).split("/"))


def module_at(name: str, depth: int) -> str:
    """The module of a tensor, at most so many names deep."""
    return ".".join(module_path(name).split(".")[:-1][:depth]) or NO_MODULE


def useful_depth(sizes: Iterable[tuple[str, int]]) -> int | None:
    """The least depth at which no module has more than half of the bytes.

    ``None`` where names have no modules: then a sum by module says nothing.
    """
    sizes = list(sizes)
    for depth in range(1, _DEEPEST + 1):
        sums: dict[str, int] = {}
        for name, size_bytes in sizes:
            module = module_at(name, depth)
            sums[module] = sums.get(module, 0) + size_bytes
        if 2 * max(sums.values(), default=0) <= sum(sums.values()):
            return depth if len(sums.keys() - {NO_MODULE}) > 1 else None
    return None
