"""The table of nodes as text: what each makes, which weights it brings, what it computes."""

from itertools import starmap

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.compute import Layer, layers
from onnxmem.errors import shortened

_HEADINGS = (
    *("node", "op_type", "output shape", "dtype", "output bytes"),
    *("parameters", "weight bytes", "MACs", "FLOPs"),
)
_NUM_TEXTS = 4
"""Columns of text, which stand to the left; numbers stand to the right."""


def render_layers(analysis: Analysis) -> str:
    """Write a line per node, in running order; it ends with a newline."""
    nodes = layers(analysis.graph, analysis.parameters, analysis.compute)
    table = [_HEADINGS, *(_cells(node) for node in nodes)]
    widths = [max(len(row[place]) for row in table) for place in range(len(_HEADINGS))]
    return "".join(f"{_line(row, widths)}\n" for row in table)


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    def cell(place: int, width: int) -> str:
        return f"{row[place]:<{width}}" if place < _NUM_TEXTS else f"{row[place]:>{width}}"

    return "  ".join(starmap(cell, enumerate(widths)))


def _cells(layer: Layer) -> tuple[str, ...]:
    dims = layer.output_shape
    shape = "?" if dims is None else "x".join("?" if dim is None else str(dim) for dim in dims)
    return (
        shortened(layer.node),
        shortened(layer.op_type),
        shape or "scalar",
        layer.dtype or "?",
        *(
            "?" if count is None else f"{count:,}"
            for count in (
                layer.output_bytes,
                layer.num_parameters,
                layer.weight_bytes,
                layer.macs,
                layer.flops,
            )
        ),
    )
