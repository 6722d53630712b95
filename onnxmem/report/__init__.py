"""Faces of an analysis: text for a terminal, JSON by a contract. Pure functions to text.

Each is imported where it is asked for.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.report.layers import render_layers
    from onnxmem.report.page.model_page import render_page
    from onnxmem.report.registry import (
        json_head,
        json_row,
        json_tail,
        render_summary,
        table_end,
        table_head,
        table_row,
    )
    from onnxmem.report.registry_page import render_registry_page
    from onnxmem.report.table import csv_head, csv_row, jsonl_row
    from onnxmem.report.terminal import render

__all__ = [
    "csv_head",
    "csv_row",
    "json_head",
    "json_row",
    "json_tail",
    "jsonl_row",
    "render",
    "render_layers",
    "render_page",
    "render_registry_page",
    "render_summary",
    "table_end",
    "table_head",
    "table_row",
]

__getattr__ = late(
    __name__,
    {
        "onnxmem.report.layers": ("render_layers",),
        "onnxmem.report.page.model_page": ("render_page",),
        "onnxmem.report.registry": (
            *("json_head", "json_row", "json_tail"),
            *("render_summary", "table_head", "table_end", "table_row"),
        ),
        "onnxmem.report.registry_page": ("render_registry_page",),
        "onnxmem.report.table": ("csv_head", "csv_row", "jsonl_row"),
        "onnxmem.report.terminal": ("render",),
    },
)
