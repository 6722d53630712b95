r"""HTML from untrusted text, and the frame of every page: one file that loads nothing else.

A name is first made printable (control characters and marks that turn the writing direction
become ``\xNN``), then cut, then escaped; every value of an attribute stands between double quotes.

A page's policy (Content Security Policy, Level 3, section 6) is ``default-src 'none'`` and the
SHA-256 of each style and script in it: what a name of a model could smuggle in neither runs nor
loads. There are no attributes ``style`` or ``onclick``, which the hashes would not cover. A script
element that holds JSON is a data block, which is never run (HTML, section 4.12.1).
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Final

from onnxmem.errors import shortened
from onnxmem.report.timelines import GROUPS
from onnxmem.units import format_bytes, format_count
from onnxmem.version import __version__

_LONGEST_TEXT: Final = 2000
"""Characters of a finding, which may name a few long names."""


def name(text: str) -> str:
    """A name of a model, safe as text and as an attribute's value."""
    return escape(shortened(text))


def prose(text: str) -> str:
    """A sentence that may hold names, safe as text and as an attribute's value."""
    return escape(shortened(text, _LONGEST_TEXT))


def script_json(data: object) -> str:
    """JSON for a script element: nothing in it ends the element or a line."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    # Inside of a script element a browser ends the script at `</script>`, wherever that is.
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


def count(number: int | None) -> str:
    """A count twice: rounded, and in full."""
    if number is None:
        return '<span class="size">unknown</span>'
    return f'<span class="size">{format_count(number)}</span> <span class="exact">{number:,}</span>'


def chart(svg: str, label: str) -> str:
    """A chart in an element that can be reached by keyboard."""
    return f'<div class="wide" tabindex="0" role="group" aria-label="{escape(label)}">{svg}</div>'


WIDE: Final = 1060
NARROW: Final = 366
"""Pixels of a chart on a screen and on a phone, where its words would be too small otherwise."""


def on_both(draw: Callable[[int, str], str], label: str) -> str:
    """A chart drawn for a screen and for a phone; ``draw`` takes its width and a suffix of ids."""
    wide, narrow = chart(draw(WIDE, ""), label), chart(draw(NARROW, "-narrow"), label)
    return f'<div class="for-wide">{wide}</div><div class="for-narrow">{narrow}</div>'


def scrolling(label: str, html: str) -> str:
    """A table that scrolls within itself on a narrow screen."""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{html}</div>'
    )


_FEW_ROWS: Final = 8
"""Rows that nobody sorts on a phone."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: HTML, and the number that it is sorted by where it is one."""

    html: str
    value: int | float | None = None
    is_number: bool = False
    attributes: Mapping[str, str] | None = None


def table(
    table_id: str,
    heads: Iterable[tuple[str, bool]],
    rows: Iterable[Iterable[Cell]],
    *,
    sorted_by: int | None = None,
    is_narrow: bool = False,
) -> str:
    """A table that sorts by a click on a head, and scrolls within itself on a narrow screen.

    ``heads`` are HTML and whether the column has numbers. The page's script makes the heads
    buttons; without it the rows keep their order, in which ``sorted_by`` is a column of falling
    numbers. On a phone the cells of a row stand below each other, unless the table ``is_narrow``.
    """
    rows = list(rows)
    css = "" if is_narrow else " stacks" if len(rows) > _FEW_ROWS else " stacks few"
    order = "" if sorted_by is None else f' data-sorted="{sorted_by}"'
    head = "".join(
        f'<th scope="col"{" class=num" if is_number else ""}>{html}</th>'
        for html, is_number in heads
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    label = table_id.removesuffix("-table")
    return scrolling(
        label,
        f'<table class="sortable{css}" id="{escape(table_id)}" aria-label="{escape(label)}"{order}>'
        f"<thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>",
    )


def bytes_cell(size_bytes: int | None) -> Cell:
    """A size, rounded and to the byte."""
    return Cell(size(size_bytes), size_bytes, is_number=True)


def _cell(cell: Cell) -> str:
    attributes = dict(cell.attributes or {})
    if cell.value is not None:
        attributes["data-value"] = str(cell.value)
    elif cell.is_number:
        # The style sheet aligns what has a value.
        attributes["class"] = "num"
    written = "".join(f' {key}="{escape(value)}"' for key, value in attributes.items())
    return f"<td{written}>{cell.html}</td>"


def swatch(*groups: str) -> str:
    """The colors of groups, as the charts have them."""
    return "".join(f'<span class="swatch {GROUPS[each]}"></span>' for each in groups)


def filter_box(table_id: str, label: str) -> str:
    """A field that filters the rows of a table by what is typed; hidden without a script."""
    return (
        f'<p class="filter" hidden><label>{escape(label)} <input type="search" autocomplete="off"'
        f' data-filters="{escape(table_id)}"></label> <output></output></p>'
    )


def section(
    section_id: str, title: str, body: str, remark: str = "", *, is_open: bool = True
) -> str:
    """A part of the page that can be folded; ``title`` and ``remark`` are text, ``body`` is HTML.

    What answers the question is open, what proves it is folded: a page is a few screens long.
    """
    note = f'<p class="remark">{escape(remark)}</p>' if remark else ""
    shown = " open" if is_open else ""
    return (
        f'<section id="{escape(section_id)}" aria-labelledby="{escape(section_id)}-title">'
        f'<details{shown}><summary><h2 id="{escape(section_id)}-title">{escape(title)}</h2>'
        f"</summary>{note}{body}</details></section>"
    )


DATA_ID: Final = "onnxmem-data"
"""The element that holds what the page's script reads."""

_ASSETS: Final = files("onnxmem.report.page") / "assets"


def document(
    title: str,
    sections: Iterable[str],
    data: object | None = None,
    *,
    heading: str | None = None,
    has_plot: bool = False,
) -> str:
    """A whole page. ``title`` is text and may hold names; ``sections`` are HTML.

    ``heading`` is the title as HTML, where a part of it moves with the batch.
    ``data`` is what the page's script reads, as JSON; ``has_plot`` adds uPlot, which draws over the
    charts that Python drew.
    """
    styles = [_asset("style.css"), *([_asset("uplot/uPlot.min.css")] if has_plot else [])]
    scripts = [*([_plot()] if has_plot else []), _asset("page.js")]
    policy = (
        f"default-src 'none'; style-src {_hashes(styles)}; script-src {_hashes(scripts)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    safe_title = escape(shortened(title))
    embedded = "" if data is None else _data(data)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta name="generator" content="onnxmem {__version__}">\n'
        f"<title>{safe_title}</title>\n"
        f"{''.join(f'<style>{style}</style>' for style in styles)}\n</head>\n<body>\n"
        f"<header><h1>{safe_title if heading is None else heading}</h1>"
        '<button type="button" id="onnxmem-theme" hidden>Dark</button></header>\n'
        f"<main>\n{chr(10).join(sections)}\n</main>\n"
        f"<footer>onnxmem {__version__}</footer>\n"
        f"{embedded}{''.join(f'<script>{script}</script>' for script in scripts)}\n"
        "</body>\n</html>\n"
    )


def _data(data: object) -> str:
    return f'<script type="application/json" id="{DATA_ID}">{script_json(data)}</script>\n'


@cache
def _asset(name: str) -> str:
    """A file of the package, with the line ends that are hashed, whatever a checkout has."""
    return (_ASSETS / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _plot() -> str:
    """UPlot with its license."""
    terms = _asset("uplot/LICENSE").replace("*/", "* /")
    return f"/*! uPlot 1.6.32\n{terms}*/\n{_asset('uplot/uPlot.iife.min.js')}"


def _hashes(texts: Iterable[str]) -> str:
    digests = (b64encode(sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
