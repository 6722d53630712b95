"""Many models: worked out side by side, one row each whatever happens, and summed up.

One model needs little of this: the rest is imported when it is asked for.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.registry.accuracy import Accuracies, read_accuracies
    from onnxmem.registry.cache import Cache, open_cache, stamp_of
    from onnxmem.registry.cluster import dask_executor
    from onnxmem.registry.order import run_on
    from onnxmem.registry.places import Place, places_of, verdicts_on
    from onnxmem.registry.summary import Figure, Summary, Tally
    from onnxmem.registry.workers import run_in_workers

__all__ = [
    "Accuracies",
    "Cache",
    "Figure",
    "Place",
    "Summary",
    "Tally",
    "dask_executor",
    "open_cache",
    "places_of",
    "read_accuracies",
    "run_in_workers",
    "run_on",
    "stamp_of",
    "verdicts_on",
]

__getattr__ = late(
    __name__,
    {
        "onnxmem.registry.accuracy": ("Accuracies", "read_accuracies"),
        "onnxmem.registry.cache": ("Cache", "open_cache", "stamp_of"),
        "onnxmem.registry.cluster": ("dask_executor",),
        "onnxmem.registry.order": ("run_on",),
        "onnxmem.registry.places": ("Place", "places_of", "verdicts_on"),
        "onnxmem.registry.summary": ("Figure", "Summary", "Tally"),
        "onnxmem.registry.workers": ("run_in_workers",),
    },
)
