"""The key-value cache of a language model: what it is in the file, what it takes at a length."""

from onnxmem.kv_cache.cache import Course, Holds, KvCache, Part
from onnxmem.kv_cache.memory import CacheMemory, StepMemory, cache_memory
from onnxmem.kv_cache.recognising import Recognised, find_cache
from onnxmem.kv_cache.steps import (
    NoContextError,
    Step,
    numbers_at,
    refuse_bound,
    settled,
    with_zeros,
)

__all__ = [
    "CacheMemory",
    "Course",
    "Holds",
    "KvCache",
    "NoContextError",
    "Part",
    "Recognised",
    "Step",
    "StepMemory",
    "cache_memory",
    "find_cache",
    "numbers_at",
    "refuse_bound",
    "settled",
    "with_zeros",
]
