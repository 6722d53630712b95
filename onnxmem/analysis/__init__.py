"""A model and a request in, an analysis out: the one package that walks the stages.

Begin reading with ``analyzing.analyze``, then ``analysis.analysis_of``.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis
    from onnxmem.analysis.analyzing import analyze

__all__ = ["Analysis", "analyze"]

__getattr__ = late(
    __name__,
    {
        "onnxmem.analysis.analysis": ("Analysis",),
        "onnxmem.analysis.analyzing": ("analyze",),
    },
)
