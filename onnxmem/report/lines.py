"""How a section and its lines are laid out as text: a label, a size twice, a remark.

The report's own words are ASCII. Nothing is cut: a line that holds a long name is a long line.
"""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from onnxmem.analysis.measured import error_percent
from onnxmem.report.charts.blocks import bar
from onnxmem.report.sections.section import Layout, Line, Note, Section
from onnxmem.units import format_bytes, format_count

WIDTH: Final = 100
"""Columns of a report, whatever the terminal's: a piped report is the same everywhere."""

_LABEL: Final = 24
_SHORT: Final = 10
_EXACT: Final = 23
_MOST_BARS: Final = 8
"""Tensors of a peak that are listed; the others are one line."""
_COMPARED_LABEL: Final = 20
_COMPARED: Final = 17
_ERROR: Final = 10
_NARROWEST: Final = 20
"""Characters of a wrapped line behind a figure that is wider than the page."""


def figure(label: str, num_bytes: int | None, remark: str = "", *, wraps: bool = False) -> str:
    """A size in IEC units and in exact bytes; ``wraps`` keeps a long remark within the width.

    >>> figure("weights", 1_863_680, "float32")
    'weights                   1.78 MiB            1,863,680 B   float32'
    """
    exact = "" if num_bytes is None else f"{num_bytes:,} B"
    columns = f"{label:<{_LABEL}}{format_bytes(num_bytes):>{_SHORT}}{exact:>{_EXACT}}   "
    return "\n".join(prose(columns, remark)) if wraps else (columns + remark).rstrip()


def fact(label: str, text: str, *, wraps: bool = False) -> str:
    """A line without a size: its text starts where a size of full width would."""
    start = f"{label:<{_LABEL}}  "
    return "\n".join(prose(start, text)) if wraps else (start + text).rstrip()


def paragraph(start: str, parts: Sequence[str]) -> list[str]:
    """Parts with commas between them, as many to a line as fit; a part is never broken."""
    lines = [start]
    for part in (*(f"{part}, " for part in parts[:-1]), *parts[-1:]):
        is_empty = not lines[-1][len(start) :]
        if not is_empty and len((lines[-1] + part).rstrip()) > WIDTH:
            lines.append(" " * len(start))
        lines[-1] += part
    return [line.rstrip() for line in lines]


def prose(start: str, text: str) -> list[str]:
    """Wrap a sentence at spaces; what has no space is never broken."""
    lines = textwrap.wrap(
        text, max(WIDTH - len(start), _NARROWEST), break_long_words=False, break_on_hyphens=False
    ) or [""]
    indents = (start, *(" " * len(start) for _ in lines[1:]))
    return [(indent + line).rstrip() for indent, line in zip(indents, lines, strict=True)]


def section_lines(section: Section) -> list[str]:
    """A section as text: its title, its lines, its notes."""
    lines = _LAYOUTS[section.layout](section)
    return [*_heading(section), *lines, *(line for note in section.notes for line in _note(note))]


def _heading(section: Section) -> list[str]:
    """The title with the total, the summary or the remark of all lines."""
    headline, reference = section.headline, section.reference
    if section.layout is Layout.COMPARED:
        columns = f"{'predicted':>{_COMPARED}}{'measured':>{_COMPARED}}{'error':>{_ERROR}}"
        return [f"{section.title:<{_COMPARED_LABEL}}{columns}"]
    if headline is not None:
        return laid_out((headline,))
    if section.summary:
        return prose(f"{section.title}  ", section.summary)
    if section.key == "measured":
        return [section.title]
    remark = f", {section.remark}" if section.remark else ""
    size = "" if reference is None else f" ({format_bytes(reference.number)})"
    return [f"{section.title}{remark}{size}"]


def _terms(section: Section) -> list[str]:
    return laid_out(section.lines)


def _bars(section: Section) -> list[str]:
    """The largest and the sum of the others, each with its share of the total."""
    whole = None if section.total is None else section.total.number
    named = [(line.label, line.number or 0) for line in section.lines[:_MOST_BARS]]
    others = section.lines[_MOST_BARS:]
    if others:
        named.append((f"{len(others):,} more", sum(line.number or 0 for line in others)))
    return [figure(f"  {bar(size, whole)}", size, name) for name, size in named]


def _multiples(section: Section) -> list[str]:
    """Each as a multiple of the reference."""
    whole = None if section.reference is None else section.reference.number
    return [
        figure(f"  {_multiple(line.number, whole)}", line.number, line.label, wraps=True)
        for line in section.lines
    ]


def _multiple(number: int | None, whole: int | None) -> str:
    return "unknown" if number is None or not whole else f"{number / whole:.2f} x"


def _comparisons(section: Section) -> list[str]:
    """What was predicted, what was measured, and how far they are apart."""
    lines: list[str] = []
    for line in section.lines:
        if line.text is not None:
            lines += laid_out((line,))
            continue
        columns = "".join(f"{_exact(n):>{_COMPARED}}" for n in (line.predicted, line.number))
        error = percent(error_percent(line.predicted, line.number))
        start = f"  {line.label:<{_COMPARED_LABEL - 2}}{columns}{error:>{_ERROR}}   "
        lines += prose(start, line.remark)
    return lines


def percent(error: float | None) -> str:
    """An error with its sign; empty where there is none."""
    return "" if error is None else f"{error:+.1f} %"


def _exact(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else f"{num_bytes:,} B"


_LAYOUTS: Final[Mapping[Layout, Callable[[Section], list[str]]]] = MappingProxyType(
    {
        Layout.LINES: _terms,
        Layout.BARS: _bars,
        Layout.MULTIPLES: _multiples,
        Layout.COMPARED: _comparisons,
    }
)


def laid_out(lines: Iterable[Line]) -> list[str]:
    """Lines of a section in columns."""
    return [text for line in lines for text in _laid_out(line)]


def _laid_out(line: Line) -> Iterator[str]:
    label = f"{'  ' * line.depth}{line.label}"
    if line.parts:
        sizes = (f"{part.label} {format_bytes(part.number)}" for part in line.parts)
        yield fact(label, ", ".join(sizes))
    elif line.text is not None:
        if line.wraps and len(label) > _LABEL:
            # A label that is too long for its column stands above its words.
            yield from prose("  " * line.depth, line.label)
            label = ""
        yield fact(label, line.text, wraps=line.wraps)
    elif line.unit == "count":
        yield fact(label, _count(line.number))
        if line.remark:
            yield fact("", line.remark)
    elif line.number or not line.drops_zero:
        yield figure(label, line.number, line.remark, wraps=line.wraps)


def _count(count: int | None) -> str:
    return "unknown" if count is None else f"{format_count(count):<8}  {count:,}"


def _note(note: Note) -> list[str]:
    start = f"  {note.label}: "
    return paragraph(start, note.parts) if note.parts else prose(start, note.text)
