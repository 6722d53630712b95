"""How a line of a text report is laid out: a label, a size twice, a remark.

The report's own words are ASCII. Nothing is cut: a line that holds a long name is a long line.
"""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onnxmem.units import format_bytes

if TYPE_CHECKING:
    from onnxmem.program import Affine
    from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory

WIDTH: Final = 100
"""Columns of a report, whatever the terminal's: a piped report is the same everywhere."""

_LABEL: Final = 24
_SHORT: Final = 10
_EXACT: Final = 23
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


def law_text(law: "Affine") -> str:
    """Write a law out: ``4,728,064 B + 9,633,792 B x batch, from batch 1 to 128``."""
    to = "" if law.last is None else f", from batch 1 to {law.last:,}"
    return f"{law.fixed_bytes:,} B + {law.slope_bytes:,} B x batch{to}"


def made_by(runtime: "RuntimeMemory") -> str:
    """Who made a session's graph, and for which CPU where that matters."""
    where = "" if runtime.name == "ort-cuda" else f" on {runtime.cpu}"
    return f"as {runtime.optimiser} makes it{where}"


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
