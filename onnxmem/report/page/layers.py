"""The table of a model's nodes: what is alive while each runs, what it writes and computes.

A script sorts it, filters it and moves it with the batch.
"""

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.compute import Layer, layers
from onnxmem.report.page import markup
from onnxmem.report.page.markup import Cell, section
from onnxmem.report.page.stops import Stop, Stops, line_through
from onnxmem.report.text import shape_text
from onnxmem.units import format_bytes, format_count, plural

_MOST_LAYERS: Final = 1000
"""Rows; of more nodes those at which most is alive."""
_HEADS: Final = (
    *(("step", True), ("node", False), ("operator", False), ("live bytes", True)),
    *(("output shape", False), ("dtype", False), ("output", True), ("parameters", True)),
    *(("weights", True), ("MACs", True), ("FLOPs", True)),
)
_PEAK: Final = ' <b class="badge">peak</b>'
_LIVE: Final = 3
"""The column by which the rows are sorted at first."""


def layers_section(analysis: Analysis, stops: Stops) -> str:
    """A row for each node, those first at which most is alive; the peak is marked."""
    rows = _nodes(stops.requested)
    shown = sorted(range(len(rows)), key=lambda number: (-rows[number].live_bytes, number))
    remark = "Live bytes: the activations of inference that are alive while the node runs."
    if any(row.is_nested for row in rows):
        remark += " A node of a subgraph has those of the If, Loop or Scan, at its peak."
    if len(rows) > _MOST_LAYERS:
        shown = shown[:_MOST_LAYERS]
        remark += (
            f" The {_MOST_LAYERS:,} nodes of {len(rows):,} with the most;"
            " onnxmem --layers has all. The sums below are of all."
        )
    others = _at_stops(rows, stops, shown)
    batches = [batch for batch, _ in others]
    peak_step = analysis.activations.peak_step
    cells = [
        _cells(
            row,
            [at[index] for _, at in others],
            batches,
            row.step == peak_step and not row.is_nested,
        )
        for index, row in enumerate(rows[number] for number in shown)
    ]
    table = markup.table("layers-table", _HEADS, cells, sorted_by=_LIVE)
    limits = f' data-first="{batches[0]}" data-last="{batches[-1]}"' if len(batches) > 2 else ""  # noqa: PLR2004 - two points prove no line
    body = (
        markup.filter_box("layers-table", "filter by name, operator, shape or type")
        + f'<div id="onnxmem-layers"{limits}>{table}</div>{_sums(rows)}'
    )
    return section("layers", "Layers", body, remark, is_open=False)


class _Row(NamedTuple):
    """A node, and the bytes of activations that are alive while it runs."""

    layer: Layer
    step: int
    """Of the timeline: a node of a subgraph runs in the step of the If, Loop or Scan."""
    is_nested: bool
    live_bytes: int


def _nodes(stop: Stop) -> Sequence[_Row]:
    analysis = stop.analysis
    of_nodes = iter(layers(analysis.graph, analysis.parameters, analysis.compute))
    live_bytes = analysis.activations.live_bytes
    return [
        _Row(next(of_nodes), step, inner > 0, live_bytes[step])
        for step, node in enumerate(analysis.graph.nodes)
        for inner in range(1 + sum(1 for _, graph in node.subgraphs for _ in graph.all_nodes()))
    ]


def _at_stops(
    rows: Sequence[_Row], stops: Stops, shown: Sequence[int]
) -> list[tuple[int, list[_Row]]]:
    """The same nodes at each stop, where the graph has the same number of them."""
    found = []
    for stop in stops.all:
        other = rows if stop is stops.requested else _nodes(stop)
        if len(other) == len(rows):
            found.append((stop.batch, [other[number] for number in shown]))
    return found


def _cells(
    row: _Row,
    rows: Sequence[_Row],
    batches: Sequence[int],
    is_peak: bool,  # noqa: FBT001 - of one row
) -> Sequence[Cell]:
    layer, others = row.layer, [each.layer for each in rows]
    nested = {"data-nested": ""} if row.is_nested else {}

    def slope(values: Sequence[int | None]) -> str | None:
        line = line_through(batches, values)
        return None if line is None else str(line.slope_bytes)

    def number(value: int | None, per: str | None, *, is_bytes: bool) -> Cell:
        written = format_bytes(value) if is_bytes else format_count(value)
        attributes = {}
        if per is not None and per != "0":
            attributes["data-per"] = per
        elif per is None and len(batches) > 1:
            attributes["data-per"] = "?"
        return Cell(written, value, is_number=True, attributes=attributes)

    sizes = (
        number(layer.output_bytes, slope([each.output_bytes for each in others]), is_bytes=True),
        Cell(f"{layer.num_parameters:,}", layer.num_parameters, is_number=True),
        number(layer.weight_bytes, slope([each.weight_bytes for each in others]), is_bytes=True),
        number(layer.macs, slope([each.macs for each in others]), is_bytes=False),
        number(layer.flops, slope([each.flops for each in others]), is_bytes=False),
    )
    return (
        Cell(f"{row.step + 1:,}", row.step + 1, is_number=True, attributes=nested),
        Cell(markup.name(layer.node), attributes={"class": "name"}),
        Cell(markup.name(layer.op_type) + (_PEAK if is_peak else "")),
        number(row.live_bytes, slope([each.live_bytes for each in rows]), is_bytes=True),
        _shape_cell(layer, others, batches),
        Cell(escape(layer.dtype or "?")),
        *sizes,
    )


def _shape_cell(layer: Layer, others: Sequence[Layer], batches: Sequence[int]) -> Cell:
    shape = layer.output_shape
    if shape is None:
        return Cell("?")
    written = shape_text(shape)
    shapes = [each.output_shape or () for each in others]
    if len(batches) < 2 or any(len(each) != len(shape) for each in shapes):  # noqa: PLR2004 - there is another
        return Cell(written)
    lines = [line_through(batches, dims) for dims in zip(*shapes, strict=True)]
    slopes = ["?" if line is None else str(line.slope_bytes) for line in lines]
    if not set(slopes) - {"0"}:
        return Cell(written)
    return Cell(written, attributes={"data-dims": ",".join(slopes)})


def _sums(rows: Sequence[_Row]) -> str:
    outputs = sum(row.layer.output_bytes or 0 for row in rows)
    weights = sum(row.layer.weight_bytes or 0 for row in rows)
    return (
        f'<p class="remark">{plural(len(rows), "node")}.'
        f'<span data-caption="sums"> Outputs {markup.size(outputs)}, weights'
        f" {markup.size(weights)}.</span></p>"
    )
