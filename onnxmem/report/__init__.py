"""Faces of an analysis: text for a terminal, JSON by a contract. Pure functions to text.

Pages are imported where one is asked for.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.report.page.model_page import render_page
    from onnxmem.report.registry_page import render_registry_page

__all__ = ["render_page", "render_registry_page"]

__getattr__ = late(
    __name__,
    {
        "onnxmem.report.page.model_page": ("render_page",),
        "onnxmem.report.registry_page": ("render_registry_page",),
    },
)
