"""The key-value cache of a language model: what it is in the file, what it takes at a length.

Most models have none: what it is and what it takes are imported where there is one.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.kv_cache.cache import Course, KvCache, Part
    from onnxmem.kv_cache.finding import find_cache
    from onnxmem.kv_cache.holds import Holds
    from onnxmem.kv_cache.steps import (
        NoContextError,
        Step,
        numbers_at,
        refuse_bound,
        settled,
        with_zeros,
    )

__all__ = [
    "Course",
    "Holds",
    "KvCache",
    "NoContextError",
    "Part",
    "Step",
    "find_cache",
    "numbers_at",
    "refuse_bound",
    "settled",
    "with_zeros",
]

__getattr__ = late(
    __name__,
    {
        "onnxmem.kv_cache.cache": ("Course", "KvCache", "Part"),
        "onnxmem.kv_cache.finding": ("find_cache",),
        "onnxmem.kv_cache.holds": ("Holds",),
        "onnxmem.kv_cache.steps": (
            *("NoContextError", "Step", "numbers_at"),
            *("refuse_bound", "settled", "with_zeros"),
        ),
    },
)
