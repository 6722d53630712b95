"""What is allocated and released when, how large it is, and what follows from that.

A runtime makes a ``Program``, the tensors' shapes give its ``Sizes``, and ``replay`` makes a
``Replay`` of both, from which every figure, chart and explanation is read. Begin reading with
``program``.
"""

from onnxmem.program.program import Allocation, Category, Program, ProgramBuilder
from onnxmem.program.replay import (
    MAX_ITERATIONS,
    Allocator,
    Moment,
    OutOfMemoryError,
    Peak,
    Replay,
    Reserved,
    affine_sizes,
    replay,
    reserved_by_step,
    serve,
)
from onnxmem.program.sizes import Affine, Sizes

__all__ = [
    "MAX_ITERATIONS",
    "Affine",
    "Allocation",
    "Allocator",
    "Category",
    "Moment",
    "OutOfMemoryError",
    "Peak",
    "Program",
    "ProgramBuilder",
    "Replay",
    "Reserved",
    "Sizes",
    "affine_sizes",
    "replay",
    "reserved_by_step",
    "serve",
]
