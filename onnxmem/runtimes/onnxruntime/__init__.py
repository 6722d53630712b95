"""What onnxruntime makes of a graph: its optimiser, its planner, its memory pattern, its arena."""

from onnxmem.runtimes.onnxruntime.advice import Choice
from onnxmem.runtimes.onnxruntime.memory import (
    LEVELS,
    RuntimeMemory,
    RuntimeQuestion,
    runtime_memory,
)

__all__ = ["LEVELS", "Choice", "RuntimeMemory", "RuntimeQuestion", "runtime_memory"]
