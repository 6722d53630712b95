"""Faces of an analysis: text for a terminal, JSON by a contract. Pure functions to text.

Each is imported where it is asked for.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.report.kv_cache import cache_sections
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
    from onnxmem.report.runtime import runtime_sections
    from onnxmem.report.step_sparklines import step_rows
    from onnxmem.report.table import csv_head, csv_row, jsonl_row
    from onnxmem.report.terminal import render
    from onnxmem.report.training import training_sections

__all__ = [
    "cache_sections",
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
    "runtime_sections",
    "step_rows",
    "table_end",
    "table_head",
    "table_row",
    "training_sections",
]

__getattr__ = late(
    __name__,
    {
        "onnxmem.report.kv_cache": ("cache_sections",),
        "onnxmem.report.layers": ("render_layers",),
        "onnxmem.report.page.model_page": ("render_page",),
        "onnxmem.report.registry": (
            *("json_head", "json_row", "json_tail"),
            *("render_summary", "table_head", "table_end", "table_row"),
        ),
        "onnxmem.report.registry_page": ("render_registry_page",),
        "onnxmem.report.runtime": ("runtime_sections",),
        "onnxmem.report.step_sparklines": ("step_rows",),
        "onnxmem.report.table": ("csv_head", "csv_row", "jsonl_row"),
        "onnxmem.report.terminal": ("render",),
        "onnxmem.report.training": ("training_sections",),
    },
)
