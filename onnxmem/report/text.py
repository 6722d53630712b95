"""How a report is laid out as text: lines, sections, findings, tables, block characters, color.

The report's own words are ASCII but for the blocks of bars and sparklines. Nothing is cut: a line
that holds a long name is a long line.
"""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from onnxmem.analysis.json_rows import error_percent
from onnxmem.errors import Finding, printable, shortened
from onnxmem.report.sections.section import Layout, Line, Note, Section
from onnxmem.units import format_bytes, format_count

WIDTH: Final = 100
"""Columns of a report, whatever the terminal's: a piped report is the same everywhere."""

_LABEL: Final = 24
"""Columns of a label; of a size rounded and to the byte:"""
_ROUNDED: Final = 10
_EXACT: Final = 23
_MOST_BARS: Final = 8
"""Tensors of a peak that are listed; the others are one line."""
_COMPARED_LABEL: Final = 20
"""Columns of a label beside a prediction and a measurement, of each of these, and of the error:"""
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
    columns = f"{label:<{_LABEL}}{format_bytes(num_bytes):>{_ROUNDED}}{exact:>{_EXACT}}   "
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


def _lines(section: Section) -> list[str]:
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
        figure(f"  {multiple_text(line.number, whole)}", line.number, line.label, wraps=True)
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
        Layout.LINES: _lines,
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


def aligned(table: Sequence[Sequence[str]], num_texts: int) -> str:
    """Rows in columns, a line each: the first ``num_texts`` at the left, numbers at the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "".join(
        "  ".join(
            f"{cell:<{width}}" if column < num_texts else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        + "\n"
        for row in table
    )


def shape_text(dims: Sequence[int | None] | None) -> str:
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
    return "".join(BLOCKS[(each * len(BLOCKS) - 1) // top] if each else " " for each in largest)


def bar(value: int, whole: int | None, width: int = 20) -> str:
    """A share of a whole as a bar; a share that rounds to nothing is empty.

    >>> bar(3, 4, width=8)
    '▄▄▄▄▄▄'
    """
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
    (r"(?m)^[A-Z]{3,}(?: [A-Z]{2,})*", "bold"),
    (r"\d[\d.,]* (?:[KMGTPE]i)?B\b", "cyan"),
    (r"\bfits: |\bproven least", "green"),
    (r"\bnot proven least", "yellow"),
    ("[▁▂▃]+", "green"),
    ("[▄▅▆]+", "yellow"),
    ("[▇█]+", "red"),
    (r"\bdoes not fit: |(?m:^PARTIAL.*)", "bold red"),
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
    console = Console(force_terminal=True, color_system="standard", highlight=False, no_color=False)
    with console.capture() as capture:
        console.print(styled, soft_wrap=True, end="")
    return capture.get()
