"""What a figure means, what a code means, and who can have asked for memory that was not there."""

from onnxmem.explaining.asking import Inquest, Suspect, inquire, is_shape
from onnxmem.explaining.codes import Code, code_named, codes
from onnxmem.explaining.messages import OutOfMemory, Sizes, read_message
from onnxmem.explaining.metrics import Metric, Value, metrics, metrics_named, value_of

__all__ = [
    "Code",
    "Inquest",
    "Metric",
    "OutOfMemory",
    "Sizes",
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
