"""The top of the page: what it takes, what that assumes, what it fits, and the slider."""

from collections.abc import Iterable, Iterator
from html import escape
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.fitting.verdicts import BASES, basis_for
from onnxmem.errors import shortened
from onnxmem.report.page import markup
from onnxmem.report.page.markup import Cell, section
from onnxmem.report.page.stops import BUDGET, Stops, devices_shown
from onnxmem.report.page.tables import lines_table, number, verdict, words
from onnxmem.report.sections.listing import assumptions, model_facts, partial_texts
from onnxmem.report.sections.section import Line, Section
from onnxmem.report.verdict import budget
from onnxmem.units import format_bytes

_ANSWERS: Final = ("run", "train", "cuda", "cache")
"""Sections whose totals stand at the top of the page."""


def head_section(analysis: Analysis, stops: Stops, sections: Iterable[Section]) -> str:
    """The answers as cards, the assumptions before them."""
    facts = escape(", ".join(model_facts(analysis)))
    assumed = escape(", ".join(assumptions(analysis)))
    partial = "".join(f'<p class="warning">{escape(t)}</p>' for t in partial_texts(analysis))
    cards = "".join(
        f'<div class="card"><h3>{escape(title)}</h3>{number(line)}<p>{words(line)}</p></div>'
        for title, line in _answers(sections)
    )
    return (
        f'<section id="head" aria-label="the model"><p class="facts">{facts}</p>'
        f'<p class="assumes"><b>assumes:</b> {assumed}</p>{partial}</section>{_slider(stops)}'
        f'<section id="answers" aria-label="in short"><div class="cards">{cards}</div></section>'
    )


def _answers(sections: Iterable[Section]) -> Iterator[tuple[str, Line]]:
    """What it takes: the totals of the sections that are an answer, with their titles."""
    for each in sections:
        if each.key in _ANSWERS and each.headline is not None:
            yield each.title, each.headline
        elif each.key.startswith("runtime-"):
            yield from ((each.title, line) for line in each.lines if line.is_total)


def _slider(stops: Stops) -> str:
    """The control of the batch; hidden without a script, which could not move a figure."""
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


def fits_section(analysis: Analysis, stops: Stops) -> str:
    """What it fits: the budget, or the sizes that GPUs come in."""
    asked_budget = budget(analysis)
    if asked_budget is not None:
        return _budget_section(analysis, stops, asked_budget)
    rows = [
        (
            Cell(escape(place.name)),
            Cell(markup.size(place.limit_bytes), place.limit_bytes, is_number=True),
            Cell(verdict(place.name, stops.requested.figures)),
        )
        for place in devices_shown(None)
    ]
    asked = analysis.settings
    runtime = analysis.request.runtime_name
    basis = basis_for(None, train=asked.train, runtime=runtime, basis=asked.basis)
    remark = f"Compared: {BASES[basis]}. A card may offer a program less than it is sold with."
    heads = (("memory", False), ("size", True), ("verdict", False))
    return section("fits", "What it fits", markup.table("fits-table", heads, rows), remark)


def _budget_section(analysis: Analysis, stops: Stops, asked: Section) -> str:
    """The verdict at the batch that is shown, and the lines of the text report beneath it."""
    batch = analysis.settings.batch
    this = "this model" if batch is None else f"batch <span data-batch-number>{batch:,}</span>"
    size = markup.size(analysis.settings.budget_bytes)
    head = f"<p>{size}: {this} {verdict(BUDGET, stops.requested.figures)}</p>"
    at = "" if batch is None else f"Below: batch {batch:,}."
    return section("fits", asked.title, head + lines_table(asked.lines, asked.title), at)


def title_of(analysis: Analysis) -> str:
    """The model's name and what it takes, as a window's title has room for."""
    training = analysis.training
    ours = analysis.total_bytes if training is None else training.peak_bytes
    return f"{shortened(analysis.path)}: {format_bytes(ours)}"
