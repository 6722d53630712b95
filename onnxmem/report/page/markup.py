r"""Text from models as HTML: names are untrusted, and stay text whatever they hold.

A name is first made printable (control characters and marks that turn the writing direction
become ``\xNN``), then cut, then escaped; every value of an attribute stands between double quotes.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Final

from onnxmem.errors import shortened
from onnxmem.units import format_bytes

_LONGEST_TEXT: Final = 2000
"""Characters of a finding, which may name a few long names."""


def name(text: str) -> str:
    """A name of a model, safe as text and as an attribute's value."""
    return escape(shortened(text))


def prose(text: str) -> str:
    """A sentence that may hold names, safe as text and as an attribute's value."""
    return escape(shortened(text, _LONGEST_TEXT))


def script_json(data: object) -> str:
    """JSON that may stand in a script element: nothing in it ends the element or a line."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def exact(num_bytes: int | None) -> str:
    """A size in bytes, to the byte; empty where it is unknown."""
    return "" if num_bytes is None else f"{num_bytes:,} B"


def size(num_bytes: int | None) -> str:
    """A size twice, as the text report has it: rounded, and to the byte."""
    if num_bytes is None:
        return '<span class="size">unknown</span>'
    return (
        f'<span class="size">{format_bytes(num_bytes)}</span> '
        f'<span class="exact">{exact(num_bytes)}</span>'
    )


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: HTML, and the number that it is sorted by where it is one."""

    html: str
    value: int | float | None = None
    is_number: bool = False
    attributes: Mapping[str, str] | None = None


def table(table_id: str, heads: Iterable[tuple[str, bool]], rows: Iterable[Iterable[Cell]]) -> str:
    """A table that sorts by a click on a head, and scrolls within itself on a narrow screen.

    ``heads`` are HTML and whether the column holds numbers. The page's script makes the heads
    buttons; without it the rows stand in their order.
    """
    head = "".join(
        f'<th scope="col"{" class=num" if is_number else ""}>{html}</th>'
        for html, is_number in heads
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table_id)}">'
        f'<table class="sortable" id="{escape(table_id)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    attributes = dict(cell.attributes or {})
    if cell.value is not None:
        attributes["data-value"] = str(cell.value)
    if cell.is_number:
        attributes["class"] = "num"
    said = "".join(f' {key}="{escape(value)}"' for key, value in attributes.items())
    return f"<td{said}>{cell.html}</td>"


def filter_box(table_id: str, label: str) -> str:
    """A field that leaves the rows of a table that hold what is typed; hidden without a script."""
    return (
        f'<p class="filter" hidden><label>{escape(label)} <input type="search" autocomplete="off"'
        f' data-filters="{escape(table_id)}"></label> <output></output></p>'
    )


def section(section_id: str, title: str, body: str, remark: str = "") -> str:
    """A part of the page; ``title`` and ``remark`` are text, ``body`` is HTML."""
    note = f'<p class="remark">{escape(remark)}</p>' if remark else ""
    return (
        f'<section id="{escape(section_id)}" aria-labelledby="{escape(section_id)}-title">'
        f'<h2 id="{escape(section_id)}-title">{escape(title)}</h2>{note}{body}</section>'
    )
