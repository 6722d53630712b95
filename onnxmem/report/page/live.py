"""What is alive at the peaks, as bars that add up."""

from collections.abc import Iterable, Mapping, Sequence

from onnxmem.analysis.analysis import Analysis
from onnxmem.report.page import markup
from onnxmem.report.page.markup import section
from onnxmem.report.page.stops import Stop, Stops
from onnxmem.report.sections.listing import live_set
from onnxmem.report.sections.section import Line
from onnxmem.report.sections.training import live_lines

_MOST = 15
"""Bars of a peak; the others are one."""

Bars = Sequence[tuple[str, int]]


def live_sections(analysis: Analysis, stops: Stops) -> str:
    """The bars of the run's peak, and of the training step's where one is asked for."""
    parts = []
    if analysis.training is not None:
        parts.append("<h3>A training step</h3>" + _table("live-train", _train(stops.requested)))
    parts.append("<h3>A run, activations alone</h3>" + _table("live-run", _run(stops.requested)))
    remark = "What is alive at once at the peak; each bar begins where the one above ends."
    return section("live", "Live at the peak", "".join(parts), remark)


def live_data(analysis: Analysis, stops: Stops) -> Mapping[str, object]:
    """The bars at each stop, by the element that shows them; a name is its place in a list."""
    tables = {"live-run": [_run(stop) for stop in stops.all]}
    if analysis.training is not None:
        tables["live-train"] = [_train(stop) for stop in stops.all]
    names: dict[str, int] = {}
    shown = {
        key: [[[names.setdefault(name, len(names)), size] for name, size in bars] for bars in rows]
        for key, rows in tables.items()
    }
    return {"names": list(names), "tables": shown}


def _run(stop: Stop) -> Bars:
    live = live_set(stop.analysis)
    return _cut(() if live is None else live.lines)


def _train(stop: Stop) -> Bars:
    training = stop.analysis.training
    return _cut(() if training is None else tuple(live_lines(training)))


def _cut(lines: Sequence[Line]) -> Bars:
    """The largest, and the others as one."""
    bars = [(line.label, line.number or 0) for line in lines]
    rest = sum(size for _, size in bars[_MOST:])
    more = len(bars) - _MOST
    return [*bars[:_MOST], (f"{more:,} more", rest)] if more > 0 else bars


def _table(table_id: str, bars: Bars) -> str:
    total = sum(size for _, size in bars)
    rows = "".join(_rows(bars, total))
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="live at the peak">'
        f'<table class="bars" id="{table_id}"><thead><tr><th scope="col">tensor</th>'
        '<th scope="col" class="num">size</th><th scope="col">share</th></tr></thead>'
        f"<tbody>{rows}</tbody>"
        f'<tfoot><tr><th scope="row">together</th><td class="num">{markup.size(total)}</td>'
        "<td></td></tr></tfoot></table></div>"
    )


def _rows(bars: Bars, total: int) -> Iterable[str]:
    start = 0
    for name, size in bars:
        yield (
            f'<tr><th scope="row" class="name">{markup.name(name)}</th>'
            f'<td class="num">{markup.size(size)}</td><td>{_bar(start, size, total)}</td></tr>'
        )
        start += size


def _bar(start: int, size: int, total: int) -> str:
    left, width = (1000 * each / total if total else 0 for each in (start, size))
    return (
        '<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="c-activations" x="{left:.1f}" width="{max(width, 1):.1f}" height="10"/>'
        "</svg>"
    )
