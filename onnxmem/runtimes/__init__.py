"""What a runtime makes of a model: its own graph, its own memory.

Its many rules are imported when a runtime is asked for.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.runtimes.asking import Advice, advise, optimised_file, predict, runtime_memories
    from onnxmem.runtimes.onnxruntime import Choice, RuntimeMemory, RuntimeQuestion

__all__ = [
    "Advice",
    "Choice",
    "RuntimeMemory",
    "RuntimeQuestion",
    "advise",
    "optimised_file",
    "predict",
    "runtime_memories",
]

__getattr__ = late(
    __name__,
    {
        "onnxmem.runtimes.asking": (
            "Advice",
            "advise",
            "optimised_file",
            "predict",
            "runtime_memories",
        ),
        "onnxmem.runtimes.onnxruntime": ("Choice", "RuntimeMemory", "RuntimeQuestion"),
    },
)
