"""A measurement as text and as plain values, beside what was predicted where there is that.

``error_percent`` is 100 x (predicted / measured - 1).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import starmap, zip_longest
from statistics import median
from typing import Final

from onnxmem.escaping import printable, shortened
from onnxmem.measure.measurement import MeasuredNode, Measurement
from onnxmem.report.lines import fact, figure, paragraph, prose
from onnxmem.rows import Row
from onnxmem.units import plural

FIGURES: Final = (
    ("requested_peak_bytes", "requested peak", "asked for by the nodes at once"),
    ("with_scratch_peak_bytes", "with scratch", "with the kernels' own blocks"),
    ("pattern_block_bytes", "pattern block", "one block for it, from run 2 on"),
    ("base_bytes", "base", "before the first node"),
    ("in_use_peak_bytes", "in use, peak", "chunks given out, base included"),
    ("held_bytes", "held", "by the arena after run 1"),
    ("held_steady_bytes", "held, steady", "by the arena after the last run"),
    ("load_peak_bytes", "load peak", "while the session is made"),
    ("process_peak_bytes", "process, peak", "the whole process at most"),
    ("process_steady_bytes", "process, steady", "the whole process after the runs"),
    ("device_peak_bytes", "GPU, peak", "on the device, by all processes"),
    ("device_steady_bytes", "GPU, steady", "on the device after the runs"),
)
"""Field of a measurement, its label, and what it is."""

_LABEL: Final = 20
_EXACT: Final = 17
_ERROR: Final = 10
_NUM_TEXTS: Final = 3
"""Columns of text, which stand to the left; numbers stand to the right."""
_LONGEST: Final = 2000


@dataclass(frozen=True, slots=True)
class Predicted:
    """What was said before the run, in bytes."""

    figures: Mapping[str, int | None] = field(default_factory=dict)
    """By the fields of ``Measurement``; what is left out was not predicted."""
    nodes: tuple[int | None, ...] = ()
    """Requested at the end of each node, base included, in running order."""


def error_percent(predicted: int | None, measured: int | None) -> float | None:
    """How far a prediction is off; ``None`` where one side is unknown or nothing was measured."""
    if predicted is None or not measured:
        return 0.0 if predicted == measured == 0 else None
    return 100 * (predicted / measured - 1)


def measured_row(measurement: Measurement, predicted: Predicted | None = None) -> Row:
    """The contract's ``measured``: every figure, and the error of the requested peak."""
    foretold = predicted.figures.get("requested_peak_bytes") if predicted else None
    return {
        "backend": measurement.backend,
        **{name: getattr(measurement, name) for name, _, _ in FIGURES},
        "process_baseline_bytes": measurement.process_baseline_bytes,
        "device_baseline_bytes": measurement.device_baseline_bytes,
        "runs": measurement.runs,
        "seconds_per_run": list(measurement.seconds_per_run),
        "onnxruntime_version": measurement.onnxruntime_version,
        "weights_made_up": measurement.num_filled,
        "error_percent": error_percent(foretold, measurement.requested_peak_bytes),
    }


def node_rows(measurement: Measurement) -> list[Row]:
    """A row for every node that ran; sizes are those of the arena, the base included."""
    return [
        {
            "node": printable(node.name),
            "op_type": printable(node.op_type),
            "provider": node.provider,
            "output_shapes": [list(shape) for shape in node.output_shapes],
            "requested_bytes": node.requested_bytes,
            "in_use_bytes": node.in_use_bytes,
            "held_bytes": node.held_bytes,
            "scratch_bytes": node.scratch_bytes,
        }
        for node in measurement.nodes
    ]


def render_measured(path: str, measurement: Measurement, predicted: Predicted | None = None) -> str:
    """Write the figures of one model, a line each; it ends with a newline."""
    parts = [
        f"{measurement.backend} {measurement.onnxruntime_version}",
        f"{plural(len(measurement.nodes), 'node')} run",
        plural(measurement.runs, "run"),
    ]
    sections = [
        paragraph(f"{shortened(path)}  ", parts),
        _compared(measurement, predicted) if predicted else _figures(measurement),
        _findings(measurement),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def render_nodes(measurement: Measurement, predicted: Predicted | None = None) -> str:
    """Write a line for every node that ran; it ends with a newline."""
    compared = ("predicted", "measured", "error") if predicted else ("requested",)
    headings = ("node", "op_type", "output shape", *compared, "scratch", "held")
    foretold = predicted.nodes if predicted else ()
    pairs = zip_longest(measurement.nodes, foretold[: len(measurement.nodes)])
    rows = [_node_cells(node, size, is_compared=bool(predicted)) for node, size in pairs]
    table = [headings, *rows]
    widths = [max(len(row[place]) for row in table) for place in range(len(headings))]
    return "".join(f"{_line(row, widths)}\n" for row in table)


def _figures(measurement: Measurement) -> list[str]:
    lines = [
        figure(f"  {label}", size, remark)
        for name, label, remark in FIGURES
        if (size := getattr(measurement, name)) is not None
    ]
    return ["MEASURED", *lines, *_times(measurement)]


def _compared(measurement: Measurement, predicted: Predicted) -> list[str]:
    head = f"{'MEASURED':<{_LABEL}}{'predicted':>{_EXACT}}{'measured':>{_EXACT}}{'error':>{_ERROR}}"
    lines = [head]
    for name, label, remark in FIGURES:
        sizes = predicted.figures.get(name), getattr(measurement, name)
        if sizes != (None, None):
            columns = "".join(f"{_exact(size):>{_EXACT}}" for size in sizes)
            error = _percent(error_percent(*sizes))
            lines += prose(f"  {label:<{_LABEL - 2}}{columns}{error:>{_ERROR}}   ", remark)
    return [*lines, *_times(measurement)]


def _times(measurement: Measurement) -> list[str]:
    first, *others = measurement.seconds_per_run
    text = f"first run {_milliseconds(first)}"
    if others:
        text += f", then {_milliseconds(median(others))} (median of {len(others):,})"
    return [fact("  time", text)]


def _findings(measurement: Measurement) -> list[str]:
    lines = []
    for finding in measurement.findings:
        lines += prose(f"  {finding.code}: ", shortened(finding.message, _LONGEST))
    return ["FINDINGS", *lines] if lines else []


def _node_cells(
    node: MeasuredNode, predicted_bytes: int | None, *, is_compared: bool
) -> tuple[str, ...]:
    error = _percent(error_percent(predicted_bytes, node.requested_bytes))
    shapes = ["x".join(map(str, shape)) or "scalar" for shape in node.output_shapes]
    return (
        *(shortened(node.name), shortened(node.op_type), shortened(", ".join(shapes) or "?")),
        *((_count(predicted_bytes),) if is_compared else ()),
        _count(node.requested_bytes),
        *((error or "?",) if is_compared else ()),
        *(_count(node.scratch_bytes), _count(node.held_bytes)),
    )


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    def cell(place: int, width: int) -> str:
        return f"{row[place]:<{width}}" if place < _NUM_TEXTS else f"{row[place]:>{width}}"

    return "  ".join(starmap(cell, enumerate(widths))).rstrip()


def _count(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def _exact(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else f"{num_bytes:,} B"


def _milliseconds(seconds: float) -> str:
    """Three digits of a short time, all of a long one: ``0.0362 ms``, ``12,345 ms``."""
    milliseconds = 1000 * seconds
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds:,.0f} ms"  # noqa: PLR2004


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.1f} %"
