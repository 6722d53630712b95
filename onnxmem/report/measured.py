"""A measurement as text, beside what was predicted."""

from itertools import starmap, zip_longest
from statistics import median
from typing import Final

from onnxmem.analysis.measured import FIGURES, Predicted, error_percent
from onnxmem.errors import shortened
from onnxmem.measure.measurement import MeasuredNode, Measurement
from onnxmem.report.lines import fact, figure, paragraph, prose
from onnxmem.units import plural

_LABEL: Final = 20
_EXACT: Final = 17
_ERROR: Final = 10
_NUM_TEXTS: Final = 3
"""Columns of text, which stand to the left; numbers stand to the right."""
_LONGEST: Final = 2000


def render_measured(path: str, measurement: Measurement, predicted: Predicted | None = None) -> str:
    """Write the figures of one model, a line each; it ends with a newline."""
    parts = [
        f"{measurement.backend} {measurement.onnxruntime_version}",
        f"{plural(len(measurement.nodes), 'node')} run",
        plural(measurement.runs, "run"),
    ]
    sections = [
        paragraph(f"{shortened(path)}  ", parts),
        measured_section(measurement, predicted),
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


def measured_section(measurement: Measurement, predicted: Predicted | None = None) -> list[str]:
    """The figures, beside what was predicted where there is that."""
    return _compared(measurement, predicted) if predicted else _figures(measurement)


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
