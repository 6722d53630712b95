"""What a runtime makes of a model: its own graph, its own memory."""

from onnxmem.runtimes.asking import Advice, advise, optimised_file, runtime_memories
from onnxmem.runtimes.onnxruntime import Choice, RuntimeMemory

__all__ = [
    "Advice",
    "Choice",
    "RuntimeMemory",
    "advise",
    "optimised_file",
    "runtime_memories",
]
