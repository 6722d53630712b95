"""Whether a model fits a device, the largest that does, and what limits it.

Which figure is held against memory is known at once; what works figures out is imported late.
"""

from typing import TYPE_CHECKING

from onnxmem.analysis.fitting.bases import BASES, Basis, basis_for
from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.analysis.fitting.answering import (
        Assessment,
        FitRequest,
        FitResult,
        Row,
        assess,
        fit,
    )
    from onnxmem.analysis.fitting.holding import (
        Deployment,
        Footprint,
        NoFigureError,
        combined,
        on_device,
        request_of,
    )
    from onnxmem.analysis.fitting.searching import MaxBatch, Search, largest_fitting
    from onnxmem.analysis.fitting.verdicts import ACCURACIES, Demand, Doubt, Verdict

__all__ = [
    "ACCURACIES",
    "BASES",
    "FitResult",
    "Basis",
    "Demand",
    "Doubt",
    "Deployment",
    "Footprint",
    "NoFigureError",
    "MaxBatch",
    "Row",
    "Search",
    "FitRequest",
    "Assessment",
    "Verdict",
    "basis_for",
    "combined",
    "fit",
    "largest_fitting",
    "on_device",
    "request_of",
    "assess",
]

_MODULES = {
    "onnxmem.analysis.fitting.answering": (
        "FitResult",
        "Row",
        "FitRequest",
        "Assessment",
        "fit",
        "assess",
    ),
    "onnxmem.analysis.fitting.holding": (
        "Deployment",
        "Footprint",
        "NoFigureError",
        "combined",
        "on_device",
        "request_of",
    ),
    "onnxmem.analysis.fitting.searching": ("MaxBatch", "Search", "largest_fitting"),
    "onnxmem.analysis.fitting.verdicts": ("ACCURACIES", "Demand", "Doubt", "Verdict"),
}

__getattr__ = late(__name__, _MODULES)
