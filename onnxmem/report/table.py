"""Rows for tables: CSV of flat columns, and JSON lines.

Both go into Parquet by any frame library: ``polars.read_csv(file).write_parquet(...)``, or
``polars.read_ndjson(file)`` for nested columns.
"""

import csv
import io
import json
from typing import Any, Final

from onnxmem.analysis.json_rows import Row, findings_of
from onnxmem.errors import no_formula, shortened
from onnxmem.report.text import finding_text

COLUMNS: Final = (
    *("path", "status", "error.code", "error.message"),
    *("settings.batch", "settings.train", "settings.optimizer", "settings.precision"),
    *("settings.loss", "settings.graph", "file_bytes", "weights.bytes", "weights.parameters"),
    *("inputs_bytes", "outputs_bytes", "batch_law.fixed_bytes", "batch_law.bytes_per_sample"),
    *("activations.naive_bytes", "activations.naive_in_place_bytes", "activations.peak_bytes"),
    *("activations.in_place_peak_bytes", "activations.arena_bytes", "activations.peak_node"),
    *("total_bytes", "training.weight_bytes", "training.buffer_bytes", "training.gradient_bytes"),
    *("training.optimizer_state_bytes", "training.saved_activation_bytes"),
    *("training.input_bytes", "training.forward_peak_bytes", "training.backward_peak_bytes"),
    *("training.optimizer_peak_bytes", "training.peak_bytes", "training.peak_phase"),
    *("training.cuda.reserved_bytes", "training.cuda.total_bytes", "training_law.fixed_bytes"),
    *("training_law.bytes_per_sample", "runtime.name", "runtime.requested_peak_bytes"),
    *("runtime.held_steady_bytes", "runtime.process_bytes", "measured.requested_peak_bytes"),
    *("measured.process_peak_bytes", "compute.forward_macs", "compute.forward_flops"),
    *("compute.backward_flops", "max_batch.batch", "max_batch.peak_bytes", "coverage.nodes"),
    *("coverage.assumed_nodes", "coverage.unknown_tensors", "findings", "verdict.verdict"),
    *("verdict.basis", "verdict.bytes", "verdict.limit_bytes", "verdict.fits_up_to", "notes"),
)
"""Where each column stands in a row; its name has ``_`` for the dots. ``findings`` are counted, and
``notes`` are their texts."""


_LONGEST: Final = 4096
"""Characters of a cell; a path may have so many."""


def csv_head() -> str:
    """The names of the columns: a JSON path's, ``_`` for each dot."""
    return _line([column.replace(".", "_") for column in COLUMNS])


def csv_row(row: Row) -> str:
    """One model: whole numbers, ``true`` and ``false``, and nothing where it is unknown."""
    return _line([_cell(_value(row, column)) for column in COLUMNS])


def jsonl_row(row: Row) -> str:
    """One model on a line of its own: the row of the JSON contract, whole."""
    return json.dumps(row) + "\n"


def _value(row: Row, column: str) -> object:
    if column == "notes":
        return "; ".join(map(finding_text, findings_of(row)))
    value: Any = row
    for key in column.split("."):
        if value is None:
            return None
        value = value.get(key)
    return value


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return str(len(value))
    return no_formula(shortened(value, _LONGEST)) if isinstance(value, str) else str(value)


def _line(cells: list[str]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(cells)
    return stream.getvalue()
