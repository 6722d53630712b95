"""The highest resident memory while a session is made, and what is left of it when it has run.

The weights' way, stage by stage; each block is one of the C library's heap (``heap.py``):

1. The model file is parsed from a buffer of at most 4 MiB (``core/graph/model.cc``:
   ``Model::Load``, ``DEFAULT_PROTOBUF_BLOCK_SIZE``). Each weight in it becomes a string; one of
   over 50 MB is read into a string that doubles (protobuf ``parse_context.cc``:
   ``kSafeStringSize``).
   External weights are not read.
2. Each of these strings, in turn, is copied into a tensor and freed (``core/graph/graph.cc``:
   ``ConvertInitializersIntoOrtValues``), so two copies of the largest are alive at once.
3. The optimizer makes new weights (``Making``); what nothing reads any more is freed when a round
   of it ends (``Graph::CleanUnusedInitializersAndNodeArgs``).
4. External weights are mapped. Their pages come in only as they are read
   (``core/framework/session_state_utils.cc``: ``SaveInitializedTensors``).
5. Each kernel packs its weights in turn: the original, read whole, and the packed copy are alive at
   once, and the original is dropped when its last reader has packed it
   (``core/framework/session_state.cc``: ``PrepackConstantInitializedTensors``).

Verified on onnxruntime 1.31.1 with a log of every call to the C library's heap.
"""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from onnxmem.allocators.bfc_arena import BfcArena
from onnxmem.runtimes.onnxruntime.process.heap import (
    CACHED_ENDS,
    PAGE_BYTES,
    Block,
    SystemHeap,
)

_KIB: Final = 1 << 10
_FILE_BUFFER_BYTES: Final = 4 << 20
_SAFE_STRING_BYTES: Final = 50_000_000
_SMALLEST_BYTES: Final = 1 << 10
"""Smaller weights are part of what was measured for each node."""
_HANDLE_BYTES: Final = 8
_HANDLE_SPAN_BYTES: Final = 256
"""The arena keeps one handle for every 256 bytes of a region."""


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
    """How the optimizer makes a new weight of a stored one."""

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
    """A weight that the optimizer makes."""

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


def arena_regions(arena: BfcArena) -> tuple[Region, ...]:
    """The regions of an arena, in the order in which they were added."""
    return tuple(
        Region(size, arena.resident[number].num_bytes if number in arena.resident else 0)
        for number, size in sorted(arena.regions.items())
    )


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
    """By level of the optimizer; what nothing reads is freed at the end of its level."""
    kept: frozenset[str] = frozenset()
    """The weights that the optimized graph reads."""
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


def process_bytes(terms: ProcessTerms, loaded: "Loading | None" = None) -> int:
    """Resident bytes of the whole process when its session has run with its own settings.

    ``loaded`` is the load of these terms where it has run already.
    """
    return sum(size_bytes for _, size_bytes in process_parts(terms, loaded))


def process_parts(
    terms: ProcessTerms, loaded: "Loading | None" = None
) -> tuple[tuple[str, int], ...]:
    """The same part by part, each with what it is of.

    The process before, the caller's inputs, what the load has left, the arena's later regions as
    far as they were touched, and the pages of external weights that kernels read where they are
    mapped. Regions are blocks of the C library's heap like any other: the smaller ones lie in holes
    that the load has left, whose pages are resident already.

    Not counted: the caller's own outputs, and what he does with them.
    """
    loaded = loaded or Loading(terms.load).run()
    loading = loaded.with_regions(terms.regions[len(terms.load.regions) :])
    known = terms.load.baseline
    return (
        ("Python and onnxruntime", known.process_bytes + known.running_bytes),
        ("inputs", terms.feed_bytes),
        ("weights, their packed copies and the arena, pages touched", loading.resident_bytes),
        ("weights read from mapped files", terms.mapped_bytes),
    )


@dataclass(slots=True)
class Loading:
    """A session in the making: what is resident of it now, and the most that ever was."""

    terms: LoadTerms
    heap: SystemHeap = field(init=False)
    file_pages_bytes: int = 0
    """Pages of external weights that are mapped and were read."""
    peak_bytes: int = 0
    _tensors: dict[str, Block] = field(default_factory=dict)
    """Weights in memory; the others are in their files."""

    def __post_init__(self) -> None:
        known = self.terms.baseline
        self.heap = SystemHeap(known.mmap_threshold_bytes, known.kept_ends)

    @property
    def resident_bytes(self) -> int:
        """Above the process before."""
        known = self.terms.baseline
        records = known.node_bytes * self.terms.num_nodes
        records += known.weight_bytes * len(self.terms.stored)
        weights = self.heap.resident_bytes + self.file_pages_bytes
        return known.library_bytes + known.session_bytes + records + weights

    def run(self) -> "Loading":
        """Go through all stages."""
        self._note()
        self._parse()
        for level, made in enumerate(self.terms.made):
            for weight in made:
                if weight.size_bytes >= _SMALLEST_BYTES:
                    self._make(weight)
            if made:
                self._drop_unread(level)
        self._pack()
        for region in self.terms.regions:
            self.add_region(region)
        return self

    def with_regions(self, regions: Iterable[Region]) -> "Loading":
        """The same load when the arena has grown; this one stays as it is."""
        grown = copy(self)
        grown.heap = self.heap.copied()
        for region in regions:
            grown.add_region(region)
        return grown

    def add_region(self, region: Region) -> None:
        """Let the arena grow; ``bfc_arena.h``'s AllocationRegion writes its handles at once."""
        block = self.heap.allocate(region.size_bytes, is_aligned=True)
        self.heap.touch(block, region.touched_bytes)
        self._string(-(-region.size_bytes // _HANDLE_SPAN_BYTES) * _HANDLE_BYTES)

    def _parse(self) -> None:
        buffer = self._string(min(self.terms.file_bytes, _FILE_BUFFER_BYTES))
        own = [
            weight
            for weight in self.terms.stored
            if not weight.is_external and weight.size_bytes >= _SMALLEST_BYTES
        ]
        strings = [self._read(weight.size_bytes) for weight in own]
        self.heap.free(buffer)
        for weight, string in zip(own, strings, strict=True):
            self._tensors[weight.name] = self._tensor(weight.size_bytes)
            self.heap.free(string)
        self.heap.fix_ends()

    def _read(self, size_bytes: int) -> Block:
        """A weight's string as the parser leaves it."""
        capacity = min(size_bytes, _SAFE_STRING_BYTES)
        string = self._string(capacity)
        while capacity < size_bytes:
            known, capacity = capacity, 2 * capacity
            larger = self.heap.allocate(capacity + 1)
            self.heap.touch(larger, known)
            self._note()
            self.heap.free(string)
            string = larger
            self.heap.touch(string, min(size_bytes, capacity))
            self._note()
        return string

    def _make(self, weight: MadeWeight) -> None:
        copied: list[Block] = []
        if weight.making is not Making.FOLDED or self._is_in_file(weight.source):
            copied.append(self._tensor(weight.source_bytes))
        if weight.making is Making.REORDERED:
            copied.append(self._string(weight.size_bytes - 1))
        if weight.making is not Making.FOLDED:
            copied.append(self._string(weight.size_bytes))
        self._tensors[weight.name] = self._tensor(weight.size_bytes)
        for block in reversed(copied):
            self.heap.free(block)

    def _is_in_file(self, name: str | None) -> bool:
        return name is not None and name not in self._tensors

    def _drop_unread(self, level: int) -> None:
        later = {weight.source for made in self.terms.made[level + 1 :] for weight in made}
        for name in [n for n in self._tensors if n not in self.terms.kept and n not in later]:
            self.heap.free(self._tensors.pop(name))

    def _pack(self) -> None:
        self.heap.give_ends_back()
        self.heap.kept_ends = CACHED_ENDS
        read: set[str] = set()
        for packed in self.terms.packed:
            pages = -(-packed.weight_bytes // PAGE_BYTES) * PAGE_BYTES
            name = packed.weight
            if name not in self._tensors and name not in read:
                read.add(name)
                self.file_pages_bytes += pages
            if packed.is_reserved:
                block = self._tensor(packed.packed_bytes)
                if not packed.is_kept:
                    self.heap.free(block)
            if packed.is_last and name in self._tensors:
                self.heap.free(self._tensors.pop(name))
            elif packed.is_last:
                self.file_pages_bytes -= pages

    def _tensor(self, size_bytes: int) -> Block:
        return self._written(self.heap.allocate(size_bytes, is_aligned=True), size_bytes)

    def _string(self, size_bytes: int) -> Block:
        return self._written(self.heap.allocate(size_bytes + 1), size_bytes)

    def _written(self, block: Block, size_bytes: int) -> Block:
        self.heap.touch(block, size_bytes)
        self._note()
        return block

    def _note(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.resident_bytes)
