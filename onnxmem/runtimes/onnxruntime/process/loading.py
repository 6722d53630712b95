"""Simulates the load of a session: its peak resident memory, and what remains after it.

The stages; every block is allocated on the C library's heap (``heap.py``):

1. The model file is parsed from a buffer of at most 4 MiB (``core/graph/model.cc``:
   ``Model::Load``, ``DEFAULT_PROTOBUF_BLOCK_SIZE``). Each weight in it becomes a string; one of
   over 50 MB is read into a string that doubles (protobuf ``parse_context.cc``:
   ``kSafeStringSize``). External weights are not read.
2. Each string is copied to a tensor and freed, one after another (``core/graph/graph.cc``:
   ``ConvertInitializersIntoOrtValues``), so two copies of the largest are alive at once.
3. The graph optimizer creates weights (``WeightOrigin``). Weights without a reader are freed at the
   end of a round (``Graph::CleanUnusedInitializersAndNodeArgs``).
4. External weights are mapped. Their pages become resident when they are read
   (``core/framework/session_state_utils.cc``: ``SaveInitializedTensors``).
5. Each kernel prepacks its weights: the original, read as a whole, and the packed copy are alive at
   once. The original is freed after its last reader has packed it
   (``core/framework/session_state.cc``: ``PrepackConstantInitializedTensors``).

Verified on onnxruntime 1.31.1 with a log of every call to the C library's heap.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from onnxmem.allocators.bfc_arena import BfcArena
from onnxmem.runtimes.onnxruntime.process.baselines import NEWEST, Baseline
from onnxmem.runtimes.onnxruntime.process.heap import (
    CACHED_ENDS,
    PAGE_BYTES,
    Block,
    SystemHeap,
)

_FILE_BUFFER_BYTES: Final = 4 << 20
_SAFE_STRING_BYTES: Final = 50_000_000
_SMALLEST_BYTES: Final = 1 << 10
"""Smaller weights are included in the measured bytes per weight."""
# ``AllocationRegion`` of core/framework/bfc_arena.h: a ``ChunkHandle``, which is a size_t, per
# ``kMinAllocationSize``.
_HANDLE_BYTES: Final = 8
_HANDLE_SPAN_BYTES: Final = 256
"""The arena has one handle for every 256 bytes of a region."""

ARENAS: Final = "arenas"
KEPT: Final = "freed but kept by the C library"
PYTHON: Final = "Python and imports"
LIBRARY: Final = "onnxruntime's library"
"""The part that runs write."""
INPUTS: Final = "inputs"
"""The part that is the caller's."""
Parts = tuple[tuple[str, int], ...]
"""Bytes by part, with names."""


class WeightOrigin(Enum):
    """How the graph optimizer creates a weight."""

    FOLDED = "folded"
    """The output of a folded node; an external source is first read into memory.

    Source: ``core/optimizer/constant_folding.cc``, ``optimizer_execution_frame.cc``.
    """
    FUSED = "fused"
    """The source is copied and modified in place; the result is stored as a ``TensorProto`` first.

    Source: ``core/optimizer/conv_bn_fusion.cc``, ``initializer.h`` (``Initializer``, ``ToProto``),
    ``core/graph/graph_utils.cc`` (``AddInitializerWithOrtValue``).
    """
    REORDERED = "reordered"
    """The source is copied to blocks of channels, which are stored as a ``TensorProto`` first.

    Source: ``core/optimizer/nchwc_transformer.cc`` (``TransformConv``).
    """


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight of the model."""

    name: str
    size_bytes: int
    is_external: bool
    """In another file, which is mapped; else in the model file."""


@dataclass(frozen=True, slots=True)
class CreatedWeight:
    """A weight that the graph optimizer creates."""

    name: str
    size_bytes: int
    origin: WeightOrigin
    source: str | None
    """The weight that it is computed from; ``None``: none, as by ConstantOfShape."""
    source_bytes: int


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight prepacked by one kernel, outside the arena's regions or in one of them."""

    weight: str
    weight_bytes: int
    packed_bytes: int
    is_reserved: bool = True
    """False: in a region of the arena."""
    is_retained: bool = True
    """False: an equal copy of an earlier kernel is shared, and this one freed."""
    is_last: bool = True
    """Whether this is the last reader, after which the original is freed."""


@dataclass(frozen=True, slots=True)
class Region:
    """A region of the arena."""

    size_bytes: int
    resident_bytes: int
    """The part that was ever allocated: the rest has no pages."""
    freed_at: int | None = None
    """How many regions had been added when a shrink freed it; ``None``: it was not freed."""
    thread: int = 0
    """Which thread added it; 0 is the main one, which loads the session."""


def arena_regions(arena: BfcArena) -> tuple[Region, ...]:
    """The regions of an arena, in the order in which they were added; freed ones too."""
    regions = {
        number: Region(
            size,
            arena.resident[number].num_bytes if number in arena.resident else 0,
            thread=arena.threads[number],
        )
        for number, size in arena.regions.items()
    }
    regions |= {
        number: Region(each.size_bytes, each.resident_bytes, each.num_before, arena.threads[number])
        for number, each in arena.freed.items()
    }
    return tuple(region for _, region in sorted(regions.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """The weights of a load, from the file to the kernels."""

    file_bytes: int
    """Size of the model file, without the files of external weights."""
    num_nodes: int
    """Nodes of the optimized graph, those of subgraphs included."""
    num_weights: int
    """Weights of the optimized graph."""
    stored: tuple[StoredWeight, ...]
    """In the order of the file."""
    created: tuple[tuple[CreatedWeight, ...], ...] = ()
    """By round of the graph optimizer."""
    remaining: frozenset[str] = frozenset()
    """The weights that the optimized graph reads."""
    packed: tuple[PackedWeight, ...] = ()
    """In the order in which the kernels prepack."""
    shared: frozenset[str] = frozenset()
    """Weights of the file that the caller holds for all sessions (``OrtApi::AddInitializer``)."""
    regions: tuple[Region, ...] = ()
    """Of the arena before the first run."""
    malloc_threshold_bytes: int | None = None
    """Fixed by the environment, of both maps and trims; ``None``: the C library adapts it."""
    trims_heap: bool = False
    """Whether the process calls ``malloc_trim(0)`` at the end of the load."""
    baseline: Baseline = NEWEST


def process_parts(loads: Sequence["Loading"], heap: SystemHeap, mapped_bytes: int) -> Parts:
    """The resident bytes of a process by part, with names, without the caller's inputs and outputs.

    ``loads`` are its sessions with all regions of their arenas (``Loading.with_regions``) on
    ``heap``, and ``mapped_bytes`` the pages of external weights that their runs read. Blocks count
    by their size, and what is resident beside them is one part: pages of freed blocks, which the C
    library keeps, and the rounding to pages. A later region that fills a hole takes its pages from
    that part.
    """
    known = loads[0].spec.baseline
    weight_bytes = sum(each.weight_bytes for each in loads)
    packed_bytes = sum(each.packed_bytes for each in loads)
    arena_bytes = sum(each.arena_bytes for each in loads)
    kernels_bytes = max(each.kernels_bytes for each in loads)
    # The load reads pages of the library for its kernels, and the runs as many again. Sessions
    # share them, so the one with the most kernels decides.
    library_bytes = known.shared_bytes - known.process_bytes + 2 * kernels_bytes
    named_bytes = weight_bytes + packed_bytes + arena_bytes
    return (
        (PYTHON, known.process_bytes),
        (LIBRARY, library_bytes),
        ("nodes and kernels", sum(each.records_bytes for each in loads)),
        ("weights", weight_bytes),
        ("prepacked weights", packed_bytes),
        ("mapped weights", mapped_bytes + sum(each.file_pages_bytes for each in loads)),
        (ARENAS, arena_bytes),
        (KEPT, heap.resident_bytes - named_bytes),
    )


@dataclass(slots=True)
class Loading:
    """The load of a session: resident memory now and at its peak."""

    spec: LoadSpec
    heap: SystemHeap = None  # type: ignore[assignment]
    """That of an earlier load, or a new one."""
    file_pages_bytes: int = 0
    """Pages of mapped external weights that were read."""
    packed_bytes: int = 0
    """Prepacked copies outside the arena."""
    arena_bytes: int = 0
    """Resident bytes of the arena's regions."""
    num_regions: int = 0
    """Regions that were added; some may be freed."""
    live_regions: list[tuple[Region, Block, Block]] = field(default_factory=list)
    """Those that are not freed, each with its block and that of its handles."""
    peak_bytes: int = 0
    _tensors: dict[str, Block] = field(default_factory=dict)
    """Weights in memory; all others are in their files."""

    def __post_init__(self) -> None:
        if self.heap is not None:
            return
        known, fixed_bytes = self.spec.baseline, self.spec.malloc_threshold_bytes
        self.heap = SystemHeap(
            known.mmap_threshold_bytes if fixed_bytes is None else fixed_bytes,
            adapts=fixed_bytes is None,
            unmerged_ends=known.unmerged_ends,
        )

    @property
    def resident_bytes(self) -> int:
        """Resident bytes above the process before the session."""
        known = self.spec.baseline
        library_bytes = known.library_bytes + known.registry_bytes + self.kernels_bytes
        return library_bytes + self.records_bytes + self.heap.resident_bytes + self.file_pages_bytes

    @property
    def kernels_bytes(self) -> int:
        """Pages of the library that the load reads for its nodes; runs read as many more."""
        known = self.spec.baseline
        return known.kernel_bytes * min(self.spec.num_nodes, known.num_kernels)

    @property
    def records_bytes(self) -> int:
        """Of the session, and of the nodes and the weights of the optimized graph."""
        known, spec = self.spec.baseline, self.spec
        own_bytes = known.node_bytes * spec.num_nodes + known.weight_bytes * spec.num_weights
        return known.session_bytes + own_bytes

    @property
    def weight_bytes(self) -> int:
        """Weights in memory."""
        return sum(block.size_bytes for block in self._tensors.values())

    def run(self) -> "Loading":
        """Simulate all stages."""
        # As InferenceSession::Load and ::Initialize (core/session/inference_session.cc): the file
        # is parsed, the graph optimizer creates weights round by round and drops those that it
        # replaced, kernels prepack (SessionState::PrepackConstantInitializedTensors), and the arena
        # takes its regions last. What a stage frees is a hole that only later ones can fill.
        self._note()
        self._parse()
        for round_, created in enumerate(self.spec.created):
            for weight in created:
                if weight.size_bytes >= _SMALLEST_BYTES:
                    self._create(weight)
            if created:
                self._free_unread(round_)
        # A weight that the caller gave is not copied: SaveInitializedTensors of
        # core/framework/session_state_utils.cc takes the caller's value.
        for name in self.spec.shared & self._tensors.keys():
            self.heap.free(self._tensors.pop(name))
        self._pack()
        for region in self.spec.regions:
            self.add_region(region)
        if self.spec.trims_heap:
            self.heap.trim()
        return self

    def another(self, spec: LoadSpec) -> "Loading":
        """The load of a further session in this process, on a copy of its heap."""
        heap = self.heap.copied()
        heap.unmerged_ends = spec.baseline.unmerged_ends
        return Loading(spec, heap).run()

    def with_regions(self, regions: Sequence[Region], heap: SystemHeap | None = None) -> "Loading":
        """A copy of the load with all regions of the arena; those of the load come first.

        They are added to ``heap``, which changes; ``None``: to a copy of the load's own.

        A shrink returns a region to the C library, which keeps its pages unless it was mapped or
        is at the top of the heap. So the regions are added and freed in their order.
        """
        grown = copy(self)
        grown.heap = self.heap.copied() if heap is None else heap
        # The first regions are those of the load, which did not know yet which shrink frees them.
        grown.live_regions = [
            (replace(loaded, freed_at=region.freed_at), block, handles)
            for region, (loaded, block, handles) in zip(regions, self.live_regions, strict=False)
        ]
        for region in regions[self.num_regions :]:
            grown.free_regions()
            grown.add_region(region)
        grown.free_regions()
        return grown

    def add_region(self, region: Region) -> None:
        """Add a region; ``AllocationRegion`` of ``bfc_arena.h`` writes all its handles at once."""
        heap = self.heap.of_thread(region.thread)
        block = heap.allocate(region.size_bytes, is_aligned=True)
        heap.write(block, region.resident_bytes)
        self.arena_bytes += region.resident_bytes
        handles_bytes = -(-region.size_bytes // _HANDLE_SPAN_BYTES) * _HANDLE_BYTES
        handles = heap.allocate(handles_bytes + 1)
        heap.write(handles, handles_bytes)
        self._note()
        self.num_regions += 1
        self.live_regions.append((region, block, handles))

    def free_regions(self) -> None:
        """Free the regions that a shrink freed when there were as many as now."""
        regions, now = self.live_regions, self.num_regions
        freed = [each for each in regions if each[0].freed_at == now]
        self.live_regions = [each for each in regions if each[0].freed_at != now]
        # Shrink goes by address: Linux puts mapped blocks above the heap, a new one below the last.
        in_heap = sorted(
            (each for each in freed if each[1].address is not None),
            key=lambda each: each[1].address or 0,
        )
        mapped = [each for each in reversed(freed) if each[1].address is None]
        for region, block, handles in (*in_heap, *mapped):
            heap = self.heap.of_thread(region.thread)
            heap.free(block)
            heap.free(handles)
            self.arena_bytes -= region.resident_bytes

    def _parse(self) -> None:
        buffer = self._string(min(self.spec.file_bytes, _FILE_BUFFER_BYTES))
        own = [
            weight
            for weight in self.spec.stored
            if not weight.is_external and weight.size_bytes >= _SMALLEST_BYTES
        ]
        # All strings exist before the first tensor is created; each is freed after its copy.
        strings = [self._read(weight.size_bytes) for weight in own]
        self.heap.free(buffer)
        for weight, string in zip(own, strings, strict=True):
            self._tensors[weight.name] = self._tensor(weight.size_bytes)
            self.heap.free(string)
        self.heap.pin_ends()

    def _read(self, size_bytes: int) -> Block:
        """A weight's string after parsing."""
        # The parser does not trust the length that a message declares: beyond the safe size the
        # string doubles, and two copies of it are alive while it is moved.
        capacity = min(size_bytes, _SAFE_STRING_BYTES)
        string = self._string(capacity)
        while capacity < size_bytes:
            known, capacity = capacity, 2 * capacity
            larger = self.heap.allocate(capacity + 1)
            self.heap.write(larger, known)
            self._note()
            self.heap.free(string)
            string = larger
            self.heap.write(string, min(size_bytes, capacity))
            self._note()
        return string

    def _create(self, weight: CreatedWeight) -> None:
        """Create a weight with the temporary copies of its origin."""
        # Temporary copies live until the result is stored, and are freed last in, first out.
        copied: list[Block] = []
        if weight.origin is not WeightOrigin.FOLDED or self._is_in_file(weight.source):
            copied.append(self._tensor(weight.source_bytes))
        if weight.origin is WeightOrigin.REORDERED:
            copied.append(self._string(weight.size_bytes - 1))
        if weight.origin is not WeightOrigin.FOLDED:
            copied.append(self._string(weight.size_bytes))
        self._tensors[weight.name] = self._tensor(weight.size_bytes)
        for block in reversed(copied):
            self.heap.free(block)

    def _is_in_file(self, name: str | None) -> bool:
        return name is not None and name not in self._tensors

    def _free_unread(self, round_: int) -> None:
        """Free the weights that neither the optimized graph nor a later round reads."""
        later = {weight.source for rest in self.spec.created[round_ + 1 :] for weight in rest}
        for name in [n for n in self._tensors if n not in self.spec.remaining and n not in later]:
            self.heap.free(self._tensors.pop(name))

    def _pack(self) -> None:
        # The optimizer is done: the small blocks that kept ends from merging are freed.
        self.heap.merge_loose_ends()
        self.heap.unmerged_ends = CACHED_ENDS
        read: set[str] = set()
        for packed in self.spec.packed:
            # The first reader of a mapped weight reads all its pages; the last one unmaps them.
            pages = -(-packed.weight_bytes // PAGE_BYTES) * PAGE_BYTES
            name = packed.weight
            is_mapped = name not in self._tensors and name not in self.spec.shared
            if is_mapped and name not in read:
                read.add(name)
                self.file_pages_bytes += pages
            # What a kernel packs into a region is written with that region (``add_region``).
            if packed.is_reserved:
                block = self._tensor(packed.packed_bytes)
                if packed.is_retained:
                    self.packed_bytes += packed.packed_bytes
                else:
                    self.heap.free(block)
            if packed.is_last and name in self._tensors:
                self.heap.free(self._tensors.pop(name))
            elif packed.is_last and is_mapped:
                self.file_pages_bytes -= pages

    def _tensor(self, size_bytes: int) -> Block:
        return self._written(self.heap.allocate(size_bytes, is_aligned=True), size_bytes)

    def _string(self, size_bytes: int) -> Block:
        return self._written(self.heap.allocate(size_bytes + 1), size_bytes)

    def _written(self, block: Block, size_bytes: int) -> Block:
        self.heap.write(block, size_bytes)
        self._note()
        return block

    def _note(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self.resident_bytes)
