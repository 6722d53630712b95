"""The rows of the in-place peak, and where each of them leads."""

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from onnxmem.analysis.scaling.symbolic_terms import NoRows, SymbolicTerms
from onnxmem.errors import shortened
from onnxmem.report.sections.section import Line, Section

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis
    from onnxmem.program.polynomials import Polynomial

_KEY = "peak-rows"
_TITLE = "PEAK ROWS"
_SHOWN = 8
"""Rows that are listed; the JSON has all."""
_LONGEST = 10_000
"""Where a dim goes further than this, where each row leads is not worked out."""


def peak_rows(analysis: "Analysis") -> Section | None:
    """The rows, unless one line in the batch is all, which the formula says.

    Why there are none is said where a reader may look for them: where dims besides the batch are
    free or bound.
    """
    terms = analysis.symbolic
    if isinstance(terms, NoRows):
        has_dims = analysis.settings.dims.keys() - analysis.request.prepared.batch_symbols
        reason = f"none: {shortened(terms.reason)}"
        return Section(key=_KEY, title=_TITLE, summary=reason) if has_dims else None
    rows = terms.peaks.in_place_peak_rows
    if not rows or len(rows) == len(terms.symbols) == 1:
        return None
    labels = _labels(terms)
    ordered = sorted(labels, key=lambda at: labels[at])
    lines = [
        Line(labels[at][1], text=_text(terms, rows[at]), wraps=True) for at in ordered[:_SHOWN]
    ]
    if len(ordered) > _SHOWN:
        lines.append(Line("", text=f"{len(ordered) - _SHOWN:,} more: --json"))
    return Section(key=_KEY, title=_TITLE, summary=_head(terms), lines=tuple(lines))


def _head(terms: SymbolicTerms) -> str:
    """What holds where."""
    place = _place(terms)
    others = [
        f"{shortened(symbol)} {number:,}"
        for at, (symbol, number) in enumerate(zip(terms.symbols, terms.asked, strict=True))
        if at != place
    ]
    text = f"the in-place peak is the largest of them, at {_domain(terms)}"
    if not others or terms.last[place] > _LONGEST:
        return text
    return f"{text}; where each leads at {', '.join(others)}"


def _domain(terms: SymbolicTerms) -> str:
    names = [shortened(symbol) for symbol in terms.symbols]
    parts = [f"{name} 1 to {last:,}" for name, last in zip(names, terms.last, strict=True)]
    parts += [f"{shortened(name)} {number:,}" for name, number in terms.fixed.items()]
    parts += [
        "not " + " with ".join(f"{names[at]} {n:,}" for at, n in each.items())
        for each in terms.peaks.meetings
        if all(n <= terms.last[at] for at, n in each.items())
    ]
    return ", ".join(parts)


def _place(terms: SymbolicTerms) -> int:
    """The symbol along which rows are told apart: the first that is not the batch, if any."""
    return min(int(terms.has_batch), len(terms.symbols) - 1)


def _labels(terms: SymbolicTerms) -> dict[int, tuple[int, str]]:
    """Where each row starts to lead, and the numbers at which it does, the other dims as asked.

    Of several symbols a row that leads at none of these numbers may lead at other dims, or at none;
    of one it leads nowhere, and is left out.
    """
    place, rows = _place(terms), terms.peaks.in_place_peak_rows
    last = terms.last[place]
    if last > _LONGEST:
        return dict.fromkeys(range(len(rows)), (0, ""))
    name = shortened(terms.symbols[place])
    found: dict[int, tuple[int, str]] = {}
    for row, first, until in _stretches([row.along(place, terms.asked) for row in rows], last):
        stretch = f"{first:,}" if first == until else f"{first:,} to {until:,}"
        start, text = found.get(row, (first, f"{name} "))
        found[row] = (start, f"{text}, {stretch}" if row in found else f"{text}{stretch}")
    if len(terms.symbols) > 1:
        found = dict.fromkeys(range(len(rows)), (last + 1, "elsewhere, if at all")) | found
    return found


def _stretches(lines: list["Polynomial"], last: int) -> Iterator[tuple[int, int, int]]:
    """Row, first and last number of each stretch of numbers in which one row is the largest."""
    # Python's numbers: those of a hostile file are beyond 64 bits.
    numbers = np.arange(1, last + 1).astype(object)
    values = [
        sum((n * numbers**power for (power,), n in line.terms), 0 * numbers) for line in lines
    ]
    leaders = np.argmax(np.stack(values), axis=0)
    for row, stretch in groupby(enumerate(leaders.tolist(), 1), key=lambda pair: pair[1]):
        places = [number for number, _ in stretch]
        yield row, places[0], places[-1]


def _text(terms: SymbolicTerms, row: "Polynomial") -> str:
    """``4 B x batch x sequence^2 - 32 B``, the highest power first."""
    text = ""
    for powers, number in sorted(row.terms, key=lambda term: (-sum(term[0]), term[0])):
        product = terms.monomial(powers, " x ")
        sign = " - " if number < 0 else " + "
        text += f"{sign}{abs(number):,} B" + (f" x {product}" if product else "")
    return text.removeprefix(" + ").strip() or "0 B"
