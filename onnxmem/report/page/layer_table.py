"""A row for every node, which a script sorts, filters and moves with the batch."""

from collections.abc import Sequence
from html import escape
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.compute import Layer, layers
from onnxmem.report.page import markup
from onnxmem.report.page.markup import Cell, section
from onnxmem.report.page.stops import Stops, line_through
from onnxmem.units import format_bytes, format_count, plural

_MOST: Final = 1000
"""Rows of the table; of more nodes the largest."""

_HEADS = (
    *(("step", True), ("node", False), ("operator", False), ("output shape", False)),
    *(("dtype", False), ("output", True), ("parameters", True), ("weights", True)),
    *(("MACs", True), ("FLOPs", True)),
)

_Column = Sequence[Sequence[Layer]]


def layers_section(analysis: Analysis, stops: Stops) -> str:
    """The table, its filter and how many nodes it leaves out."""
    rows = _rows(analysis)
    shown = range(len(rows))
    if len(rows) > _MOST:
        largest = sorted(shown, key=lambda n: -(_brings(rows[n])))
        shown_places = sorted(largest[:_MOST])
        remark = (
            f"The {_MOST:,} largest of {plural(len(rows), 'node')} by outputs and weights;"
            f" onnxmem --layers has all. The sums below are of all."
        )
    else:
        shown_places, remark = list(shown), ""
    others = _alike(rows, stops, shown_places)
    batches = [batch for batch, _ in others]
    cells = [
        _cells(place, rows[place], [layer[number] for _, layer in others], batches)
        for number, place in enumerate(shown_places)
    ]
    table = markup.table("layers-table", _HEADS, cells)
    limits = f' data-first="{batches[0]}" data-last="{batches[-1]}"' if len(batches) > 2 else ""  # noqa: PLR2004
    body = (
        markup.filter_box("layers-table", "filter by name, operator, shape or type")
        + f'<div id="onnxmem-layers"{limits}>{table}</div>{_sums(rows)}'
    )
    return section("layers", "Layers", body, remark)


def _rows(analysis: Analysis) -> tuple[Layer, ...]:
    return layers(analysis.graph, analysis.parameters, analysis.compute)


def _brings(layer: Layer) -> int:
    return (layer.output_bytes or 0) + (layer.weight_bytes or 0)


def _alike(
    rows: Sequence[Layer], stops: Stops, places: Sequence[int]
) -> list[tuple[int, list[Layer]]]:
    """The same nodes at each batch."""
    found = []
    for stop in stops.all:
        other = rows if stop is stops.requested else _rows(stop.analysis)
        if len(other) == len(rows):
            found.append((stop.batch, [other[place] for place in places]))
    return found


def _cells(
    place: int, layer: Layer, others: Sequence[Layer], batches: Sequence[int]
) -> Sequence[Cell]:
    def moved(values: Sequence[int | None]) -> str | None:
        line = line_through(batches, values)
        return None if line is None else str(line.slope_bytes)

    def number(value: int | None, per: str | None, *, is_bytes: bool) -> Cell:
        written = format_bytes(value) if is_bytes else format_count(value)
        attributes = {"data-as": "bytes" if is_bytes else "count"}
        if per is not None and per != "0":
            attributes["data-per"] = per
        elif per is None and len(batches) > 1:
            attributes["data-per"] = "?"
        exact = "" if value is None else f"{value:,}"
        return Cell(written, value, is_number=True, attributes={"title": exact, **attributes})

    sizes = (
        number(layer.output_bytes, moved([each.output_bytes for each in others]), is_bytes=True),
        Cell(f"{layer.num_parameters:,}", layer.num_parameters, is_number=True),
        number(layer.weight_bytes, moved([each.weight_bytes for each in others]), is_bytes=True),
        number(layer.macs, moved([each.macs for each in others]), is_bytes=False),
        number(layer.flops, moved([each.flops for each in others]), is_bytes=False),
    )
    return (
        Cell(f"{place + 1:,}", place + 1, is_number=True),
        Cell(markup.name(layer.node), attributes={"class": "name"}),
        Cell(markup.name(layer.op_type)),
        _shape_cell(layer, others, batches),
        Cell(escape(layer.dtype or "?")),
        *sizes,
    )


def _shape_cell(layer: Layer, others: Sequence[Layer], batches: Sequence[int]) -> Cell:
    shape = layer.output_shape
    if shape is None:
        return Cell("?")
    written = "x".join("?" if dim is None else str(dim) for dim in shape) or "scalar"
    shapes = [each.output_shape or () for each in others]
    if len(batches) < 2 or any(len(each) != len(shape) for each in shapes):  # noqa: PLR2004
        return Cell(written)
    lines = [line_through(batches, dims) for dims in zip(*shapes, strict=True)]
    slopes = ["?" if line is None else str(line.slope_bytes) for line in lines]
    if not set(slopes) - {"0"}:
        return Cell(written)
    return Cell(written, attributes={"data-dims": ",".join(slopes)})


def _sums(rows: Sequence[Layer]) -> str:
    outputs = sum(layer.output_bytes or 0 for layer in rows)
    weights = sum(layer.weight_bytes or 0 for layer in rows)
    return (
        f'<p class="remark">{plural(len(rows), "node")}.'
        f'<span data-caption="sums"> Outputs {markup.size(outputs)}, weights'
        f" {markup.size(weights)}.</span></p>"
    )
