"""What the two figures of the process are made of, as plain rows of bytes."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

_KIB: Final = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What a process takes beside weights and arena, in bytes; and how its heap frays.

    All of it was measured and can be set. ``MEASURED`` is of onnxruntime 1.31.1 with numpy 2.4.6
    and Python 3.11 on Linux, x86-64 with AVX-512. The process before and the mmap threshold were
    read in a fresh process (``tools/onnxruntime/process_truth.py constants``); the others are
    medians and fits over two thirds of the measured models, held against the other third.
    """

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


class Making(Enum):
    """How the optimiser makes a new weight of a stored one."""

    FOLDED = "folded"
    """A node's output, kept as it was computed; an external source is read into memory first.

    Source: ``core/optimizer/constant_folding.cc``, ``optimizer_execution_frame.cc``.
    """
    FUSED = "fused"
    """The source is copied and changed in place; the result goes through a ``TensorProto``.

    Source: ``core/optimizer/conv_bn_fusion.cc``, ``initializer.h`` (``Initializer``, ``ToProto``),
    ``core/graph/graph_utils.cc`` (``AddInitializerWithOrtValue``).
    """
    REORDERED = "reordered"
    """The source is copied and written anew in blocks of channels, which go through a
    ``TensorProto`` too.

    Source: ``core/optimizer/nchwc_transformer.cc`` (``TransformConv``).
    """


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight that the model brings along."""

    name: str
    size_bytes: int
    is_external: bool
    """In another file, which is mapped when the session is made; else in the model file itself."""


@dataclass(frozen=True, slots=True)
class MadeWeight:
    """A weight that the optimiser makes."""

    name: str
    size_bytes: int
    making: Making
    source: str | None
    """The weight that it is made of; ``None``: of none, as by ConstantOfShape."""
    source_bytes: int


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """What one kernel keeps of one weight, beside the arena's regions or in one of them."""

    weight: str
    weight_bytes: int
    packed_bytes: int
    is_reserved: bool = True
    """Else it lies in a region of the arena."""
    is_kept: bool = True
    """Else an earlier kernel's copy serves: the weight is packed, compared with it and dropped."""
    is_last: bool = True
    """The weight's last reader has packed it then, and it is dropped."""


@dataclass(frozen=True, slots=True)
class Region:
    """A region of the arena."""

    size_bytes: int
    touched_bytes: int
    """What was ever handed out of it: the rest has no pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTerms:
    """A session that is made: its weights on their way from the file to the kernels."""

    file_bytes: int
    """Of the model file, without the files of external weights."""
    num_nodes: int
    """Of the model file, those of subgraphs included; a Constant counts as a weight instead."""
    stored: tuple[StoredWeight, ...]
    """In the file's order."""
    made: tuple[tuple[MadeWeight, ...], ...] = ()
    """By level of the optimiser; what nothing reads is freed at the end of its level."""
    kept: frozenset[str] = frozenset()
    """The weights that the optimised graph reads."""
    packed: tuple[PackedWeight, ...] = ()
    """In the order in which the kernels pack."""
    regions: tuple[Region, ...] = ()
    """Of the arena before the first run."""
    baseline: Baseline = MEASURED


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTerms:
    """A process whose session has run."""

    load: LoadTerms
    regions: tuple[Region, ...]
    """All that the arena holds, in the order in which they were added; those of the load first."""
    mapped_bytes: int = 0
    """Pages of external weights that kernels read where they are mapped."""
    feed_bytes: int = 0
    """The caller's inputs."""
