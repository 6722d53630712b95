"""What would lower the memory of one model, each change worked out by asking again."""

from onnxmem.decisions.advise.advising import Advised, Budget, advised
from onnxmem.decisions.advise.emitting import EMITTERS, Settled, settled
from onnxmem.decisions.advise.figures import ERRORS, FIGURES, Figure
from onnxmem.decisions.advise.meeting import Meeting
from onnxmem.decisions.advise.proposals import Price, Proposal

__all__ = [
    "EMITTERS",
    "ERRORS",
    "FIGURES",
    "Advised",
    "Budget",
    "Figure",
    "Meeting",
    "Price",
    "Proposal",
    "Settled",
    "advised",
    "settled",
]
