"""What was measured and not worked out: constants of a machine and of a version.

Measured by ``tools/onnxruntime/process_truth.py`` with onnxruntime 1.31.1, numpy 2.4 and Python 3.11
on Linux, x86-64 with AVX-512. The first six bytes of every figure here may be set.
"""

from dataclasses import dataclass
from typing import Final

_KIB: Final = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What a process takes beside weights and arena, in bytes."""

    process_bytes: int
    """Resident before: Python with numpy and onnxruntime imported."""
    library_bytes: int
    """Pages of onnxruntime's library that a load reads in."""
    running_bytes: int
    """Pages of the library that runs read in beside those."""
    session_bytes: int
    """A session without nodes: registries of kernels and schemas, and the library's own data."""
    node_bytes: int
    """Of each node in the file: its record, its kernel, its part of the plan."""
    kept_ends: int
    """Ends of aligned blocks, of a size, that small blocks take for good until kernels pack; a rate of
    fragmentation (``heap.py``)."""
    mmap_threshold_bytes: int
    """The C library's when the session is made; the size of the largest array that was freed before,
    where that is larger."""


MEASURED: Final = Baseline(
    process_bytes=45_484 * _KIB,
    library_bytes=7_680 * _KIB,
    running_bytes=768 * _KIB,
    session_bytes=1_300 * _KIB,
    node_bytes=5_700,
    kept_ends=60,
    mmap_threshold_bytes=217_088,
)
