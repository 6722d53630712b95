"""What would lower the memory of one model, each change worked out by asking again."""

from onnxmem.advising.advising import Advised, Budget, advised
from onnxmem.advising.emitting import EMITTERS, Settled, settled
from onnxmem.advising.figures import ERRORS, FIGURES, Figure
from onnxmem.advising.meeting import Meeting
from onnxmem.advising.proposals import Price, Proposal

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
