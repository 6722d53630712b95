"""Inference as the graph says it, on no runtime in particular: lifetimes, sharing, peaks, orders.

The numbers of definitions are those of docs/definitions.md.
"""

from onnxmem.runtimes.ideal.activation_memory import (
    ActivationMemory,
    LiveTensor,
    activation_memory,
    in_place_peak_bytes,
)
from onnxmem.runtimes.ideal.lifetimes import tensor_lifetimes
from onnxmem.runtimes.ideal.scopes import Scope, read_scope
from onnxmem.runtimes.ideal.sharing import buffer_lifetimes

__all__ = [
    "ActivationMemory",
    "LiveTensor",
    "Scope",
    "activation_memory",
    "buffer_lifetimes",
    "in_place_peak_bytes",
    "read_scope",
    "tensor_lifetimes",
]
