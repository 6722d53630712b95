"""Which settings of a session take less, as a table, with the Python that sets the best."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from onnxmem.errors import shortened
from onnxmem.report.text import prose
from onnxmem.units import format_bytes

if TYPE_CHECKING:
    from onnxmem.runtimes.onnxruntime.advice import Choice
    from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory

_WORTH_SAYING = 0.95
_OWN = "as it is opened now"
_SESSION = ("import onnxruntime", "options = onnxruntime.SessionOptions()")


def made_by(runtime: "RuntimeMemory") -> str:
    """Who made a session's graph, and for which CPU where that matters."""
    where = "" if runtime.name == "ort-cuda" else f" on {runtime.cpu}"
    return f"as {runtime.optimiser} makes it{where}"


def first_line(runtime: "RuntimeMemory") -> str | None:
    """The best settings in one line; ``None`` where they save less than a twentieth."""
    best, own = runtime.advice[0], runtime.own
    if not best.changes or best.resident_bytes > _WORTH_SAYING * own.resident_bytes:
        return None
    return (
        f"{', '.join(best.changes)}: {format_bytes(best.resident_bytes)} resident in the arena "
        f"instead of {format_bytes(own.resident_bytes)} ({_percent(best, own)})"
    )


def render_advice(path: str, runtime: "RuntimeMemory", singles: "Iterable[Choice]") -> str:
    """Every combination and every single change, the least memory first; ends with a newline."""
    own = runtime.own
    lines = [
        f"{shortened(path)}  {runtime.name}, graph {runtime.graph} {made_by(runtime)}",
        "",
        "ARENA RESIDENT, the most in three runs, weights aside",
        *_rows(runtime.advice, own),
        "",
        "ONE SETTING CHANGED, and what the arena then holds after run 3",
        *_rows(singles, own, with_held=True),
    ]
    best = runtime.advice[0]
    if best.resident_bytes < own.resident_bytes:
        lines += ["", f"THE BEST, {_percent(best, own)}"]
        lines += [f"  {line}" for line in (*_SESSION, *best.lines)]
    lines += ["", "FINDINGS"] if runtime.findings else []
    for finding in runtime.findings:
        lines += prose(f"  {finding.code}: ", shortened(finding.message, 2000))
    return "\n".join(lines) + "\n"


def _rows(choices: "Iterable[Choice]", own: "Choice", *, with_held: bool = False) -> Iterator[str]:
    for choice in choices:
        size = choice.resident_bytes
        change = _percent(choice, own) if choice.changes else ""
        held = f"{format_bytes(choice.figures.held_steady_bytes):>10}   " if with_held else ""
        columns = f"  {format_bytes(size):>10}{f'{size:,} B':>20}{change:>8}   {held}"
        yield from prose(columns, ", ".join(choice.changes) or _OWN)


def _percent(choice: "Choice", own: "Choice") -> str:
    if not own.resident_bytes:
        return "+0 %"
    return f"{100 * (choice.resident_bytes / own.resident_bytes - 1):+.0f} %"
