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
from onnxmem.analysis.fitting.verdicts import BASES, basis_for
from onnxmem.analysis.json_rows import error_percent
from onnxmem.errors import shortened
from onnxmem.program.program import Category
from onnxmem.report.page import markup
from onnxmem.report.page.layers import layers_section
from onnxmem.report.page.live import live_data, live_section, packing_section
from onnxmem.report.page.markup import Cell, document, section, swatch
from onnxmem.report.page.stops import (
    BUDGET,
    ELEMENTS,
    TAKES,
    TERMS,
    VERDICT,
    Figures,
    Stops,
    budget_terms,
    devices_shown,
    evaluated,
    figure_data,
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
from onnxmem.report.sections.summary import answer_total
from onnxmem.report.text import multiple_text, percent
from onnxmem.report.timelines import GROUPS, SAVED, lifetimes_of
from onnxmem.report.verdict import assessment_lines, budget, largest_text, short_error
from onnxmem.units import format_bytes, format_limit

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
_AT_ONE_BATCH: Final = frozenset({"checkpointed", "checkpoints", "measured"})
"""Sections that are shown at the requested batch alone."""
_BY_CATEGORY: Final = "training.live_by_kind."
"""How the keys of a training step's categories start."""
_AFTER_CHARTS: Final = frozenset({"rules", "compute", "elements", "findings", "coverage"})
_CARDS: Final = ("run", "train", "cuda", "cache")
"""Sections whose totals are cards at the top of the page."""


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
    has_answer = analysis.fit is not None
    parts = [
        _head(analysis, stops, written),
        *([] if has_answer else [_fits(analysis, stops)]),
        timeline_section(lifetimes, stops),
        *([_fits(analysis, stops)] if has_answer else []),
        *reserved_sections(analysis),
        live_section(analysis),
        *(tables[key] for key in first),
        packing_section(stops),
        layers_section(analysis, stops),
        *(tables[key] for key in tables if key in _AFTER_CHARTS),
    ]
    data = {
        "batch": stops.requested.batch if stops.can_move else None,
        "stops": stops.batches,
        "last": stops.last,
        "figures": dict(figure_data(stops, _keys(parts))),
        "texts": _texts(stops, parts),
        "live": live_data(analysis, stops),
        "timeline": timeline_data(lifetimes, stops, affine),
    }
    title, heading = _title(analysis, written)
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
            "ranges": stops.known_texts(key),
            "of": next((peak for start, peak in _PEAK_OF.items() if key.startswith(start)), ""),
        }
        for key in found
    }


def _title(analysis: Analysis, written: Sequence[Section]) -> tuple[str, str]:
    """The model's name and what it takes, as the answer has it; a script moves the heading's."""
    name, fit = shortened(analysis.path), analysis.fit
    _, line = _totals(analysis, written)[0]
    key, total_bytes = (line.key, line.number) if fit is None else (TAKES, fit.taken_bytes)
    total = format_bytes(total_bytes)
    moved = f'<span class="size" data-rounded="{key}">{total}</span>'
    return f"{name}: {total}", f'<span class="name">{escape(name)}:</span> {moved}'


def _head(analysis: Analysis, stops: Stops, written: Iterable[Section]) -> str:
    """The totals as cards, the assumptions before them."""
    facts = escape(", ".join(model_facts(analysis)))
    assumed = _with_batch(", ".join(assumptions(analysis)), analysis.settings.batch)
    partial = "".join(f'<p class="warning">{escape(t)}</p>' for t in partial_texts(analysis))
    cards = "".join(
        f'<div class="card"><h2>{escape(title)}</h2>{_number(line)}<p>{_words(line)}</p></div>'
        for title, line in _totals(analysis, written)
    )
    return (
        f'<section id="head" aria-label="the model"><p class="facts">{facts}</p>'
        f'<p class="assumes"><b>assumes:</b> {assumed}</p>{partial}</section>'
        f"{_batch(analysis, stops)}"
        f'<section id="answers" aria-label="in short"><div class="cards">{cards}</div></section>'
    )


def _totals(analysis: Analysis, written: Iterable[Section]) -> Sequence[tuple[str, Line]]:
    """The totals of sections and sessions with their titles, the figure of the answer first.

    That of inference is one of them only if no training step was requested.
    """
    found: list[tuple[str, Line]] = []
    left_out = {"run"} if analysis.training is not None else set()
    for each in written:
        if each.key in _CARDS and each.key not in left_out and each.headline is not None:
            found.append((each.title, each.headline))
        elif each.key.startswith("runtime-"):
            found += ((each.title, line) for line in each.lines if line.is_total)
    answer_bytes = answer_total(analysis)
    return sorted(found, key=lambda each: each[1].number != answer_bytes)


def _with_batch(text: str, batch: int | None) -> str:
    """Words in which a script moves the number of the batch."""
    if batch is None:
        return escape(text)
    number = f"batch <span data-batch-number>{batch:,}</span>"
    return re.sub(rf"\bbatch {batch:,}(?![\d,.])", number, escape(text), count=1)


def _batch(analysis: Analysis, stops: Stops) -> str:
    """The answer, below the control that moves it: what a reader sees at every scroll position."""
    answer = _answer(analysis, stops)
    if stops.can_move:
        return f'<div class="batch">{_slider(stops)}{answer}</div>'
    if not stops.is_free and stops.requested.batch:
        return f'{answer}<p class="remark">The batch size is fixed in this model.</p>'
    return answer


def _answer(analysis: Analysis, stops: Stops) -> str:
    """The verdict on the budget with its two numbers, the largest batch and the error."""
    batch, budget_bytes = analysis.settings.batch, analysis.settings.budget_bytes
    if budget_bytes is None:
        return ""
    text = f"{_verdict(BUDGET, stops.requested.figures)}."
    if analysis.fit is not None:
        takes = format_bytes(analysis.fit.taken_bytes)
        at = "" if batch is None else f" at batch <span data-batch-number>{batch:,}</span>"
        text += f' Takes <span class="size" data-rounded="{TAKES}">{takes}</span>'
        text += f" of {format_limit(budget_bytes)}{at}."
        if analysis.fit.max_batch is not None:
            name = shortened(analysis.fit.setup.dim or "batch")
            text += f" Largest {escape(name)} that fits: {escape(largest_text(analysis.fit))}."
        text += f" Accuracy: {escape(short_error(analysis.fit.accuracy))}."
    else:
        text += f" The budget is {format_limit(budget_bytes)}."
    return f'<p class="answer">{text}</p>'


def _slider(stops: Stops) -> str:
    """The control of the batch; hidden without a script, as nothing would move the figures."""
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
            Cell(escape(each.name), attributes={"title": markup.exact(each.limit_bytes)}),
            Cell(_verdict(each.name, stops.requested.figures)),
        )
        for each in devices_shown(None)
    ]
    settings, runtime = analysis.settings, analysis.request.runtime_name
    basis = basis_for(None, train=settings.train, runtime=runtime, basis=settings.basis)
    remark = f"Compared: {BASES[basis]}. A card may offer a program less than it is sold with."
    heads = (("memory", False), ("verdict", False))
    table = markup.table("fits-table", heads, rows, is_narrow=True)
    return section("fits", "What it fits", table, remark)


def _fits_budget(analysis: Analysis, stops: Stops, budgeted: Section) -> str:
    """The terms of the answer; open where something is in doubt."""
    batch = analysis.settings.batch
    this = "this model" if batch is None else f"batch <span data-batch-number>{batch:,}</span>"
    size = markup.size(analysis.settings.budget_bytes)
    head = f"<p>{size}: {this} {_verdict(BUDGET, stops.requested.figures)}</p>"
    moved = tuple(_moved_terms(analysis, stops))
    fit = analysis.fit
    fixed = set() if fit is None else set(assessment_lines(fit.assessment, fit.requested))
    lines = (*moved, *(line for line in budgeted.lines if line not in fixed))
    is_open = fit is None or bool(fit.doubts)
    table = _table(lines, budgeted.title)
    return section("fits", budgeted.title, head + table, is_open=is_open)


def _moved_terms(analysis: Analysis, stops: Stops) -> Iterator[Line]:
    """What is compared with the budget; terms that only other batches have are hidden."""
    if analysis.fit is None:
        return
    terms = budget_terms(analysis.fit.assessment, analysis.fit.requested)
    found = {line.words_key: line for line in terms}
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
    body += _notes(section.notes)
    return markup.section(section.key, section.title, body, remarks, is_open=False)


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
