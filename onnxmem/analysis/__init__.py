"""A model and a request in, an analysis out: the one package that walks the stages.

``analyzing`` is where to begin reading.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis
    from onnxmem.analysis.analyzing import analyze, answer

__all__ = ["Analysis", "analyze", "answer"]

__getattr__ = late(
    __name__,
    {
        "onnxmem.analysis.analysis": ("Analysis",),
        "onnxmem.analysis.analyzing": ("analyze", "answer"),
    },
)
