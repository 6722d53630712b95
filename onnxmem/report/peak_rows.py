"""The rows of the in-place peak in a text report, and where each of them leads."""

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from onnxmem.analysis import Analysis
from onnxmem.escaping import shortened
from onnxmem.memory.polynomials import Polynomial
from onnxmem.report.lines import fact, prose
from onnxmem.symbolic_terms import NoRows, SymbolicTerms

_SHOWN = 8
"""Rows that are listed; the JSON has all."""
_LONGEST = 10_000
"""Where a dim goes further than this, where each row leads is not worked out."""


def rows_section(analysis: Analysis) -> list[str]:
    """The rows, unless one line in the batch is all, which the formula says."""
    terms = analysis.symbolic
    if isinstance(terms, NoRows):
        return []
    rows = terms.peaks.in_place_peak_rows
    if not rows or len(rows) == len(terms.symbols) == 1:
        return []
    labels = _labels(terms)
    ordered = sorted(range(len(rows)), key=lambda at: labels.get(at, (_LONGEST + 1, "")))
    lines = [
        fact(f"  {labels.get(at, (0, 'elsewhere'))[1]}", _text(terms, rows[at]), wraps=True)
        for at in ordered[:_SHOWN]
    ]
    if len(rows) > _SHOWN:
        lines.append(fact("", f"{len(rows) - _SHOWN:,} more: --json"))
    return [*prose("PEAK ROWS  ", _head(terms)), *lines]


def _head(terms: SymbolicTerms) -> str:
    """What holds where."""
    place = _place(terms)
    others = [
        f"{shortened(symbol)} {number:,}"
        for at, (symbol, number) in enumerate(zip(terms.symbols, terms.asked, strict=True))
        if at != place
    ]
    text = f"the in-place peak is the largest of them, at {_domain(terms)}"
    return f"{text}; where each leads at {', '.join(others)}" if others else text


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
    """Where each row that leads somewhere starts to, and the numbers, the other dims as asked."""
    place = _place(terms)
    last = terms.last[place]
    if last > _LONGEST:
        return {}
    name = shortened(terms.symbols[place])
    lines = [row.along(place, terms.asked) for row in terms.peaks.in_place_peak_rows]
    found: dict[int, tuple[int, str]] = {}
    for row, first, until in _stretches(lines, last):
        stretch = f"{first:,}" if first == until else f"{first:,} to {until:,}"
        start, text = found.get(row, (first, f"{name} "))
        found[row] = (start, f"{text}, {stretch}" if row in found else f"{text}{stretch}")
    return found


def _stretches(lines: list[Polynomial], last: int) -> Iterator[tuple[int, int, int]]:
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


def _text(terms: SymbolicTerms, row: Polynomial) -> str:
    """``4 B x batch x sequence^2 - 32 B``, the highest power first."""
    text = ""
    for powers, number in sorted(row.terms, key=lambda term: (-sum(term[0]), term[0])):
        product = terms.monomial(powers, " x ")
        sign = " - " if number < 0 else " + "
        text += f"{sign}{abs(number):,} B" + (f" x {product}" if product else "")
    return text.removeprefix(" + ").strip() or "0 B"
