"""A measurement as text, beside what was predicted."""

from itertools import zip_longest
from typing import Final

from onnxmem.analysis.json_rows import Predicted, error_percent
from onnxmem.errors import shortened
from onnxmem.measuring.measurement import MeasuredNode, Measurement
from onnxmem.report.sections.listing import observed_section
from onnxmem.report.sections.runtimes import measured_section
from onnxmem.report.text import (
    aligned,
    count_text,
    joined,
    noted,
    paragraph,
    percent,
    section_lines,
    shape_text,
)
from onnxmem.units import plural

_NUM_TEXTS: Final = 3
"""Columns of text in the table of nodes, aligned left; numbers are aligned right."""
_SPARE: Final = ("op_type", "reserved", "output shape", "scratch")
"""What a narrow table does without, the first ones first."""


def render_measured(path: str, measurement: Measurement, predicted: Predicted | None = None) -> str:
    """Write the figures of one model, a line each; it ends with a newline."""
    observed = None if predicted is None else observed_section(predicted.observed)
    parts = [
        f"{measurement.backend} {measurement.onnxruntime_version}",
        f"{plural(len(measurement.nodes), 'node')} run",
        plural(measurement.runs, "run"),
    ]
    blocks = [
        paragraph(f"{shortened(path)}  ", parts),
        section_lines(measured_section(measurement, predicted)),
        *([section_lines(observed)] if observed is not None else ()),
        noted((*measurement.findings, *(predicted.findings if predicted else ()))),
    ]
    return joined(blocks)


def render_nodes(measurement: Measurement, predicted: Predicted | None) -> str:
    """Write a line for every node that ran; it ends with a newline."""
    compared = ("predicted", "measured", "error") if predicted else ("requested",)
    headings = ("node", "op_type", "output shape", *compared, "scratch", "reserved")
    foretold = predicted.nodes if predicted else ()
    pairs = zip_longest(measurement.nodes, foretold[: len(measurement.nodes)])
    rows = [_node_cells(node, size, is_compared=bool(predicted)) for node, size in pairs]
    return aligned([headings, *rows], _NUM_TEXTS, _SPARE)


def _node_cells(
    node: MeasuredNode, predicted_bytes: int | None, *, is_compared: bool
) -> tuple[str, ...]:
    error = percent(error_percent(predicted_bytes, node.requested_bytes)) or "?"
    shapes = ", ".join(map(shape_text, node.output_shapes)) or "?"
    requested = count_text(node.requested_bytes)
    return (
        *map(shortened, (node.name, node.op_type, shapes)),
        *((count_text(predicted_bytes), requested, error) if is_compared else (requested,)),
        *map(count_text, (node.scratch_bytes, node.held_bytes)),
    )
