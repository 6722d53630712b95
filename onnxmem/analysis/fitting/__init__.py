"""Whether a model fits a device, the largest that does, and what limits it.

Which figure is held against memory is known at once; what works figures out is imported late.
"""

from typing import TYPE_CHECKING

from onnxmem.analysis.fitting.bases import (
    BASES,
    AnyBasis,
    Basis,
    RuntimeBasis,
    basis_for,
    basis_named,
)
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
    "AnyBasis",
    "Assessment",
    "Basis",
    "Demand",
    "Deployment",
    "Doubt",
    "FitRequest",
    "FitResult",
    "Footprint",
    "MaxBatch",
    "NoFigureError",
    "Row",
    "RuntimeBasis",
    "Search",
    "Verdict",
    "assess",
    "basis_for",
    "basis_named",
    "combined",
    "fit",
    "largest_fitting",
    "on_device",
    "request_of",
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
