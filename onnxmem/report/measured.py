"""A measurement as text, beside what was predicted."""

from itertools import starmap, zip_longest
from typing import Final

from onnxmem.analysis.json_rows import Predicted, error_percent
from onnxmem.errors import shortened
from onnxmem.measure.measurement import MeasuredNode, Measurement
from onnxmem.report.sections.runtimes import measured_section
from onnxmem.report.text import paragraph, percent, prose, section_lines
from onnxmem.units import plural

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
        section_lines(measured_section(measurement, predicted)),
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


def _findings(measurement: Measurement) -> list[str]:
    lines = []
    for finding in measurement.findings:
        lines += prose(f"  {finding.code}: ", shortened(finding.message, _LONGEST))
    return ["FINDINGS", *lines] if lines else []


def _node_cells(
    node: MeasuredNode, predicted_bytes: int | None, *, is_compared: bool
) -> tuple[str, ...]:
    error = percent(error_percent(predicted_bytes, node.requested_bytes))
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
