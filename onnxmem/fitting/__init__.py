"""Whether a model fits a device, the largest that does, and what limits it.

Which figure is held against memory is known at once; what works figures out is imported late.
"""

from typing import TYPE_CHECKING

from onnxmem.fitting.bases import BASES, Basis, basis_for
from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.fitting.answering import Answer, Row, Setup, Standing, fit, standing_of
    from onnxmem.fitting.contexts import ContextRow, Contexts, at_context, contexts_of, fit_at
    from onnxmem.fitting.holding import (
        Fleet,
        Held,
        NoFigureError,
        combined,
        on_device,
        question_of,
    )
    from onnxmem.fitting.ranking import Ranked, rank
    from onnxmem.fitting.searching import Reach, Search, largest_fitting
    from onnxmem.fitting.verdicts import ACCURACIES, Demand, Doubt, Verdict

__all__ = [
    "ACCURACIES",
    "BASES",
    "Answer",
    "Basis",
    "ContextRow",
    "Contexts",
    "Demand",
    "Doubt",
    "Fleet",
    "Held",
    "NoFigureError",
    "Ranked",
    "Reach",
    "Row",
    "Search",
    "Setup",
    "Standing",
    "Verdict",
    "at_context",
    "basis_for",
    "combined",
    "contexts_of",
    "fit",
    "fit_at",
    "largest_fitting",
    "on_device",
    "question_of",
    "rank",
    "standing_of",
]

_MODULES = {
    "onnxmem.fitting.answering": ("Answer", "Row", "Setup", "Standing", "fit", "standing_of"),
    "onnxmem.fitting.contexts": ("ContextRow", "Contexts", "at_context", "contexts_of", "fit_at"),
    "onnxmem.fitting.holding": (
        "Fleet",
        "Held",
        "NoFigureError",
        "combined",
        "on_device",
        "question_of",
    ),
    "onnxmem.fitting.ranking": ("Ranked", "rank"),
    "onnxmem.fitting.searching": ("Reach", "Search", "largest_fitting"),
    "onnxmem.fitting.verdicts": ("ACCURACIES", "Demand", "Doubt", "Verdict"),
}

__getattr__ = late(__name__, _MODULES)
