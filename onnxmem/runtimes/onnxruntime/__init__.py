"""What a session of onnxruntime makes of a graph: its optimizer, its plan, its runs, its arena.

``session_graph`` is the graph that runs, ``allocation`` plans it and writes its runs down as
Programs, ``prediction`` replays them on a ``BfcArena`` with a session's settings, ``process`` adds
what the process takes, and ``providers`` has what differs between CPU and CUDA. Begin reading with
``prediction``.
"""

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
