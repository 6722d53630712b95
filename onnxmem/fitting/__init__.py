"""Whether a model fits a device, the largest that does, and what limits it.

Which figure is held against memory is known at once; what works figures out is imported late.
"""

from typing import TYPE_CHECKING

from onnxmem.fitting.bases import BASES, Basis, basis_for
from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.fitting.answering import Answer, Row, Setup, fit
    from onnxmem.fitting.contexts import ContextRow, Contexts, at_context, contexts_of, fit_at
    from onnxmem.fitting.holding import Fleet, Held, NoFigureError, combined, question_of
    from onnxmem.fitting.ranking import Ranked, rank
    from onnxmem.fitting.searching import Reach, largest_fitting

__all__ = [
    "BASES",
    "Answer",
    "Basis",
    "ContextRow",
    "Contexts",
    "Fleet",
    "Held",
    "NoFigureError",
    "Ranked",
    "Reach",
    "Row",
    "Setup",
    "at_context",
    "basis_for",
    "combined",
    "contexts_of",
    "fit",
    "fit_at",
    "largest_fitting",
    "question_of",
    "rank",
]

_MODULES = {
    "onnxmem.fitting.answering": ("Answer", "Row", "Setup", "fit"),
    "onnxmem.fitting.contexts": ("ContextRow", "Contexts", "at_context", "contexts_of", "fit_at"),
    "onnxmem.fitting.holding": ("Fleet", "Held", "NoFigureError", "combined", "question_of"),
    "onnxmem.fitting.ranking": ("Ranked", "rank"),
    "onnxmem.fitting.searching": ("Reach", "largest_fitting"),
}

__getattr__ = late(__name__, _MODULES)
