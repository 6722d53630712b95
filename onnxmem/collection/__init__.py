"""Many models: worked out side by side, one row each whatever happens, and summed up.

One model needs little of this: the rest is imported when it is asked for.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.collection.accuracy import Accuracies, read_accuracies
    from onnxmem.collection.cache import Cache, open_cache, stamp_of
    from onnxmem.collection.cluster import dask_executor
    from onnxmem.collection.order import run_on
    from onnxmem.collection.places import Place, places_of, verdicts_on
    from onnxmem.collection.summary import Figure, Summary, Tally
    from onnxmem.collection.workers import run_in_workers

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
        "onnxmem.collection.accuracy": ("Accuracies", "read_accuracies"),
        "onnxmem.collection.cache": ("Cache", "open_cache", "stamp_of"),
        "onnxmem.collection.cluster": ("dask_executor",),
        "onnxmem.collection.order": ("run_on",),
        "onnxmem.collection.places": ("Place", "places_of", "verdicts_on"),
        "onnxmem.collection.summary": ("Figure", "Summary", "Tally"),
        "onnxmem.collection.workers": ("run_in_workers",),
    },
)
