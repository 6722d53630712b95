"""Sections as tables of HTML: what ``report.lines`` lays out in columns, for a page.

A number with a key, and words with one, are spans that the page's script moves with the batch.
"""

from collections.abc import Iterable, Iterator
from html import escape

from onnxmem.analysis.json_rows import error_percent
from onnxmem.report.page import markup
from onnxmem.report.page.markup import Cell
from onnxmem.report.page.stops import Figures
from onnxmem.report.sections.section import Layout, Line, Note, Section
from onnxmem.report.text import percent
from onnxmem.units import format_count


def section_html(section: Section, remark: str = "") -> str:
    """A section of the page; ``remark`` stands after the section's own."""
    remarks = "; ".join(filter(None, (section.remark, section.summary, remark)))
    if section.layout is Layout.COMPARED:
        body = _comparisons(section)
    else:
        headline = section.headline
        lines = section.lines if headline is None else (headline, *section.lines)
        body = lines_table(lines, section.title, section.reference)
    return markup.section(section.key, section.title, body + notes_list(section.notes), remarks)


def lines_table(lines: Iterable[Line], caption: str, reference: Line | None = None) -> str:
    """Rows of a label, a number and what it is; multiples of the reference where there is one."""
    rows = "".join(_rows(lines, reference))
    if not rows:
        return ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table class="terms"><caption class="hidden">{escape(caption)}</caption>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def number(line: Line) -> str:
    """A number as the text report has it, rounded and exact."""
    written = markup.size(line.number) if line.unit == "bytes" else _count(line.number)
    if not line.key:
        return written
    return f'<span data-figure="{escape(line.key)}" data-as="{line.unit}">{written}</span>'


def words(line: Line | Note) -> str:
    """The words of a line or a note."""
    said = escape(line.words)
    if not line.words_key:
        return said
    return f'<span class="name" data-text="{escape(line.words_key)}">{said}</span>'


def verdict(name: str, figures: Figures) -> str:
    """The verdict on one size of memory."""
    key = f"verdict.{name}"
    said = figures.texts.get(key, "")
    state = said.partition(":")[0].replace("does not fit", "over")
    return (
        f'<span class="verdict" data-state="{escape(state)}" data-verdict'
        f' data-text="{escape(key)}">{escape(said)}</span>'
    )


def notes_list(notes: Iterable[Note]) -> str:
    """Each note behind its label."""
    items = "".join(f"<li><code>{escape(note.label)}</code>: {words(note)}</li>" for note in notes)
    return f'<ul class="findings">{items}</ul>' if items else ""


def _rows(lines: Iterable[Line], reference: Line | None = None) -> Iterator[str]:
    for line in lines:
        if line.parts:
            yield f'<tr><th scope="row">{escape(line.label)}</th><td></td><td></td></tr>'
            yield from _rows(line.parts)
        elif line.text is not None:
            label = f'<th scope="row">{escape(line.label)}</th>'
            yield f'<tr{_state(line)}>{label}<td colspan="2">{words(line)}</td></tr>'
        else:
            remark = words(line) if reference is None else _multiple(line, reference)
            yield (
                f'<tr{_state(line)}><th scope="row">{escape(line.label)}</th>'
                f'<td class="num">{number(line)}</td><td>{remark}</td></tr>'
            )


def _state(line: Line) -> str:
    """The attributes of a row."""
    css = "total" if line.is_total else "deep" if line.depth > 1 else ""
    named = f' class="{css}"' if css else ""
    drops = f' data-drops="{escape(line.key)}"' if line.drops_zero else ""
    return named + drops + (" hidden" if line.drops_zero and not line.number else "")


def _multiple(line: Line, reference: Line) -> str:
    one, other = line.number, reference.number
    said = "unknown" if one is None or not other else f"{one / other:.2f} x"
    keys = f'data-ratio="{escape(line.key)}" data-to="{escape(reference.key)}"'
    return f"<span {keys}>{said}</span>"


def _comparisons(section: Section) -> str:
    """A table of what was predicted and what was measured."""
    heads = (
        *(("figure", False), ("predicted", True), ("measured", True), ("error", True)),
        ("", False),
    )
    rows = [_comparison(line) for line in section.lines if line.text is None]
    told = "".join(
        f'<p class="remark">{escape(line.label)}: {escape(line.text)}.</p>'
        for line in section.lines
        if line.text is not None
    )
    return markup.table(f"{section.key}-table", heads, rows) + told


def _comparison(line: Line) -> Iterator[Cell]:
    error = error_percent(line.predicted, line.number)
    yield Cell(escape(line.label))
    yield Cell(markup.size(line.predicted), line.predicted, is_number=True)
    yield Cell(markup.size(line.number), line.number, is_number=True)
    yield Cell(percent(error), error, is_number=True)
    yield Cell(escape(line.remark))


def _count(value: int | None) -> str:
    if value is None:
        return '<span class="size">unknown</span>'
    return f'<span class="size">{format_count(value)}</span> <span class="exact">{value:,}</span>'
