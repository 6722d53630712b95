"""Whether a model fits a device, the largest that does, and what limits it.

Which figure is held against memory is known at once; what works figures out is imported late.
"""

from typing import TYPE_CHECKING

from onnxmem.analysis.fitting.bases import BASES, Basis, basis_for
from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.analysis.fitting.answering import Answer, Row, Setup, Standing, fit, standing_of
    from onnxmem.analysis.fitting.holding import (
        Fleet,
        Held,
        NoFigureError,
        combined,
        on_device,
        question_of,
    )
    from onnxmem.analysis.fitting.searching import Reach, Search, largest_fitting
    from onnxmem.analysis.fitting.verdicts import ACCURACIES, Demand, Doubt, Verdict

__all__ = [
    "ACCURACIES",
    "BASES",
    "Answer",
    "Basis",
    "Demand",
    "Doubt",
    "Fleet",
    "Held",
    "NoFigureError",
    "Reach",
    "Row",
    "Search",
    "Setup",
    "Standing",
    "Verdict",
    "basis_for",
    "combined",
    "fit",
    "largest_fitting",
    "on_device",
    "question_of",
    "standing_of",
]

_MODULES = {
    "onnxmem.analysis.fitting.answering": (
        "Answer",
        "Row",
        "Setup",
        "Standing",
        "fit",
        "standing_of",
    ),
    "onnxmem.analysis.fitting.holding": (
        "Fleet",
        "Held",
        "NoFigureError",
        "combined",
        "on_device",
        "question_of",
    ),
    "onnxmem.analysis.fitting.searching": ("Reach", "Search", "largest_fitting"),
    "onnxmem.analysis.fitting.verdicts": ("ACCURACIES", "Demand", "Doubt", "Verdict"),
}

__getattr__ = late(__name__, _MODULES)
