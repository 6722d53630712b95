"""Whether a model fits a device, the largest that does, and what limits it."""

from onnxmem.fitting.answering import Answer, Row, Setup, fit
from onnxmem.fitting.contexts import ContextRow, Contexts, at_context, contexts_of, fit_at
from onnxmem.fitting.holding import (
    BASES,
    Basis,
    Fleet,
    Held,
    NoFigureError,
    basis_for,
    combined,
    question_of,
)
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
