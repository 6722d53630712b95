"""A process that served requests, as text and as JSON, beside its simulation."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from onnxmem.analysis.json_rows import JsonDict, error_percent
from onnxmem.decisions.simulate import Simulation
from onnxmem.errors import printable, shortened
from onnxmem.measuring.served import ServedMeasurement
from onnxmem.model.requests import Requests
from onnxmem.report.simulation import load_text
from onnxmem.report.text import (
    aligned,
    buckets,
    count_text,
    fact,
    finding_lines,
    joined,
    paragraph,
    percent,
)
from onnxmem.units import format_bytes

_ROWS: Final = 6
"""Of the timeline."""
_HEADINGS: Final = ("", "predicted", "measured", "error")
_COLUMNS: Final = ("request", "arena predicted", "measured", "process predicted", "resident")


@dataclass(frozen=True, slots=True)
class ComparedServing:
    """A measured process and the simulation of the same requests; ``None``: it failed."""

    requests: Requests
    concurrency: int
    sessions: int
    measured: ServedMeasurement
    simulated: Simulation | None

    def process_bytes(self, index: int) -> int | None:
        """The predicted process after a request, with all inputs that the measured one holds."""
        if self.simulated is None:
            return None
        served = self.simulated.timeline[index]
        return served.process_bytes - served.input_bytes + self.measured.input_bytes

    def figures(self) -> Iterator[tuple[str, str, int | None, int | None]]:
        """Each figure: its key, its label, predicted and measured."""
        measured, found = self.measured, self.simulated
        reserved = reserved_peak = load_peak = peak = None
        if found is not None:
            reserved, reserved_peak = found.arena_reserved_bytes, found.arena_reserved_peak_bytes
            if found.load_peak_bytes is not None:
                load_peak = found.load_peak_bytes + measured.input_bytes
            each = (self.process_bytes(index) or 0 for index in range(len(found.timeline)))
            peak = max(load_peak or 0, *each)
        process = self.process_bytes(-1)
        yield "arena_reserved_bytes", "arena reserved", reserved, measured.arena_reserved_bytes
        yield (
            *("arena_reserved_peak_bytes", "arena reserved, peak"),
            *(reserved_peak, measured.arena_reserved_peak_bytes),
        )
        yield "load_peak_bytes", "process, load peak", load_peak, measured.load_peak_bytes
        yield "process_peak_bytes", "process, peak", peak, measured.process_peak_bytes
        yield "process_bytes", "process at the end", process, measured.process_bytes
        yield "proportional_bytes", "process at the end, PSS", None, measured.proportional_bytes


def render_served(path: str, compared: ComparedServing) -> str:
    """Write the figures and the timeline of one model; it ends with a newline."""
    measured = compared.measured
    load = load_text(compared.requests, compared.concurrency, compared.sessions)
    parts = [f"onnxruntime-cpu {measured.onnxruntime_version}", load]
    rows = [
        (label, count_text(predicted), count_text(size), percent(error_percent(predicted, size)))
        for _, label, predicted, size in compared.figures()
    ]
    interval = None if compared.simulated is None else compared.simulated.interval
    facts = []
    if interval is not None:
        low, high = format_bytes(interval.low_bytes), format_bytes(interval.high_bytes)
        facts += fact("Arena by chance", f"{low} to {high} predicted at most").splitlines()
    facts += fact("Time of all requests", f"{measured.seconds:,.1f} s").splitlines()
    return joined(
        [
            paragraph(f"{shortened(path)}  ", parts),
            [*aligned([_HEADINGS, *rows], 1).splitlines(), *facts],
            aligned([_COLUMNS, *_timeline(compared)], 0).splitlines(),
            list(finding_lines(measured.findings)),
        ]
    )


def _timeline(compared: ComparedServing) -> Iterator[tuple[str, ...]]:
    """The requests in equal groups, each with what the process takes at its end."""
    timeline, found = compared.measured.timeline, compared.simulated
    for index in sorted({0, *(stop - 1 for _, stop in buckets(len(timeline), _ROWS))}):
        each = timeline[index]
        reserved = None if found is None else found.timeline[index].reserved_bytes
        sizes = (reserved, each.reserved_bytes, compared.process_bytes(index), each.resident_bytes)
        yield (f"{index + 1:,}", *map(count_text, sizes))


def served_row(compared: ComparedServing) -> JsonDict:
    """The figures and the timeline as a JSON object; null: unknown."""
    measured, found = compared.measured, compared.simulated
    interval = None if found is None else found.interval
    return {
        "source": printable(compared.requests.source),
        "seed": compared.requests.seed,
        "num_requests": len(compared.requests.rows),
        "num_shapes": len(compared.requests.shapes),
        "concurrency": compared.concurrency,
        "sessions": compared.sessions,
        "onnxruntime_version": measured.onnxruntime_version,
        "input_bytes": measured.input_bytes,
        "process_floor_bytes": measured.process_floor_bytes,
        "seconds": measured.seconds,
        "figures": {
            key: {
                "predicted_bytes": predicted,
                "measured_bytes": size,
                "error_percent": error_percent(predicted, size),
            }
            for key, _, predicted, size in compared.figures()
        },
        "arena_reserved_interval": None
        if interval is None
        else {"low_bytes": interval.low_bytes, "high_bytes": interval.high_bytes},
        "timeline": [
            {
                "request": index + 1,
                "dims": {printable(name): number for name, number in each.dims.items()},
                "arena_reserved_bytes": each.reserved_bytes,
                "predicted_arena_reserved_bytes": None
                if found is None
                else found.timeline[index].reserved_bytes,
                "process_bytes": each.resident_bytes,
                "predicted_process_bytes": compared.process_bytes(index),
            }
            for index, each in enumerate(measured.timeline)
        ],
    }
