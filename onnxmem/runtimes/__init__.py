"""What a runtime makes of a model: its own graph, its own memory."""

from onnxmem.runtimes.asking import Advice, advise, optimised_file, predict, runtime_memories
from onnxmem.runtimes.onnxruntime import LEVELS, Choice, RuntimeMemory, RuntimeQuestion

__all__ = [
    "LEVELS",
    "Advice",
    "Choice",
    "RuntimeMemory",
    "RuntimeQuestion",
    "advise",
    "optimised_file",
    "predict",
    "runtime_memories",
]
