"""Write a snapshot for PyTorch's memory viewer (pytorch.org/memory_viz) without PyTorch.

Format: ``torch/cuda/memory.py`` (``memory_snapshot``) and ``torch/cuda/_memory_viz.py`` of PyTorch
2.13: a pickled dict of ``segments`` and ``device_traces`` with plain values, which contain no code.
``TorchState`` collects segments, blocks and events; a training step is replayed with the caching
allocator, so that every block has the address that PyTorch would choose.
"""

import pickle
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from onnxmem.allocators.caching import CachingAllocator, CachingConfig
from onnxmem.analysis.analysis import Analysis
from onnxmem.errors import shortened
from onnxmem.program.program import Category, FirstIteration, Program
from onnxmem.program.replay import replay
from onnxmem.runtimes.ideal.activation_memory import ActivationMemory

Frames = list[dict[str, str | int]]
"""A call stack: dicts of ``name``, ``filename`` and ``line``."""
_BASE: Final = 0x7F00_0000_0000
"""The first address, similar to those of CUDA."""
_APART: Final = 1 << 21
"""The alignment of segments."""
_BASES: Final = {True: 0x7E00_0000_0000, False: 0x7F00_0000_0000}
"""The first address of the pool of small blocks, and of the other pool."""
_PROTOCOL: Final = 4
"""The pickle protocol that the viewer reads."""


def torch_snapshot(analysis: Analysis) -> Iterator[bytes]:
    """Pickle a snapshot of an inference, or of the training step if there is one.

    An inference has one segment each for weights, inputs and activations, the latter packed in one
    block. A training step is the first one of a process with PyTorch's caching allocator;
    persistent tensors are allocated before it. Tensors of unknown size are omitted.
    """
    state = TorchState()
    if analysis.training is None or analysis.torch is None:
        _inference(state, analysis)
    else:
        config = CachingConfig(expandable_segments=analysis.settings.expandable_segments)
        runtime = analysis.request.torch_runtime(analysis.results)
        step, workspaces = runtime.program_of(analysis.training), runtime.overheads().served_bytes
        allocator = _RecordedAllocator(config, state, _frames_of(step.program))
        # One step like all later ones: a first step has no state or gradients to begin with.
        steady = replace(step.program, first=FirstIteration())
        replay(steady, step.sizes, allocator, workspaces_bytes=workspaces)
    yield pickle.dumps(_plain(state), protocol=_PROTOCOL)


@dataclass(slots=True)
class Segment:
    """A range of device memory that the allocator has reserved."""

    address: int
    size_bytes: int
    is_small: bool = False
    is_expandable: bool = False


class Block(NamedTuple):
    """A block of a segment."""

    address: int
    size_bytes: int
    requested_bytes: int
    """0: it is free."""
    frames: Frames


@dataclass(slots=True)
class TorchState:
    """The allocated memory, and the events that led to it; mutable."""

    segments: list[Segment] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)
    _live: dict[int, Block] = field(default_factory=dict)
    """Blocks by address."""
    _top: int = _BASE

    def new_segment(self, size_bytes: int) -> Segment:
        """Add a segment above all others, unless it has 0 bytes."""
        segment = Segment(self._top, size_bytes)
        if size_bytes:
            # Segments that touch would read as one in the viewer.
            self._top += -(-size_bytes // _APART) * _APART
            self.add_segment(segment)
        return segment

    def add_segment(self, segment: Segment) -> None:
        """Add a segment at its address."""
        self.segments.append(segment)
        self.record("segment_alloc", segment.address, segment.size_bytes, [])

    def allocate(
        self, address: int, requested_bytes: int, frames: Frames, block_bytes: int | None = None
    ) -> None:
        """Allocate a block."""
        size_bytes = requested_bytes if block_bytes is None else block_bytes
        self._live[address] = Block(address, size_bytes, requested_bytes, frames)
        self.record("alloc", address, requested_bytes, frames)

    def free(self, address: int) -> None:
        """Free a block."""
        block = self._live.pop(address)
        # PyTorch records both; without streams they are at the same time.
        for action in ("free_requested", "free_completed"):
            self.record(action, address, block.requested_bytes, block.frames)

    def record(self, action: str, address: int, size_bytes: int, frames: Frames) -> None:
        """Append an event; its time is its index."""
        range_ = {"addr": address, "size": size_bytes, "stream": 0}
        time = len(self.trace)
        self.trace.append({"action": action, **range_, "time_us": time, "frames": frames})

    def blocks_by_segment(self) -> Iterator[tuple[Segment, tuple[Block, ...]]]:
        """The segments, each with its blocks by address, including free ones."""
        order = sorted(self._live)
        for segment in self.segments:
            start = bisect_left(order, segment.address)
            stop = bisect_left(order, segment.address + segment.size_bytes)
            yield segment, tuple(self._blocks_of(segment, order[start:stop]))

    def _blocks_of(self, segment: Segment, order: Iterable[int]) -> Iterator[Block]:
        top, end = segment.address, segment.address + segment.size_bytes
        for address in order:
            # A gap between live blocks is an inactive block of the segment.
            if address > top:
                yield Block(top, address - top, 0, [])
            block = self._live[address]
            yield block
            top = address + block.size_bytes
        if top < end:
            yield Block(top, end - top, 0, [])


class _RecordedAllocator(CachingAllocator):
    """PyTorch's caching allocator, which records each allocation in a snapshot."""

    def __init__(
        self, config: CachingConfig, state: TorchState, frames: Callable[[int], Frames]
    ) -> None:
        """``frames`` returns the call stack of an allocation by its number."""
        super().__init__(config)
        self._state = state
        self._frames = frames
        self._expandable: dict[bool, Segment] = {}
        """The only segment of each pool, by whether it is small, if segments are expandable."""

    def malloc(self, number: int, size_bytes: int) -> None:
        """Allocate a block, and record it."""
        before = self.reserved_bytes
        super().malloc(number, size_bytes)
        is_small, address, block_bytes = self.range_of(number)
        address += _BASES[is_small]
        if self.reserved_bytes > before:
            self._grow(address, self.reserved_bytes - before, is_small=is_small)
        self._state.allocate(address, size_bytes, self._frames(number), block_bytes)

    def free(self, number: int) -> None:
        """Free a block, and record it."""
        # Before the block is freed, after which it has no address.
        is_small, address, _ = self.range_of(number)
        self._state.free(_BASES[is_small] + address)
        super().free(number)

    def _grow(self, address: int, added_bytes: int, *, is_small: bool) -> None:
        """Record that a block needed more device memory: a segment, or pages of the only one."""
        if not self.config.expandable_segments:
            # The block for which a segment is reserved is at its start.
            self._state.add_segment(Segment(address, added_bytes, is_small))
            return
        segment = self._expandable.get(is_small)
        if segment is None:
            segment = Segment(_BASES[is_small], 0, is_small, is_expandable=True)
            self._expandable[is_small] = segment
            self._state.segments.append(segment)
        # Without a capacity no page is ever unmapped, so pages are mapped consecutively.
        top = segment.address + segment.size_bytes
        segment.size_bytes += added_bytes
        self._state.record("segment_map", top, added_bytes, [])


def _inference(state: TorchState, analysis: Analysis) -> None:
    graph = analysis.graph
    for kind, tensors in (("weights", graph.weights), ("inputs", graph.fed_tensors)):
        known = [(tensor.name, size) for tensor in tensors if (size := tensor.size_bytes)]
        segment = state.new_segment(sum(size for _, size in known))
        address = segment.address
        for name, size in known:
            state.allocate(address, size, _stack(name, kind, ""))
            address += size
    if analysis.activations.in_place_peak_bytes:
        _activations(state, analysis.activations)


def _activations(state: TorchState, memory: ActivationMemory) -> None:
    program, sizes, offsets = memory.replay.program, memory.replay.sizes, memory.packing.offsets
    address = state.new_segment(memory.packing.size_bytes).address
    last_step = len(program.steps) - 1
    for event, step in zip(program.events.tolist(), program.event_steps.tolist(), strict=True):
        number = max(event, ~event)
        if number not in offsets:
            continue
        if event >= 0:
            node = program.steps[step]
            named = _stack(program.labels[number], Category.ACTIVATION.value, node)
            state.allocate(address + offsets[number], sizes.bytes_of(number), named)
        elif step < last_step:  # the snapshot shows the moment when the last node runs
            state.free(address + offsets[number])


def _frames_of(program: Program) -> Callable[[int], Frames]:
    """The call stack of each allocation of a training step; numbers below 0 are of workspaces."""
    events = (program.events >= 0).nonzero()[0].tolist()

    def frames_of(number: int) -> Frames:
        if number < 0:
            return _stack("workspace", "workspaces", "")
        event, where = events[number], ""
        if event >= program.num_setup_events:
            where = ": ".join(filter(None, (program.phase_at(event), program.node_at(event))))
        return _stack(program.labels[number], program.categories[number].value, where)

    return frames_of


def _stack(name: str, kind: str, where: str) -> Frames:
    """A tensor and its producer as the call stack that the viewer shows."""
    stack: Frames = [{"name": shortened(name), "filename": kind, "line": 0}]
    if where:
        stack.append({"name": shortened(where), "filename": "node", "line": 0})
    return stack


def _plain(state: TorchState) -> dict[str, Any]:
    return {
        "segments": [_segment(*each) for each in state.blocks_by_segment()],
        "device_traces": [state.trace],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _segment(segment: Segment, blocks: tuple[Block, ...]) -> dict[str, Any]:
    active = sum(block.size_bytes for block in blocks if block.requested_bytes)
    return {
        "device": 0,
        "address": segment.address,
        "total_size": segment.size_bytes,
        "allocated_size": active,
        "active_size": active,
        "requested_size": sum(block.requested_bytes for block in blocks),
        "stream": 0,
        "segment_type": "small" if segment.is_small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": segment.is_expandable,
        "frames": [],
        "blocks": [_block(block) for block in blocks],
    }


def _block(block: Block) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.size_bytes,
        "requested_size": block.requested_bytes,
        "state": "active_allocated" if block.requested_bytes else "inactive",
        "frames": block.frames,
    }
