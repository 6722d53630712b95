"""Inference as the graph says it, on no runtime in particular: lifetimes, sharing, peaks, orders.

The numbers of definitions are those of docs/definitions.md.
"""

from onnxmem.runtimes.ideal.activation_memory import (
    ActivationMemory,
    activation_memory,
    in_place_peak_bytes,
)
from onnxmem.runtimes.ideal.lifetimes import Buffers, tensor_buffers
from onnxmem.runtimes.ideal.scopes import Scope, read_scope
from onnxmem.runtimes.ideal.sharing import shared_buffers

__all__ = [
    "ActivationMemory",
    "Buffers",
    "Scope",
    "activation_memory",
    "in_place_peak_bytes",
    "read_scope",
    "shared_buffers",
    "tensor_buffers",
]
