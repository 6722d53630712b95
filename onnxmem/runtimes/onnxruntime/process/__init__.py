"""What onnxruntime's process takes of the system: while a session is made, and when it has run.

``terms`` are the rows of bytes that go in, ``describing`` reads them off a model and its optimized
graph, and ``loading`` runs them through the C library's heap. Begin reading with ``loading``.
"""

from onnxmem.runtimes.onnxruntime.process.describing import (
    arena_regions,
    load_terms,
    mapped_bytes,
    mapped_pages,
)
from onnxmem.runtimes.onnxruntime.process.heap import PAGE_BYTES
from onnxmem.runtimes.onnxruntime.process.loading import (
    Loading,
    load_peak_bytes,
    process_bytes,
    process_parts,
)
from onnxmem.runtimes.onnxruntime.process.terms import (
    MEASURED,
    Baseline,
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
