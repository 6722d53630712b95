"""onnxmem: how much memory an ONNX model takes, to run and to train, before anyone runs it.

>>> import onnxmem
>>> onnxmem.analyze("model.onnx", batch=8, train=True).training.peak_bytes  # doctest: +SKIP

What needs onnx is imported when it is first asked for, so that ``onnxmem --help`` is quick.
"""

from typing import TYPE_CHECKING

from onnxmem.errors import OnnxmemError
from onnxmem.late import late
from onnxmem.recipe import Recipe
from onnxmem.settings import Settings

if TYPE_CHECKING:
    from onnxmem.analysis import Analysis, analyze
    from onnxmem.exporting import to_metrics
    from onnxmem.registry.many import analyze_many
    from onnxmem.sweeping import sweep

__all__ = [
    "Analysis",
    "OnnxmemError",
    "Recipe",
    "Settings",
    "__version__",
    "analyze",
    "analyze_many",
    "sweep",
    "to_metrics",
]

__version__ = "0.1.0"

__getattr__ = late(
    __name__,
    {
        "onnxmem.analysis": ("Analysis", "analyze"),
        "onnxmem.exporting": ("to_metrics",),
        "onnxmem.registry.many": ("analyze_many",),
        "onnxmem.sweeping": ("sweep",),
    },
)


def __dir__() -> list[str]:
    """List the public names, imported yet or not."""
    return sorted({*globals(), *__all__})
