"""What onnxruntime makes of a graph: its optimiser, its planner, its memory pattern, its arena."""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.runtimes.onnxruntime.advice import Choice
    from onnxmem.runtimes.onnxruntime.memory import (
        RuntimeMemory,
        RuntimeQuestion,
        runtime_memory,
    )

__all__ = ["Choice", "RuntimeMemory", "RuntimeQuestion", "runtime_memory"]

__getattr__ = late(
    __name__,
    {
        "onnxmem.runtimes.onnxruntime.advice": ("Choice",),
        "onnxmem.runtimes.onnxruntime.memory": (
            "RuntimeMemory",
            "RuntimeQuestion",
            "runtime_memory",
        ),
    },
)
