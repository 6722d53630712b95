"""A process that runs already, as text and as JSON, beside what was predicted."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from onnxmem.analysis.json_rows import JsonDict, error_percent
from onnxmem.errors import printable, shortened
from onnxmem.report.text import aligned, count_text, joined, paragraph, percent, prose
from onnxmem.units import format_bytes, plural

if TYPE_CHECKING:
    from onnxmem.measuring.running_process import ProcessReading, WatchedProcess

_MOST_LISTED: Final = 20
_HEADINGS: Final = ("process", "RSS", "peak RSS", "PSS", "GPU")
_SPARE: Final = ("GPU", "PSS")
_KEYS: Final = ("rss_bytes", "peak_rss_bytes", "pss_bytes", "gpu_bytes")
_FIGURES: Final = {
    "runtime.process_bytes": ("rss_bytes", "process of a session", "RSS"),
    "training.cuda.total_bytes": ("peak_gpu_bytes", "GPU memory of a training loop", "GPU"),
}
"""By predicted figure: what it is compared with, what it is, and the name of the other."""


@dataclass(frozen=True, slots=True)
class ComparedProcess:
    """What was predicted of a process; ``None`` is unknown."""

    path: str
    """Of the model."""
    figure: str
    """The key of the figure in a report."""
    predicted_bytes: int | None


def render_process(watched: "WatchedProcess", compared: ComparedProcess | None = None) -> str:
    """Write a line for each process and one for all together; it ends with a newline."""
    own, num_children = watched.process, len(watched.processes) - 1
    parts = [f"process {own.pid} ({shortened(own.name)})"]
    if num_children:
        parts.append("1 child" if num_children == 1 else f"{num_children:,} children")
    times = f"{plural(watched.num_readings, 'reading')} in {watched.seconds:.1f} s"
    parts.append(times if watched.num_readings > 1 else "read once")
    headings = _HEADINGS if watched.peak_gpu_bytes is not None else _HEADINGS[:-1]
    rows = [row[: len(headings)] for row in _rows(watched)]
    table = aligned([headings, *rows], 1, _SPARE)
    blocks = [paragraph("", parts), table.splitlines(), _most(watched)]
    if compared is not None:
        blocks.append(_beside(watched, compared))
    notes = [
        line
        for each in watched.findings
        for line in prose(f"  {each.code}: ", shortened(each.message))
    ]
    return joined([*blocks, ["Notes", *notes] if notes else []])


def process_row(watched: "WatchedProcess", compared: ComparedProcess | None = None) -> JsonDict:
    """The figures as JSON; null is not reported by the system."""
    findings = [{"code": each.code, "message": each.message} for each in watched.findings]
    return {
        "pid": watched.process.pid,
        "name": printable(watched.process.name),
        "readings": watched.num_readings,
        "seconds": round(watched.seconds, 3),
        "ended": any(each.code == "process_ended" for each in watched.findings),
        "rss_bytes": watched.rss_bytes,
        "pss_bytes": watched.pss_bytes,
        "gpu_bytes": watched.gpu_bytes,
        "peak_rss_bytes": watched.peak_rss_bytes,
        "peak_pss_bytes": watched.peak_pss_bytes,
        "peak_gpu_bytes": watched.peak_gpu_bytes,
        "gpu_utilization_percent": watched.gpu_utilization_percent,
        "gpu_utilization_peak_percent": watched.gpu_utilization_peak_percent,
        "processes": [_process_row(each) for each in watched.processes],
        "predicted": None if compared is None else _predicted_row(watched, compared),
        "findings": findings,
    }


def _rows(watched: "WatchedProcess") -> list[tuple[str, ...]]:
    own, *children = watched.processes
    largest = sorted(children, key=lambda each: -each.rss_bytes)[:_MOST_LISTED]
    rows = [_row(each) for each in (own, *largest)]
    if not children:
        return rows
    total = map(count_text, (watched.rss_bytes, None, watched.pss_bytes, watched.gpu_bytes))
    others = len(children) - len(largest)
    more = f" ({others:,} not listed)" if others else ""
    return [*rows, (f"total of {len(watched.processes):,}{more}", *total)]


def _row(each: "ProcessReading") -> tuple[str, ...]:
    sizes = (each.rss_bytes, each.peak_rss_bytes, each.pss_bytes, each.gpu_bytes)
    return f"{each.pid} {shortened(each.name)}", *map(count_text, sizes)


def _most(watched: "WatchedProcess") -> list[str]:
    """The peaks of all processes together."""
    at_least = "at least " if len(watched.processes) > 1 else ""
    parts = [f"RSS {at_least}{format_bytes(watched.peak_rss_bytes)}"]
    for name, size in (("PSS", watched.peak_pss_bytes), ("GPU", watched.peak_gpu_bytes)):
        if size is not None:
            parts.append(f"{name} {format_bytes(size)} when read")
    mean, most = watched.gpu_utilization_percent, watched.gpu_utilization_peak_percent
    if mean is not None:
        parts.append(f"GPU utilization {mean} % on average, {most} % at most")
    return paragraph("peak  ", parts)


def _beside(watched: "WatchedProcess", compared: ComparedProcess) -> list[str]:
    key, label, other = _FIGURES[compared.figure]
    error = percent(error_percent(compared.predicted_bytes, getattr(watched, key)))
    parts = [f"{label} {format_bytes(compared.predicted_bytes)}"]
    if compared.predicted_bytes is not None:
        parts.append(f"{error} of {other}" if error else f"not compared: unknown {other}")
    return paragraph(f"{shortened(compared.path)}, predicted  ", parts)


def _process_row(each: "ProcessReading") -> JsonDict:
    sizes = {key: getattr(each, key) for key in _KEYS}
    return {"pid": each.pid, "name": printable(each.name), **sizes}


def _predicted_row(watched: "WatchedProcess", compared: ComparedProcess) -> JsonDict:
    measured_bytes = getattr(watched, _FIGURES[compared.figure][0])
    return {
        "path": printable(compared.path),
        "figure": compared.figure,
        "bytes": compared.predicted_bytes,
        "measured_bytes": measured_bytes,
        "error_percent": error_percent(compared.predicted_bytes, measured_bytes),
    }
