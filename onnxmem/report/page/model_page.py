"""The page of one model: every figure of its row in JSON, at any batch that a slider is set to.

At the top are the totals, the assumptions and what fits; then the charts, the sections of the text
report as tables, and a row for each node. A number with a key, and words with one, are spans that
the page's script moves with the batch.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import accumulate
from typing import Final, NamedTuple

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.compute import Layer, layers
from onnxmem.analysis.fitting.verdicts import BASES, basis_for
from onnxmem.analysis.json_rows import error_percent
from onnxmem.errors import shortened
from onnxmem.program.program import Category
from onnxmem.report.charts.steps import Strip, strips_svg
from onnxmem.report.page import markup
from onnxmem.report.page.markup import Cell, document, section
from onnxmem.report.page.stops import (
    BUDGET,
    ELEMENTS,
    TERMS,
    VERDICT,
    Figures,
    Stop,
    Stops,
    budget_terms,
    devices_shown,
    evaluated,
    figure_data,
    line_through,
)
from onnxmem.report.page.timeline import (
    affine_sizes,
    peak_lines,
    reserved_sections,
    timeline_data,
    timeline_section,
)
from onnxmem.report.sections.listing import (
    assumptions,
    model_facts,
    partial_texts,
    sections,
)
from onnxmem.report.sections.section import Layout, Line, Note, Section
from onnxmem.report.text import multiple_text, percent, shape_text
from onnxmem.report.timelines import GROUPS, SAVED, groups_of, lifetimes_of
from onnxmem.report.verdict import assessment_lines, budget
from onnxmem.units import format_bytes, format_count, plural

_SHOWN_KEYS: Final = re.compile(r'data-(?:figure|ratio|to|rounded)="([^"]+)"')
_TEXT_KEYS: Final = re.compile(r'data-text="([^"]+)"')
_PEAK_OF: Final[Mapping[str, str]] = {
    "activations.peak_at": "activations.in_place_peak_bytes",
    "training.peak_phase": "training.peak_bytes",
    "training.peak_node": "training.peak_bytes",
    VERDICT: "total_bytes",
}
"""By the start of a text's key: the peak that it describes. Between two stops at which such a text
is the same it holds as long as the peak is one line; other texts are known at the stops alone."""
_DRAWN: Final = frozenset({"live", "fits"})
"""Sections with a form of their own on the page."""
_AT_ONE_BATCH: Final = frozenset({"checkpoints", "measured"})
"""Sections that are shown at the requested batch alone."""
_BY_CATEGORY: Final = "training.live_by_kind."
"""How the keys of a training step's categories start."""
_AFTER_CHARTS: Final = frozenset({"rules", "compute", "findings", "coverage"})
_CARDS: Final = ("run", "train", "cuda", "cache")
"""Sections whose totals are cards at the top of the page."""
_MOST_PACKED: Final = 36_000
"""Characters of the charts of packed blocks at other batches."""
_NAMED_PERCENT: Final = 90
"""Of a peak's bytes: the tensors that hold them have a bar each, the others are one."""
_MOST_BARS: Final = 200
_MOST_LAYERS: Final = 1000
"""Rows of the table of nodes; of more nodes the largest."""
_LAYER_HEADS: Final = (
    *(("step", True), ("node", False), ("operator", False), ("output shape", False)),
    *(("dtype", False), ("output", True), ("parameters", True), ("weights", True)),
    *(("MACs", True), ("FLOPs", True)),
)


class _Bar(NamedTuple):
    """A tensor that is alive at a peak, or all that are left."""

    name: str
    group: str
    """A key of ``GROUPS``; empty for what is left."""
    size_bytes: int


_Bars = Sequence[_Bar]
_LIVE_TITLES: Final = {"live-train": "Training step", "live-run": "Inference, activations alone"}


def render_page(analysis: Analysis) -> str:
    """One HTML file; analyzes the model at a few other batches for the slider."""
    stops = evaluated(analysis)
    lifetimes = lifetimes_of(analysis)
    affine = affine_sizes(lifetimes, stops)
    known = peak_lines(lifetimes, affine)
    proven = {key: lines for key, lines in known.items() if stops.agrees(key, lines)}
    stops = replace(stops, proven=proven)
    written = sections(analysis)
    tables = {each.key: section_html(each, _at(analysis, each)) for each in written}
    first = [key for key in tables if key not in _DRAWN | _AFTER_CHARTS]
    parts = [
        _head(analysis, stops, written),
        _fits(analysis, stops),
        timeline_section(lifetimes, stops),
        *reserved_sections(analysis),
        _live(analysis, stops),
        *(tables[key] for key in first),
        _packing(stops),
        layers_section(analysis, stops),
        *(tables[key] for key in tables if key in _AFTER_CHARTS),
    ]
    data = {
        "batch": stops.requested.batch if stops.can_move else None,
        "stops": stops.batches,
        "last": stops.last,
        "figures": dict(figure_data(stops, _keys(parts))),
        "texts": _texts(stops, parts),
        "live": _live_data(analysis, stops),
        "timeline": timeline_data(lifetimes, stops, affine),
    }
    title, heading = _title(analysis)
    return document(title, filter(None, parts), data, heading=heading, has_plot=True)


def _at(analysis: Analysis, section: Section) -> str:
    """The batch of a section that does not move."""
    batch = analysis.settings.batch
    return "" if batch is None or section.key not in _AT_ONE_BATCH else f"at batch {batch:,}"


def _keys(parts: Sequence[str]) -> Sequence[str]:
    """The figures that the page shows, and those from which a script computes others."""
    shown = (key for each in parts for key in _SHOWN_KEYS.findall(each))
    needed = ("total_bytes", "training.peak_bytes", "activations.in_place_peak_bytes")
    return tuple(dict.fromkeys((*shown, *ELEMENTS, *needed)))


def _texts(stops: Stops, parts: Sequence[str]) -> Mapping[str, object]:
    found = dict.fromkeys(key for each in parts for key in _TEXT_KEYS.findall(each))
    return {
        key: {
            "at": stops.texts(key),
            "told": stops.known_texts(key),
            "of": next((peak for start, peak in _PEAK_OF.items() if key.startswith(start)), ""),
        }
        for key in found
    }


def _title(analysis: Analysis) -> tuple[str, str]:
    """The model's name and its total as text, and as a heading whose total a script moves."""
    training, name = analysis.training, shortened(analysis.path)
    total_bytes = analysis.total_bytes if training is None else training.peak_bytes
    key = "total_bytes" if training is None else "training.peak_bytes"
    total = format_bytes(total_bytes)
    moved = f'<span class="size" data-rounded="{key}">{total}</span>'
    return f"{name}: {total}", f'<span class="name">{escape(name)}</span>: {moved}'


def _head(analysis: Analysis, stops: Stops, written: Iterable[Section]) -> str:
    """The totals as cards, the assumptions before them."""
    facts = escape(", ".join(model_facts(analysis)))
    assumed = _with_batch(", ".join(assumptions(analysis)), analysis.settings.batch)
    partial = "".join(f'<p class="warning">{escape(t)}</p>' for t in partial_texts(analysis))
    cards = "".join(
        f'<div class="card"><h3>{escape(title)}</h3>{_number(line)}<p>{_words(line)}</p></div>'
        for title, line in _totals(written)
    )
    return (
        f'<section id="head" aria-label="the model"><p class="facts">{facts}</p>'
        f'<p class="assumes"><b>assumes:</b> {assumed}</p>{partial}</section>'
        f"{_slider(stops, analysis.settings.budget_bytes)}"
        f'<section id="answers" aria-label="in short"><div class="cards">{cards}</div></section>'
    )


def _totals(written: Iterable[Section]) -> Iterator[tuple[str, Line]]:
    """The totals of sections and sessions, with their titles."""
    for each in written:
        if each.key in _CARDS and each.headline is not None:
            yield each.title, each.headline
        elif each.key.startswith("runtime-"):
            yield from ((each.title, line) for line in each.lines if line.is_total)


def _with_batch(text: str, batch: int | None) -> str:
    """Words in which a script moves the number of the batch."""
    if batch is None:
        return escape(text)
    number = f"batch <span data-batch-number>{batch:,}</span>"
    return re.sub(rf"\bbatch {batch:,}(?![\d,.])", number, escape(text), count=1)


def _slider(stops: Stops, budget_bytes: int | None) -> str:
    """The control of the batch; hidden without a script, as nothing would move the figures."""
    if not stops.is_free and stops.requested.batch:
        return '<p class="remark">The batch size is fixed in this model.</p>'
    if not stops.can_move:
        return ""
    verdict = ""
    if budget_bytes is not None:
        found = _verdict(BUDGET, stops.requested.figures)
        verdict = f'<p class="answer">{format_bytes(budget_bytes)}: {found}</p>'
    batch, last = stops.requested.batch, stops.last
    buttons = "".join(
        f'<button type="button" data-batch="{each}">{each:,}</button>' for each in stops.batches
    )
    return (
        '<form class="slider" id="onnxmem-batch" hidden>'
        '<label for="onnxmem-batch-range">batch</label>'
        f'<input type="range" id="onnxmem-batch-range" min="1" max="{last}" value="{batch}">'
        f'<input type="number" id="onnxmem-batch-number" min="1" max="{last}" value="{batch}"'
        ' aria-label="batch, as a number">'
        f'<span class="stops" role="group" aria-label="batches at which every figure is known">'
        f"{buttons}</span>{verdict}"
        '<p id="onnxmem-batch-note" role="status"></p></form>'
    )


def _fits(analysis: Analysis, stops: Stops) -> str:
    """What the model fits: the budget, or the memory sizes of GPUs."""
    budgeted = budget(analysis)
    if budgeted is not None:
        return _fits_budget(analysis, stops, budgeted)
    rows = [
        (
            Cell(escape(each.name)),
            markup.bytes_cell(each.limit_bytes),
            Cell(_verdict(each.name, stops.requested.figures)),
        )
        for each in devices_shown(None)
    ]
    settings, runtime = analysis.settings, analysis.request.runtime_name
    basis = basis_for(None, train=settings.train, runtime=runtime, basis=settings.basis)
    remark = f"Compared: {BASES[basis]}. A card may offer a program less than it is sold with."
    heads = (("memory", False), ("size", True), ("verdict", False))
    return section("fits", "What it fits", markup.table("fits-table", heads, rows), remark)


def _fits_budget(analysis: Analysis, stops: Stops, budgeted: Section) -> str:
    """The verdict, what is compared at the batch that is shown, and the largest batch."""
    batch = analysis.settings.batch
    this = "this model" if batch is None else f"batch <span data-batch-number>{batch:,}</span>"
    size = markup.size(analysis.settings.budget_bytes)
    head = f"<p>{size}: {this} {_verdict(BUDGET, stops.requested.figures)}</p>"
    moved = tuple(_moved_terms(analysis, stops))
    fixed = set() if analysis.fit is None else set(assessment_lines(analysis.fit.assessment))
    lines = (*moved, *(line for line in budgeted.lines if line not in fixed))
    return section("fits", budgeted.title, head + _table(lines, budgeted.title))


def _moved_terms(analysis: Analysis, stops: Stops) -> Iterator[Line]:
    """What is compared with the budget; terms that only other batches have are hidden."""
    if analysis.fit is None:
        return
    found = {line.words_key: line for line in budget_terms(analysis.fit.assessment)}
    for stop in stops.all:
        for key in stop.figures.texts:
            if key.startswith(TERMS) and key not in found:
                label = key.removeprefix(TERMS).rpartition(".")[0]
                is_number = key in stop.figures.numbers
                text = None if is_number else ""
                number_key = key if is_number else ""
                found[key] = Line(label, text=text, key=number_key, words_key=key)
    yield from found.values()


def section_html(section: Section, remark: str = "") -> str:
    """A section as a table; ``remark`` comes after the section's own."""
    remarks = "; ".join(filter(None, (section.remark, section.summary, remark)))
    if section.layout is Layout.COMPARED:
        body = _comparisons(section)
    else:
        headline = section.headline
        lines = section.lines if headline is None else (headline, *section.lines)
        body = _table(lines, section.title, section.reference)
    return markup.section(section.key, section.title, body + _notes(section.notes), remarks)


def _table(lines: Iterable[Line], caption: str, reference: Line | None = None) -> str:
    """Rows of a label, a number and what it is, or multiples of the reference."""
    rows = "".join(_line_rows(lines, reference))
    if not rows:
        return ""
    hidden = f'<caption class="hidden">{escape(caption)}</caption>'
    return markup.scrolling(caption, f'<table class="terms">{hidden}<tbody>{rows}</tbody></table>')


def _number(line: Line) -> str:
    """A number as the text report has it, rounded and exact, with its key."""
    written = markup.size(line.number) if line.unit == "bytes" else markup.count(line.number)
    if not line.key:
        return written
    return f'<span data-figure="{escape(line.key)}" data-as="{line.unit}">{written}</span>'


def _words(line: Line | Note) -> str:
    """The words of a line or a note, with their key."""
    words = escape(line.words)
    if not line.words_key:
        return words
    return f'<span class="name" data-text="{escape(line.words_key)}">{words}</span>'


def _verdict(name: str, figures: Figures) -> str:
    """The verdict on one size of memory."""
    key = f"verdict.{name}"
    text = figures.texts.get(key, "")
    state = text.partition(":")[0].replace("does not fit", "over")
    return (
        f'<span class="verdict" data-state="{escape(state)}" data-verdict'
        f' data-text="{escape(key)}">{escape(text)}</span>'
    )


def _notes(notes: Iterable[Note]) -> str:
    """Each note behind its label."""
    items = "".join(f"<li><code>{escape(note.label)}</code>: {_words(note)}</li>" for note in notes)
    return f'<ul class="findings">{items}</ul>' if items else ""


def _line_rows(lines: Iterable[Line], reference: Line | None = None) -> Iterator[str]:
    for line in lines:
        if line.parts:
            yield f'<tr><th scope="row">{escape(line.label)}</th><td></td><td></td></tr>'
            yield from _line_rows(line.parts)
        elif line.text is not None:
            label = f'<th scope="row">{escape(line.label)}</th>'
            yield f'<tr{_row_attributes(line)}>{label}<td colspan="2">{_words(line)}</td></tr>'
        else:
            remark = _words(line) if reference is None else _multiple(line, reference)
            yield (
                f'<tr{_row_attributes(line)}><th scope="row">{_swatches(line)}{escape(line.label)}'
                f'</th><td class="num">{_number(line)}</td><td>{remark}</td></tr>'
            )


def _swatches(line: Line) -> str:
    """The colors of a category in the charts; saved activations have one of their own there."""
    group = line.key.removeprefix(_BY_CATEGORY)
    if group == line.key or group not in GROUPS:
        return ""
    return swatch(SAVED, group) if group == Category.ACTIVATION.value else swatch(group)


def _row_attributes(line: Line) -> str:
    css = "total" if line.is_total else "deep" if line.depth > 1 else ""
    named = f' class="{css}"' if css else ""
    if line.words_key.startswith(TERMS):
        named += f' data-term="{escape(line.words_key)}"'
        return named + ("" if line.words else " hidden")
    drops = f' data-drops="{escape(line.key)}"' if line.drops_zero else ""
    return named + drops + (" hidden" if line.drops_zero and not line.number else "")


def _multiple(line: Line, reference: Line) -> str:
    text = multiple_text(line.number, reference.number)
    keys = f'data-ratio="{escape(line.key)}" data-to="{escape(reference.key)}"'
    return f"<span {keys}>{text}</span>"


def _comparisons(section: Section) -> str:
    """A table of what was predicted and what was measured."""
    heads = (
        *(("figure", False), ("predicted", True), ("measured", True), ("error", True)),
        ("", False),
    )
    rows = [_comparison(line) for line in section.lines if line.text is None]
    remarks = "".join(
        f'<p class="remark">{escape(line.label)}: {escape(line.text)}.</p>'
        for line in section.lines
        if line.text is not None
    )
    return markup.table(f"{section.key}-table", heads, rows) + remarks


def _comparison(line: Line) -> Iterator[Cell]:
    error = error_percent(line.predicted, line.number)
    yield Cell(escape(line.label))
    yield markup.bytes_cell(line.predicted)
    yield markup.bytes_cell(line.number)
    yield Cell(percent(error), error, is_number=True)
    yield Cell(escape(line.remark))


def _live(analysis: Analysis, stops: Stops) -> str:
    """What is alive at the peaks, as bars that add up."""
    tables = _live_tables(analysis, stops)
    shown = stops.all.index(stops.requested)
    body = "".join(
        f"<h3>{_LIVE_TITLES[key]}</h3>{_bars_table(key, bars[shown])}"
        for key, bars in tables.items()
    )
    remark = (
        "What is alive at once at the peak, the largest first; each bar begins where the one"
        f" above ends. Named are {_NAMED_PERCENT} % of the bytes, at most {_MOST_BARS} tensors."
    )
    return section("live", "Live at the peak", body, remark)


def _live_tables(analysis: Analysis, stops: Stops) -> Mapping[str, Sequence[_Bars]]:
    """The bars at each stop, by the element that shows them."""
    found = {"live-train": _training_live} if analysis.training is not None else {}
    return {
        key: _largest([live_at(stop.analysis) for stop in stops.all])
        for key, live_at in {**found, "live-run": _inference_live}.items()
    }


def _live_data(analysis: Analysis, stops: Stops) -> Mapping[str, object]:
    """The bars at each stop; a name with its group is its index in a list."""
    names: dict[tuple[str, int], int] = {}
    groups = list(GROUPS)

    def index(bar: _Bar) -> int:
        key = bar.name, groups.index(bar.group) if bar.group else -1
        return names.setdefault(key, len(names))

    shown = {
        key: [[[index(each), each.size_bytes] for each in bars] for bars in rows]
        for key, rows in _live_tables(analysis, stops).items()
    }
    return {
        "names": list(names),
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


def _largest(live_sets: Sequence[_Bars]) -> Sequence[_Bars]:
    """At every stop as many of the largest as hold 90 % of the peak, and the others as one."""
    count = min(max(map(_num_named, live_sets)), _MOST_BARS)
    return [_with_rest(bars, count) for bars in live_sets]


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
    return markup.scrolling(
        "live at the peak",
        f'<table class="bars" id="{table_id}"><thead><tr><th scope="col">tensor</th>'
        '<th scope="col">category</th><th scope="col" class="num">size</th>'
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
        f'<svg class="bar"><rect class="{GROUPS.get(bar.group, "c-rest")}" x="{left:.2f}%"'
        f' width="{width:.2f}%" height="14"/></svg>'
    )


def swatch(*groups: str) -> str:
    """The colors of groups, as the charts have them."""
    return "".join(f'<span class="swatch {GROUPS[each]}"></span>' for each in groups)


def _packing(stops: Stops) -> str:
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
    return section("packing", "How the activations are packed", caption + held)


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
        num_steps=len(program.steps) - 1,
        size_bytes=packing.size_bytes,
        chart_id=chart_id,
        title="Buffers over steps and addresses",
        description=f"{count} in one block of {packed}.",
        most_tooltips=most_tooltips,
    )
    figure = markup.chart(svg, "buffers over steps and addresses")
    return (
        f"<figure>{figure}<figcaption>{plural(len(strips), 'buffer')} in one block:"
        f" {packed}.</figcaption></figure>"
    )


def layers_section(analysis: Analysis, stops: Stops) -> str:
    """A row for each node, which a script sorts, filters and moves with the batch."""
    rows = _nodes(analysis)
    shown, remark = list(range(len(rows))), ""
    if len(rows) > _MOST_LAYERS:
        shown = sorted(sorted(shown, key=lambda step: -_bytes_of(rows[step]))[:_MOST_LAYERS])
        remark = (
            f"The {_MOST_LAYERS:,} largest of {plural(len(rows), 'node')} by outputs and weights;"
            f" onnxmem --layers has all. The sums below are of all."
        )
    others = _at_stops(rows, stops, shown)
    batches = [batch for batch, _ in others]
    cells = [
        _layer_cells(step, rows[step], [layer[number] for _, layer in others], batches)
        for number, step in enumerate(shown)
    ]
    table = markup.table("layers-table", _LAYER_HEADS, cells)
    limits = f' data-first="{batches[0]}" data-last="{batches[-1]}"' if len(batches) > 2 else ""  # noqa: PLR2004
    body = (
        markup.filter_box("layers-table", "filter by name, operator, shape or type")
        + f'<div id="onnxmem-layers"{limits}>{table}</div>{_layer_sums(rows)}'
    )
    return section("layers", "Layers", body, remark)


def _nodes(analysis: Analysis) -> tuple[Layer, ...]:
    return layers(analysis.graph, analysis.parameters, analysis.compute)


def _bytes_of(layer: Layer) -> int:
    return (layer.output_bytes or 0) + (layer.weight_bytes or 0)


def _at_stops(
    rows: Sequence[Layer], stops: Stops, steps: Sequence[int]
) -> list[tuple[int, list[Layer]]]:
    """The same nodes at each stop, where the graph has the same number of them."""
    found = []
    for stop in stops.all:
        other = rows if stop is stops.requested else _nodes(stop.analysis)
        if len(other) == len(rows):
            found.append((stop.batch, [other[step] for step in steps]))
    return found


def _layer_cells(
    step: int, layer: Layer, others: Sequence[Layer], batches: Sequence[int]
) -> Sequence[Cell]:
    def slope(values: Sequence[int | None]) -> str | None:
        line = line_through(batches, values)
        return None if line is None else str(line.slope_bytes)

    def number(value: int | None, per: str | None, *, is_bytes: bool) -> Cell:
        written = format_bytes(value) if is_bytes else format_count(value)
        attributes = {} if is_bytes else {"data-as": "count"}
        if per is not None and per != "0":
            attributes["data-per"] = per
        elif per is None and len(batches) > 1:
            attributes["data-per"] = "?"
        return Cell(written, value, is_number=True, attributes=attributes)

    sizes = (
        number(layer.output_bytes, slope([each.output_bytes for each in others]), is_bytes=True),
        Cell(f"{layer.num_parameters:,}", layer.num_parameters, is_number=True),
        number(layer.weight_bytes, slope([each.weight_bytes for each in others]), is_bytes=True),
        number(layer.macs, slope([each.macs for each in others]), is_bytes=False),
        number(layer.flops, slope([each.flops for each in others]), is_bytes=False),
    )
    return (
        Cell(f"{step + 1:,}", step + 1, is_number=True),
        Cell(markup.name(layer.node), attributes={"class": "name"}),
        Cell(markup.name(layer.op_type)),
        _shape_cell(layer, others, batches),
        Cell(escape(layer.dtype or "?")),
        *sizes,
    )


def _shape_cell(layer: Layer, others: Sequence[Layer], batches: Sequence[int]) -> Cell:
    shape = layer.output_shape
    if shape is None:
        return Cell("?")
    written = shape_text(shape)
    shapes = [each.output_shape or () for each in others]
    if len(batches) < 2 or any(len(each) != len(shape) for each in shapes):  # noqa: PLR2004
        return Cell(written)
    lines = [line_through(batches, dims) for dims in zip(*shapes, strict=True)]
    slopes = ["?" if line is None else str(line.slope_bytes) for line in lines]
    if not set(slopes) - {"0"}:
        return Cell(written)
    return Cell(written, attributes={"data-dims": ",".join(slopes)})


def _layer_sums(rows: Sequence[Layer]) -> str:
    outputs = sum(layer.output_bytes or 0 for layer in rows)
    weights = sum(layer.weight_bytes or 0 for layer in rows)
    return (
        f'<p class="remark">{plural(len(rows), "node")}.'
        f'<span data-caption="sums"> Outputs {markup.size(outputs)}, weights'
        f" {markup.size(weights)}.</span></p>"
    )
