"""The page of one model: every figure of its row in JSON, at any batch that a slider is set to.

At the top are the totals, the assumptions and what fits; then the charts, the sections of the text
report as tables, and a row for each node. A number with a key, and words with one, are spans that
the page's script moves with the batch.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.compute import Layer, layers
from onnxmem.analysis.fitting.verdicts import BASES, basis_for
from onnxmem.analysis.json_rows import error_percent
from onnxmem.errors import shortened
from onnxmem.report.charts.steps import Strip, strips_svg
from onnxmem.report.page import markup
from onnxmem.report.page.markup import Cell, document, section
from onnxmem.report.page.stops import (
    BUDGET,
    ELEMENTS,
    VERDICT,
    Figures,
    Stop,
    Stops,
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
    live_set,
    model_facts,
    partial_texts,
    proof_text,
    sections,
)
from onnxmem.report.sections.section import Layout, Line, Note, Section
from onnxmem.report.sections.training import live_lines
from onnxmem.report.text import multiple_text, percent, shape_text
from onnxmem.report.timelines import lifetimes_of
from onnxmem.report.verdict import budget
from onnxmem.units import format_bytes, format_count, plural

_SHOWN_KEYS: Final = re.compile(r'data-(?:figure|ratio|to)="([^"]+)"')
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
_AFTER_CHARTS: Final = frozenset({"rules", "compute", "findings", "coverage"})
_CARDS: Final = ("run", "train", "cuda", "cache")
"""Sections whose totals are cards at the top of the page."""
_MOST_BARS: Final = 15
"""Bars of a peak; the others are one."""
_MOST_LAYERS: Final = 1000
"""Rows of the table of nodes; of more nodes the largest."""
_LAYER_HEADS: Final = (
    *(("step", True), ("node", False), ("operator", False), ("output shape", False)),
    *(("dtype", False), ("output", True), ("parameters", True), ("weights", True)),
    *(("MACs", True), ("FLOPs", True)),
)

_Bars = Sequence[tuple[str, int]]
"""Names and bytes, the largest first."""


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
        _arena(analysis),
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
    return document(_title(analysis), filter(None, parts), data, has_plot=True)


def _at(analysis: Analysis, section: Section) -> str:
    """The batch of a section that does not move."""
    batch = analysis.settings.batch
    return "" if batch is None or section.key not in _AT_ONE_BATCH else f"at batch {batch:,}"


def _keys(parts: Sequence[str]) -> Sequence[str]:
    """The figures that the page shows, and those from which a script computes others."""
    shown = (key for each in parts for key in _SHOWN_KEYS.findall(each))
    return tuple(dict.fromkeys((*shown, *ELEMENTS, "activations.in_place_peak_bytes")))


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


def _title(analysis: Analysis) -> str:
    """The model's name and its total, for the window's title."""
    training = analysis.training
    total_bytes = analysis.total_bytes if training is None else training.peak_bytes
    return f"{shortened(analysis.path)}: {format_bytes(total_bytes)}"


def _head(analysis: Analysis, stops: Stops, written: Iterable[Section]) -> str:
    """The totals as cards, the assumptions before them."""
    facts = escape(", ".join(model_facts(analysis)))
    assumed = escape(", ".join(assumptions(analysis)))
    partial = "".join(f'<p class="warning">{escape(t)}</p>' for t in partial_texts(analysis))
    cards = "".join(
        f'<div class="card"><h3>{escape(title)}</h3>{_number(line)}<p>{_words(line)}</p></div>'
        for title, line in _totals(written)
    )
    return (
        f'<section id="head" aria-label="the model"><p class="facts">{facts}</p>'
        f'<p class="assumes"><b>assumes:</b> {assumed}</p>{partial}</section>{_slider(stops)}'
        f'<section id="answers" aria-label="in short"><div class="cards">{cards}</div></section>'
    )


def _totals(written: Iterable[Section]) -> Iterator[tuple[str, Line]]:
    """The totals of sections and sessions, with their titles."""
    for each in written:
        if each.key in _CARDS and each.headline is not None:
            yield each.title, each.headline
        elif each.key.startswith("runtime-"):
            yield from ((each.title, line) for line in each.lines if line.is_total)


def _slider(stops: Stops) -> str:
    """The control of the batch; hidden without a script, as nothing would move the figures."""
    if not stops.can_move:
        return ""
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
        f"{buttons}</span>"
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
    """The verdict at the batch that is shown, and below it the lines at the requested batch."""
    batch = analysis.settings.batch
    this = "this model" if batch is None else f"batch <span data-batch-number>{batch:,}</span>"
    size = markup.size(analysis.settings.budget_bytes)
    head = f"<p>{size}: {this} {_verdict(BUDGET, stops.requested.figures)}</p>"
    at = "" if batch is None else f"Below: batch {batch:,}."
    return section("fits", budgeted.title, head + _table(budgeted.lines, budgeted.title), at)


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
                f'<tr{_row_attributes(line)}><th scope="row">{escape(line.label)}</th>'
                f'<td class="num">{_number(line)}</td><td>{remark}</td></tr>'
            )


def _row_attributes(line: Line) -> str:
    css = "total" if line.is_total else "deep" if line.depth > 1 else ""
    named = f' class="{css}"' if css else ""
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
    step, run = _training_bars(stops.requested), _inference_bars(stops.requested)
    body = f"<h3>A run, activations alone</h3>{_bars_table('live-run', run)}"
    if analysis.training is not None:
        body = f"<h3>A training step</h3>{_bars_table('live-train', step)}{body}"
    remark = "What is alive at once at the peak; each bar begins where the one above ends."
    return section("live", "Live at the peak", body, remark)


def _live_data(analysis: Analysis, stops: Stops) -> Mapping[str, object]:
    """The bars at each stop, by the element that shows them; a name is its index in a list."""
    tables = {"live-run": [_inference_bars(stop) for stop in stops.all]}
    if analysis.training is not None:
        tables["live-train"] = [_training_bars(stop) for stop in stops.all]
    names: dict[str, int] = {}
    shown = {
        key: [[[names.setdefault(name, len(names)), size] for name, size in bars] for bars in rows]
        for key, rows in tables.items()
    }
    return {"names": list(names), "tables": shown}


def _inference_bars(stop: Stop) -> _Bars:
    live = live_set(stop.analysis)
    return _largest(() if live is None else live.lines)


def _training_bars(stop: Stop) -> _Bars:
    training = stop.analysis.training
    return _largest(() if training is None else tuple(live_lines(training)))


def _largest(lines: Sequence[Line]) -> _Bars:
    """The largest, and the others as one."""
    bars = [(line.label, line.number or 0) for line in lines]
    rest = sum(size for _, size in bars[_MOST_BARS:])
    more = len(bars) - _MOST_BARS
    return [*bars[:_MOST_BARS], (f"{more:,} more", rest)] if more > 0 else bars


def _bars_table(table_id: str, bars: _Bars) -> str:
    total = sum(size for _, size in bars)
    rows = "".join(_bar_rows(bars, total))
    return markup.scrolling(
        "live at the peak",
        f'<table class="bars" id="{table_id}"><thead><tr><th scope="col">tensor</th>'
        '<th scope="col" class="num">size</th><th scope="col">share</th></tr></thead>'
        f"<tbody>{rows}</tbody>"
        f'<tfoot><tr><th scope="row">together</th><td class="num">{markup.size(total)}</td>'
        "<td></td></tr></tfoot></table>",
    )


def _bar_rows(bars: _Bars, total: int) -> Iterable[str]:
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


def _arena(analysis: Analysis) -> str:
    """How the activations of inference are packed; nothing where no buffer has bytes."""
    memory = analysis.activations
    if not memory.in_place_peak_bytes:
        return ""
    program, sizes, packing = memory.replay.program, memory.replay.sizes, memory.packing
    starts, stops = (column.tolist() for column in program.lifetimes)
    # No node runs in the first step of the program.
    strips = [
        Strip(program.labels[n], starts[n] - 1, stops[n] - 1, offset, sizes.bytes_of(n))
        for n, offset in sorted(packing.offsets.items())
    ]
    gap = f"gap {format_bytes(packing.gap_bytes)}, {proof_text(is_proven=packing.is_optimal)}"
    packed = f"{format_bytes(packing.size_bytes)}, {gap}"
    count = plural(len(strips), "buffer")
    svg = strips_svg(
        strips,
        num_steps=len(program.steps) - 1,
        size_bytes=packing.size_bytes,
        chart_id="onnxmem-arena-svg",
        title="Buffers of the arena over steps and addresses",
        description=f"{count} in one block of {packed}.",
    )
    batch = analysis.settings.batch
    at = "" if batch is None else f" Drawn at batch {batch:,}."
    body = (
        f"<figure>{markup.chart(svg, 'arena')}"
        "<figcaption>Each strip is a buffer of the run: across, the steps in which it is alive; up,"
        f" its addresses in one block of {packed}.{at}</figcaption></figure>"
    )
    return section("arena", "How the activations are packed", body)


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
        attributes = {"data-as": "bytes" if is_bytes else "count"}
        if per is not None and per != "0":
            attributes["data-per"] = per
        elif per is None and len(batches) > 1:
            attributes["data-per"] = "?"
        exact = "" if value is None else f"{value:,}"
        return Cell(written, value, is_number=True, attributes={"title": exact, **attributes})

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
