"""How a report is laid out as text: lines, sections, findings, tables, block characters, color.

The report's own words are ASCII but for the blocks of bars and sparklines. No line is wider than
the terminal, and nothing is cut: a long name is wrapped.
"""

import csv
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import StringIO
from types import MappingProxyType
from typing import Final

from onnxmem.analysis.json_rows import error_percent
from onnxmem.errors import Finding, printable, shortened
from onnxmem.report.sections.section import Layout, Line, Note, Section
from onnxmem.units import format_bytes, format_count, in_unit, unit_power

_PIPED: Final = 100
"""Columns where there is neither a terminal nor COLUMNS."""
_FEWEST_COLUMNS: Final = 40
"""In a narrower terminal lines are wrapped by it."""

_LABEL: Final = 26
"""Columns of a label where no label of the section is longer; of a size rounded and to the byte:"""
_ROUNDED: Final = 10
_IN_UNIT: Final = 12
_EXACT: Final = 20
_LONGEST_LABEL: Final = 34
_MOST_BARS: Final = 8
"""Tensors of a peak that are listed; the others are one line."""
_COMPARED_LABEL: Final = 32
"""Columns of a label beside a prediction and a measurement, of each of these, and of the error:"""
_COMPARED: Final = 16
_ERROR: Final = 10
_FACTOR_FROM: Final = 1000.0
"""Percent from which a change is written as a factor."""
_NARROWEST: Final = 20
"""Columns in which a sentence is wrapped beside a figure; in fewer it stands below."""
_MOST_START: Final = 0.6
"""Share of the columns that the start of a list may take on its first line."""
_INDENT: Final = "    "
"""Of what stands below its label."""
_GAP: Final = "  "
"""Between the columns of a table."""


def width() -> int:
    """Columns of a report: the terminal's, or COLUMNS, which a pipe may be given."""
    return max(shutil.get_terminal_size((_PIPED, 24)).columns, _FEWEST_COLUMNS)


def figure(
    label: str, num_bytes: int | None, remark: str = "", *, label_width: int = _LABEL
) -> str:
    """A size in IEC units and in exact bytes.

    >>> figure("weights", 1_863_680, "float32")
    'weights                     1.78 MiB         1,863,680 B   float32'
    """
    exact = "" if num_bytes is None else f"{num_bytes:,} B"
    columns = f"{label:<{label_width}}{format_bytes(num_bytes):>{_ROUNDED}}{exact:>{_EXACT}}   "
    return "\n".join(prose(columns, remark))


def rounded(
    label: str,
    num_bytes: int | None,
    remark: str = "",
    *,
    label_width: int = _LABEL,
    power: int | None = None,
) -> str:
    """A size in IEC units alone, in that of ``power`` within a table; JSON has it to the byte.

    >>> rounded("weights", 1_863_680, "float32")
    'weights                     1.78 MiB   float32'
    """
    size = format_bytes(num_bytes) if power is None else in_unit(num_bytes, power)
    return "\n".join(prose(f"{label:<{label_width}}{size:>{_ROUNDED}}   ", remark))


def fact(label: str, text: str, *, label_width: int = _LABEL) -> str:
    """A line without a size: its text starts where a size of full width would."""
    return "\n".join(prose(f"{label:<{label_width}}  ", text))


def paragraph(start: str, parts: Sequence[str]) -> list[str]:
    """Parts with commas between them, as many to a line as fit; only a long part is broken."""
    columns, longest = width(), max(map(len, parts), default=0) + 1
    lines = [start]
    if len(start) > _MOST_START * columns or len(start) + longest > columns:
        lines = [*broken(start.rstrip(), columns), _INDENT]
    indent = " " * len(lines[-1])
    for part in (*(f"{part}, " for part in parts[:-1]), *parts[-1:]):
        # The comma is of the part before it, so no line begins with one.
        is_empty = not lines[-1][len(indent) :]
        if not is_empty and len((lines[-1] + part).rstrip()) > columns:
            lines.append(indent)
        lines[-1] += part
        if len(lines[-1].rstrip()) > columns:
            # A part that is longer than a line is broken like prose.
            lines[-1:] = [indent + line for line in broken(part, columns - len(indent))]
    return [line.rstrip() for line in lines]


def prose(start: str, text: str) -> list[str]:
    """Wrap a sentence at spaces behind its start; below it, where a word is too long for that."""
    columns = width()
    longest = max(map(len, text.split()), default=0)
    # Beside the label only if the longest word fits there, and the column is not a narrow strip.
    if columns - len(start) >= max(longest, min(len(text), _NARROWEST)):
        lines = broken(text, columns - len(start)) or [""]
        indents = (start, *(" " * len(start) for _ in lines[1:]))
        return [(indent + line).rstrip() for indent, line in zip(indents, lines, strict=True)]
    below = [_INDENT + line for line in broken(text, columns - len(_INDENT))]
    return [*broken(start.rstrip(), columns), *below]


def broken(text: str, columns: int) -> list[str]:
    """A text in lines, broken at spaces, and within a word where a line is too short for it."""
    return textwrap.wrap(text, columns, break_on_hyphens=False)


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
    if headline is not None and section.layout is Layout.TERMS:
        size = in_unit(headline.number, _unit_of(section))
        return prose(
            f"{headline.label:<{_terms_width(section)}}{size:>{_IN_UNIT}}   ", headline.remark
        )
    if headline is not None:
        lines = () if section.layout is Layout.BARS else section.lines
        return list(_laid_out(headline, _label_width(lines), figure))
    if section.summary:
        return prose(f"{section.title}  ", section.summary)
    if section.key == "measured":
        return [section.title]
    remark = f", {section.remark}" if section.remark else ""
    size = "" if reference is None else f" ({format_bytes(reference.number)})"
    return prose("", f"{section.title}{remark}{size}")


def _lines(section: Section) -> list[str]:
    return laid_out(section.lines, figure)


def _facts(section: Section) -> list[str]:
    """Labels in a column that is as wide as the longest, their words behind it."""
    label_width = max((len(line.label) for line in section.lines), default=0) + 4
    return [
        text
        for line in section.lines
        for text in prose(f"{f'  {line.label}':<{label_width}}", line.words)
    ]


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
        figure(f"  {multiple_text(line.number, whole)}", line.number, line.label)
        for line in section.lines
    ]


def multiple_text(number: int | None, whole: int | None) -> str:
    """A number as a multiple of another one: ``1.42 x``."""
    return "unknown" if number is None or not whole else f"{number / whole:.2f} x"


def _comparisons(section: Section) -> list[str]:
    """What was predicted, what was measured, and how far they are apart."""
    lines: list[str] = []
    for line in section.lines:
        if line.text is not None:
            lines += laid_out((line,), figure)
            continue
        columns = "".join(f"{_exact(n):>{_COMPARED}}" for n in (line.predicted, line.number))
        error = percent(error_percent(line.predicted, line.number))
        start = f"  {line.label:<{_COMPARED_LABEL - 2}}{columns}{error:>{_ERROR}}   "
        lines += prose(start, line.remark)
    return lines


def _terms(section: Section) -> list[str]:
    """Each in the unit of the total, with its share of it."""
    total = section.total.number if section.total is not None else None
    unit = _unit_of(section)
    # One unit and one width for all terms of a section, so that numbers can be compared by eye.
    label_width = _terms_width(section)
    lines: list[str] = []
    for line in section.lines:
        share = "" if not total or line.number is None else f"{100 * line.number / total:.0f} %"
        columns = f"{f'  {line.label}':<{label_width}}{in_unit(line.number, unit):>{_IN_UNIT}}"
        lines += prose(f"{columns}{share:>7}   " if total else f"{columns}   ", line.words)
    return lines


def _terms_width(section: Section) -> int:
    lengths = (len(section.title), *(len(line.label) + 2 for line in section.lines))
    return max(length for length in lengths if length <= _LONGEST_LABEL)


def _sizes(section: Section) -> list[str]:
    """Sizes in the unit of the first, each before its label, which may be long."""
    unit = unit_power(section.lines[0].number or 0) if section.lines else 0
    return [
        text
        for line in section.lines
        for text in prose(
            f"{'' if line.text else in_unit(line.number, unit):>{_IN_UNIT}}  ",
            line.text or line.label,
        )
    ]


def _unit_of(section: Section) -> int:
    """The unit of the total or of the largest line, as a power of 1024."""
    numbers = [line.number or 0 for line in (section.total or Line(""), *section.lines)]
    return unit_power(max(numbers, default=0))


def percent(error: float | None) -> str:
    """An error or a change with its sign; from ten times more on as a factor.

    >>> percent(-5.25), percent(46_396.3)
    ('-5.2 %', '465 x')
    """
    return "" if error is None else factor(error) or f"{error:+.1f} %"


def factor(change: float) -> str:
    """A change in percent as a factor; empty where it is less than ten times.

    >>> factor(46_396.3), factor(900.0)
    ('465 x', '')
    """
    return f"{1 + change / 100:,.0f} x" if change >= _FACTOR_FROM else ""


def _exact(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else f"{num_bytes:,} B"


_LAYOUTS: Final[Mapping[Layout, Callable[[Section], list[str]]]] = MappingProxyType(
    {
        Layout.FACTS: _facts,
        Layout.LINES: _lines,
        Layout.BARS: _bars,
        Layout.MULTIPLES: _multiples,
        Layout.COMPARED: _comparisons,
        Layout.TERMS: _terms,
        Layout.SIZES: _sizes,
    }
)


def laid_out(lines: Iterable[Line], sized: Callable[..., str] = rounded) -> list[str]:
    """Lines of a section in columns; sizes as ``rounded`` or ``figure`` writes them."""
    lines = tuple(lines)
    label_width = _label_width(lines)
    return [text for line in lines for text in _laid_out(line, label_width, sized)]


def _label_width(lines: Iterable[Line]) -> int:
    """Columns for the labels of lines; a label that is much longer gets a line of its own."""
    lengths = [2 * line.depth + len(line.label) + 1 for line in lines]
    return max((_LABEL, *(length for length in lengths if length <= _LONGEST_LABEL)))


def _laid_out(line: Line, label_width: int, sized: Callable[..., str]) -> Iterator[str]:
    label = f"{'  ' * line.depth}{line.label}"
    if line.parts:
        sizes = (f"{part.label} {format_bytes(part.number)}" for part in line.parts)
        yield fact(label, ", ".join(sizes), label_width=label_width)
    elif line.text is not None:
        if len(label) > label_width:
            # A label that is too long for its column stands above its words.
            yield from prose("  " * line.depth, line.label)
            label = ""
        yield fact(label, line.text, label_width=label_width)
    elif line.unit == "count":
        yield fact(label, _count(line.number), label_width=label_width)
        if line.remark:
            yield fact("", line.remark, label_width=label_width)
    elif line.number or not line.drops_zero:
        yield sized(label, line.number, line.remark, label_width=label_width)


def _count(count: int | None) -> str:
    return "unknown" if count is None else f"{format_count(count):<8}  {count:,}"


def _note(note: Note) -> list[str]:
    start = f"  {note.label}: "
    return paragraph(start, note.parts) if note.parts else prose(start, note.text)


_LONGEST_FINDING: Final = 2000
"""Characters of a message, which may name a few long names."""


def finding_text(finding: Finding) -> str:
    """Code, message and node on one line.

    >>> finding_text(Finding("batch_fixed", "the batch is fixed", "conv"))
    'batch_fixed: the batch is fixed (conv)'
    """
    node = f" ({finding.node})" if finding.node else ""
    return f"{finding.code}: {shortened(finding.message + node, _LONGEST_FINDING)}"


def finding_lines(findings: Iterable[Finding], indent: str = "") -> Iterator[str]:
    """A paragraph for each finding: ``note: batch_fixed: ...``."""
    for finding in findings:
        yield from prose(f"{indent}note: ", finding_text(finding))


def noted(findings: Iterable[Finding]) -> list[str]:
    """A section of notes, each after its code; empty without findings."""
    lines = []
    for finding in findings:
        lines += prose(f"  {finding.code}: ", shortened(finding.message, _LONGEST_FINDING))
    return ["Notes", *lines] if lines else []


def finding_rows(findings: Iterable[Finding]) -> list[dict[str, object]]:
    """The findings in JSON."""
    return [
        {
            "code": each.code,
            "message": printable(each.message),
            "node": None if each.node is None else printable(each.node),
        }
        for each in findings
    ]


def aligned(table: Sequence[Sequence[str]], num_texts: int, spare: Sequence[str] = ()) -> str:
    """Rows in columns below their headings, names at the left and numbers at the right.

    Where the lines are too wide, the columns with the headings ``spare`` are left out, the first
    ones first, and a last line names them. What is still too wide are the names in the first
    column: a name that is too long stands on lines of its own, above its row.

    Args:
        table: The headings and the rows, all of the same length; a row of one cell is a line.
        num_texts: Columns of text; those behind them are numbers.
        spare: Headings of the columns that a narrow table does without.
    """
    is_text = dict.fromkeys(table[0][:num_texts])
    rows = [row for row in table if len(row) > 1]
    columns = dict(zip(rows[0], zip(*rows, strict=True), strict=True))
    left_out = []
    for heading in spare:
        if _table_width(columns.values()) <= width():
            break
        left_out.append(heading)
        del columns[heading]
    names, *others = columns.values()
    room = max(width() - _table_width(others) - len(_GAP), len(names[0]))
    widths = [max(len(name) for name in names if len(name) <= room)]
    widths += [max(map(len, column)) for column in others]
    lines: list[str] = []
    shown = zip(*columns.values(), strict=True)
    for given in table:
        if len(given) == 1:
            lines += broken(given[0], width()) or [""]
            continue
        cells = row = next(shown)
        if len(row[0]) > room:
            lines += broken(row[0], width())
            cells = ("", *row[1:])
        aligned_cells = (
            f"{cell:<{size}}" if heading in is_text else f"{cell:>{size}}"
            for heading, cell, size in zip(columns, cells, widths, strict=True)
        )
        lines.append(_GAP.join(aligned_cells).rstrip())
    if left_out:
        wide = _table_width(zip(*rows, strict=True))
        lines += prose("left out: ", f"{', '.join(left_out)}; COLUMNS={wide} or --json shows them")
    return "".join(f"{line}\n" for line in lines)


def _table_width(columns: Iterable[Sequence[str]]) -> int:
    """Characters of a line that has place for the longest cell of each column."""
    return sum(max(map(len, column)) + len(_GAP) for column in columns) - len(_GAP)


def shape_text(dims: Sequence[int | str | None] | None) -> str:
    """A shape as text; ``?`` where it, or a dim of it, is unknown.

    >>> shape_text((2, None, 7)), shape_text(())
    ('2x?x7', 'scalar')
    """
    if dims is None:
        return "?"
    return "x".join("?" if dim is None else str(dim) for dim in dims) or "scalar"


def count_text(count: int | None) -> str:
    """A count in full; ``?`` where it is unknown."""
    return "?" if count is None else f"{count:,}"


def joined(blocks: Iterable[Sequence[str]]) -> str:
    """Blocks of lines, a blank line between them, empty ones left out; ends with a newline."""
    return "\n\n".join("\n".join(lines) for lines in blocks if lines) + "\n"


def buckets(num_steps: int, num_buckets: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of steps, as equal as possible: none is empty, and together they are all."""
    num_buckets = min(num_steps, num_buckets)
    for number in range(num_buckets):
        start = number * num_steps // num_buckets
        # In integers, so that the buckets differ by one step at most and cover all.
        yield start, (number + 1) * num_steps // num_buckets


BLOCKS: Final = "▁▂▃▄▅▆▇█"
_HALF: Final = "▄"
_IN_ASCII: Final = str.maketrans(BLOCKS, "_.-=+*#@")


def spark(values: Sequence[int], width: int, top: int | None = None) -> str:
    """Values from 0 to ``top``, or to their largest, as at most ``width`` block characters.

    Each character is the largest value of its bucket, so the peak is the tallest; 0 is a blank.

    >>> spark([0, 1, 4, 8], width=4)
    ' ▁▄█'
    """
    top = max(values, default=0) if top is None else top
    largest = (max(values[start:stop]) for start, stop in buckets(len(values), width))
    # Rounded up, so that any size but 0 has a block.
    return "".join(BLOCKS[(each * len(BLOCKS) - 1) // top] if each else " " for each in largest)


def bar(value: int, whole: int | None, width: int = 20) -> str:
    """A share of a whole as a bar; a share that rounds to nothing is empty.

    >>> bar(3, 4, width=8)
    '▄▄▄▄▄▄'
    """
    # Rounded half up, in integers: sizes exceed what a float has exactly.
    return _HALF * ((2 * width * value + whole) // (2 * whole)) if whole else ""


def legible(text: str, encoding: str | None) -> str:
    """Text with its block characters replaced by ASCII where an encoding lacks one of them.

    A stream without an encoding takes any text.
    """
    try:
        BLOCKS.encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return text.translate(_IN_ASCII)
    return text


_STYLES: Final = (
    (r"(?m)^(?:[A-Z][a-z]+|onnxruntime|GPU)(?: [\w()-]+)*(?=$|,|  )|^[A-Z]{3,}\b", "bold"),
    (r"\d[\d.,]* (?:[KMGTPE]i)?B\b", "cyan"),
    (r"\bfits: |(?<!not proven )\boptimal", "green"),
    (r"\bnot proven optimal", "yellow"),
    ("[▁▂▃]+", "green"),
    ("[▄▅▆]+", "yellow"),
    ("[▇█]+", "red"),
    (r"(?m)^Fits(?=  )", "bold green"),
    (r"(?m)^(?:Tight|Unknown if it fits)(?=  )", "bold yellow"),
    (r"\bdoes not fit: |(?m:^(?:Does not fit(?=  )|  warning .*|warning: .*))", "bold red"),
)
"""What to look for, and its style; a later one wins."""


def colored(text: str) -> str:
    """Add ANSI styles around headings, sizes and verdicts."""
    # rich takes as long to import as a small model to analyze, and a pipe needs none of it.
    from rich.console import Console
    from rich.text import Text

    styled = Text(text, no_wrap=True, end="")
    for pattern, style in _STYLES:
        styled.highlight_regex(pattern, style)
    # Not ``capture``, which still writes to stdout: nothing, but a full device refuses even that.
    written = StringIO()
    console = Console(
        file=written, force_terminal=True, color_system="standard", highlight=False, no_color=False
    )
    console.print(styled, soft_wrap=True, end="")
    return written.getvalue()


def csv_line(cells: Iterable[str]) -> str:
    """A row of a table."""
    stream = StringIO()
    csv.writer(stream, lineterminator="\n").writerow(cells)
    return stream.getvalue()
