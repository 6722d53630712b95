"""Which settings of a session take less, as a table, with the Python that sets the best."""

from collections.abc import Iterable

from onnxmem.escaping import shortened
from onnxmem.report.lines import figure, prose
from onnxmem.runtimes import Choice, RuntimeMemory
from onnxmem.units import format_bytes

_WORTH_SAYING = 0.95
_OWN = "as it is opened now"
_SESSION = "options = onnxruntime.SessionOptions()"


def first_line(runtime: RuntimeMemory) -> str | None:
    """The best settings in one line; ``None`` where they save less than a twentieth."""
    best, own = runtime.advice[0], runtime.own
    if best.resident_bytes > _WORTH_SAYING * own.resident_bytes:
        return None
    return (
        f"{', '.join(best.changes)}: {format_bytes(best.resident_bytes)} resident in the arena "
        f"instead of {format_bytes(own.resident_bytes)} ({_percent(best, own)})"
    )


def render_advice(path: str, runtime: RuntimeMemory, singles: Iterable[Choice]) -> str:
    """Every combination and every single change, the least memory first; ends with a newline."""
    own = runtime.own
    lines = [
        f"{shortened(path)}  {runtime.name}, graph {runtime.graph} as {runtime.optimiser} makes it",
        "",
        "ARENA RESIDENT, the most in three runs, weights aside",
        *(_row(choice, own) for choice in runtime.advice),
        "",
        "ONE SETTING CHANGED",
        *(_row(choice, own, held=True) for choice in singles),
    ]
    best = runtime.advice[0]
    if best.resident_bytes < own.resident_bytes:
        lines += ["", f"THE BEST, {_percent(best, own)}", f"  {_SESSION}"]
        lines += [f"  {line}" for line in best.lines]
    for finding in runtime.findings:
        lines += prose(f"  {finding.code}: ", shortened(finding.message, 2000))
    return "\n".join(lines) + "\n"


def _row(choice: Choice, own: Choice, *, held: bool = False) -> str:
    name = ", ".join(choice.changes) or _OWN
    steady = f"; held after run 3: {format_bytes(choice.figures.held_steady_bytes)}" if held else ""
    remark = f"{name}{steady}" if choice is own else f"{_percent(choice, own):>7}  {name}{steady}"
    return figure("", choice.resident_bytes, remark)


def _percent(choice: Choice, own: Choice) -> str:
    if not own.resident_bytes:
        return "+0 %"
    return f"{100 * (choice.resident_bytes / own.resident_bytes - 1):+.0f} %"
