"""A row for every node as CSV, for a spreadsheet or a frame library."""

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.compute import Layer, layers
from onnxmem.errors import no_formula, shortened
from onnxmem.export.steps import live_bytes

COLUMNS: Final = (
    *("step", "node", "op_type", "output_shape", "dtype", "output_bytes", "live_bytes"),
    *("parameters", "weight_bytes", "macs", "flops"),
)
"""``step`` and ``live_bytes`` are empty for a node inside an If, a Loop or a Scan."""

"""What a spreadsheet takes for a formula at the start of a cell (OWASP, CSV Injection); its
control characters are escaped in a name anyway."""


def layer_table(analysis: Analysis) -> Iterator[str]:
    """Write a line a node, in running order; an unknown figure is an empty cell.

    A name that a spreadsheet would take for a formula has ``'`` before it.
    """
    steps = {node.name: step for step, node in enumerate(analysis.graph.nodes)}
    live = live_bytes(analysis)
    yield _line(COLUMNS)
    for layer in layers(analysis.graph, analysis.parameters, analysis.compute):
        step = steps.get(layer.node)
        yield _line(_cells(layer, step, None if step is None else live[step]))


def _cells(layer: Layer, step: int | None, live: int | None) -> Iterator[str]:
    yield _number(step)
    yield _text(layer.node)
    yield _text(layer.op_type)
    yield "" if layer.output_shape is None else _shape(layer.output_shape)
    yield _text(layer.dtype or "")
    for figure in (
        *(layer.output_bytes, live, layer.num_parameters),
        *(layer.weight_bytes, layer.macs, layer.flops),
    ):
        yield _number(figure)


def _shape(dims: Iterable[int | None]) -> str:
    return "x".join("?" if dim is None else str(dim) for dim in dims) or "scalar"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _text(name: str) -> str:
    return no_formula(shortened(name))


def _line(cells: Iterable[str]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(cells)
    return stream.getvalue()
