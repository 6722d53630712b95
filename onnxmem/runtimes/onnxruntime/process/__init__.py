"""What onnxruntime's process takes of the system: while a session is made, and when it has run."""

from onnxmem.runtimes.onnxruntime.process.baseline import MEASURED, Baseline
from onnxmem.runtimes.onnxruntime.process.describing import (
    arena_regions,
    load_terms,
    mapped_bytes,
    mapped_pages,
)
from onnxmem.runtimes.onnxruntime.process.heap import PAGE_BYTES
from onnxmem.runtimes.onnxruntime.process.loading import Loading, load_peak_bytes
from onnxmem.runtimes.onnxruntime.process.resident import process_bytes, process_parts
from onnxmem.runtimes.onnxruntime.process.terms import (
    LoadTerms,
    MadeWeight,
    Making,
    PackedWeight,
    ProcessTerms,
    Region,
    StoredWeight,
)

__all__ = [
    "MEASURED",
    "PAGE_BYTES",
    "Baseline",
    "LoadTerms",
    "Loading",
    "MadeWeight",
    "Making",
    "PackedWeight",
    "ProcessTerms",
    "Region",
    "StoredWeight",
    "arena_regions",
    "load_peak_bytes",
    "load_terms",
    "mapped_bytes",
    "mapped_pages",
    "process_bytes",
    "process_parts",
]
