"""What a figure means, what a code means, and who can have asked for memory that was not there."""

from onnxmem.decisions.explain.asking import Inquest, Suspect, inquire, is_shape
from onnxmem.decisions.explain.codes import Code, code_named, codes
from onnxmem.decisions.explain.messages import OutOfMemory, RequestedBytes, read_message
from onnxmem.decisions.explain.metrics import Metric, Value, metrics, metrics_named, value_of

__all__ = [
    "Code",
    "Inquest",
    "Metric",
    "OutOfMemory",
    "RequestedBytes",
    "Suspect",
    "Value",
    "code_named",
    "codes",
    "inquire",
    "is_shape",
    "metrics",
    "metrics_named",
    "read_message",
    "value_of",
]
