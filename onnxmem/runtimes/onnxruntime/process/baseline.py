"""What was measured and not worked out: constants of a machine and of versions.

All can be set. These are of onnxruntime 1.31.1 with numpy 2.4.6 and Python 3.11 on Linux, x86-64
with AVX-512. The process before and the mmap threshold were read in a fresh process
(``tools/onnxruntime/process_truth.py constants``); the others are medians and fits over two thirds
of the measured models, and were held against the other third.
"""

from dataclasses import dataclass
from typing import Final

_KIB: Final = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What a process takes beside weights and arena, in bytes; and how its heap frays."""

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
    weight_bytes: int
    """Of each weight in the file, Constant nodes among them: names, dims, where it lies."""
    kept_ends: int
    """Ends of aligned blocks, of a size, that small blocks of the program take (``heap.py``)."""
    mmap_threshold_bytes: int
    """The C library's when the session is made: the largest block, of up to 32 MiB, that was freed
    before; by default what numpy's import reads. A caller who freed a larger array raises it."""


MEASURED: Final = Baseline(
    process_bytes=45_500 * _KIB,
    library_bytes=7_680 * _KIB,
    running_bytes=768 * _KIB,
    session_bytes=1_300 * _KIB,
    node_bytes=4_380,
    weight_bytes=3_770,
    kept_ends=22,
    mmap_threshold_bytes=217_088,
)
