"""A figure on the page: its key, so that a script can move it, and what the report says of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from onnxmem.report.page import markup
from onnxmem.report.page.figures import Figures
from onnxmem.units import format_count


@dataclass(frozen=True, slots=True)
class Term:
    """A line of a table of figures."""

    label: str
    key: str
    remark: str = ""
    """HTML."""
    unit: str = "bytes"
    """Or ``count``."""
    is_total: bool = False
    drops_zero: bool = False
    """Whether the line is left out where there is nothing of it."""


def figure(key: str, figures: Figures, unit: str = "bytes") -> str:
    """A number as the text report has it, rounded and exact."""
    value = figures.numbers.get(key)
    written = markup.size(value) if unit == "bytes" else _count(value)
    return f'<span data-figure="{escape(key)}" data-as="{unit}">{written}</span>'


def text(key: str, figures: Figures) -> str:
    """Words that go with a figure and change with the batch."""
    said = escape(figures.texts.get(key, ""))
    return f'<span class="name" data-text="{escape(key)}">{said}</span>'


def verdict(name: str, figures: Figures) -> str:
    """The verdict on one size of memory."""
    key = f"verdict.{name}"
    said = figures.texts.get(key, "")
    state = said.partition(":")[0].replace("does not fit", "over")
    return (
        f'<span class="verdict" data-state="{escape(state)}" data-verdict'
        f' data-text="{escape(key)}">{escape(said)}</span>'
    )


def ratio(key: str, to: str, figures: Figures) -> str:
    """A figure as a multiple of another."""
    one, other = figures.numbers.get(key), figures.numbers.get(to)
    said = "unknown" if one is None or not other else f"{one / other:.2f} x"
    return f'<span data-ratio="{escape(key)}" data-to="{escape(to)}">{said}</span>'


def terms_table(terms: Iterable[Term], figures: Figures, caption: str) -> str:
    """Lines of a label, a figure and what it is."""
    rows = "".join(_row(term, figures) for term in terms)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f'<table class="terms"><caption class="hidden">{escape(caption)}</caption>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(term: Term, figures: Figures) -> str:
    value = figures.numbers.get(term.key)
    css = ' class="total"' if term.is_total else ""
    drops = f' data-drops="{escape(term.key)}"' if term.drops_zero else ""
    hidden = " hidden" if term.drops_zero and not value else ""
    return (
        f'<tr{css}{drops}{hidden}><th scope="row">{escape(term.label)}</th>'
        f'<td class="num">{figure(term.key, figures, term.unit)}</td><td>{term.remark}</td></tr>'
    )


def _count(value: int | None) -> str:
    if value is None:
        return '<span class="size">unknown</span>'
    return f'<span class="size">{format_count(value)}</span> <span class="exact">{value:,}</span>'
