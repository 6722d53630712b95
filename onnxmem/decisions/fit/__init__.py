"""How far a model goes on devices: a ranking of them, and the contexts of a language model."""

from onnxmem.decisions.fit.contexts import ContextRow, Contexts, at_context, contexts_of, fit_at
from onnxmem.decisions.fit.ranking import Ranked, rank

__all__ = [
    "ContextRow",
    "Contexts",
    "Ranked",
    "at_context",
    "contexts_of",
    "fit_at",
    "rank",
]
