"""onnxmem: how much memory an ONNX model takes, to run and to train, before anyone runs it.

>>> import onnxmem
>>> onnxmem.analyze("model.onnx", batch=8, train=True).training.peak_bytes  # doctest: +SKIP

Names that need onnx are imported when they are first used, so that ``onnxmem --help`` is fast.
"""

import sys

# ``python -m onnxmem`` puts the current folder first on the path, where a downloaded ``random.py``
# would run instead of that of the standard library. The folder is removed before the imports below,
# which run before ``__main__``. While Python looks for the module, ``sys.argv[0]`` is "-m", and the
# word before the arguments is the name of the module, perhaps joined to flags (``-Bmonnxmem``). A
# program that imports onnxmem keeps its path. onnxmem's own modules are found by ``__path__``.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    word = sys.orig_argv[-len(sys.argv)]
    if word == "onnxmem" or (word.startswith("-") and word.endswith("monnxmem")):
        del sys.path[0]
    del word

from importlib import import_module
from typing import TYPE_CHECKING

from onnxmem.errors import OnnxmemError
from onnxmem.settings import Settings, TrainingConfig
from onnxmem.version import __version__

if TYPE_CHECKING:
    from onnxmem.api import (
        Analysis,
        advise,
        analyze,
        batch_curve,
        check,
        diff,
        explain,
        fit,
        measure,
        observe,
        simulate,
    )
    from onnxmem.collection.many import analyze_many
    from onnxmem.decisions.check.budgets import Budget
    from onnxmem.decisions.sweep import sweep
    from onnxmem.export.figures import to_metrics

__all__ = [
    "Analysis",
    "Budget",
    "OnnxmemError",
    "Settings",
    "TrainingConfig",
    "__version__",
    "advise",
    "analyze",
    "analyze_many",
    "batch_curve",
    "check",
    "diff",
    "explain",
    "fit",
    "measure",
    "observe",
    "simulate",
    "sweep",
    "to_metrics",
]

_MODULES = {
    "Analysis": "onnxmem.api",
    "Budget": "onnxmem.decisions.check.budgets",
    "advise": "onnxmem.api",
    "analyze": "onnxmem.api",
    "batch_curve": "onnxmem.api",
    "check": "onnxmem.api",
    "diff": "onnxmem.api",
    "explain": "onnxmem.api",
    "fit": "onnxmem.api",
    "measure": "onnxmem.api",
    "observe": "onnxmem.api",
    "simulate": "onnxmem.api",
    "analyze_many": "onnxmem.collection.many",
    "sweep": "onnxmem.decisions.sweep",
    "to_metrics": "onnxmem.export.figures",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _MODULES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    """List the public names, whether they are imported yet or not."""
    return sorted({*globals(), *__all__})
