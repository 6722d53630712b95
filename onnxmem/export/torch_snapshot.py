"""A snapshot for PyTorch's memory viewer (pytorch.org/memory_viz), made without PyTorch.

Source of the layout: ``torch/cuda/memory.py`` (``memory_snapshot``) and
``torch/cuda/_memory_viz.py`` of PyTorch 2.13: a pickled dict of ``segments`` and
``device_traces``. Its values are plain ones: nothing in it is code.
"""

import pickle
from collections.abc import Callable, Iterator
from typing import Any, Final

from onnxmem.allocators.caching.allocator import CachingAllocator, CachingConfig
from onnxmem.analysis.analysis import Analysis
from onnxmem.errors import shortened
from onnxmem.export.torch_replay import WatchedAllocator
from onnxmem.export.torch_state import Frames, Held, Segment, TorchState
from onnxmem.model import Role
from onnxmem.program import Category, Program, replay
from onnxmem.runtimes.ideal.activation_memory import ActivationMemory

_PROTOCOL: Final = 4
"""Of pickle: what the viewer's own reader knows."""


def torch_snapshot(analysis: Analysis) -> Iterator[bytes]:
    """Pickle a snapshot: of a run in arena offsets, or of a training step where there is one.

    A run has a segment of weights, one of inputs and one of activations, which is the arena. A
    training step goes through PyTorch's caching allocator, the first of its steps, so that
    segments and addresses are those that it would choose; what the step holds is allocated first.
    Bytes of tensors whose size is unknown are in neither.
    """
    state = TorchState()
    if analysis.training is None or analysis.torch is None:
        _run(state, analysis)
    else:
        config = CachingConfig(expandable_segments=analysis.settings.expandable_segments)
        watched = WatchedAllocator(
            state, CachingAllocator(config), _frames_of(analysis.training.replay.program)
        )
        step, workspaces = analysis.training.replay, analysis.torch.workspaces_bytes
        replay(step.program, step.sizes, watched, workspaces_bytes=workspaces)
    yield pickle.dumps(_plain(state), protocol=_PROTOCOL)


def _run(state: TorchState, analysis: Analysis) -> None:
    graph = analysis.graph
    inputs = [graph.tensors[name] for name in dict.fromkeys(graph.inputs)]
    for kind, tensors in (
        ("weights", list(graph.weights)),
        ("inputs", [tensor for tensor in inputs if tensor.role is Role.INPUT]),
    ):
        known = [(tensor.name, size) for tensor in tensors if (size := tensor.size_bytes)]
        segment = state.new_segment(sum(size for _, size in known))
        address = segment.address
        for name, size in known:
            state.allocate(address, size, frames(name, kind, ""))
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
            named = frames(program.labels[number], Category.ACTIVATION.value, node)
            state.allocate(address + offsets[number], sizes.bytes_of(number), named)
        elif step < last_step:  # the snapshot is taken while the last node runs
            state.free(address + offsets[number])


def _frames_of(program: Program) -> Callable[[int], Frames]:
    """The call stack of each allocation of a training step; numbers below 0 are of workspaces."""
    events = (program.events >= 0).nonzero()[0].tolist()

    def frames_of(number: int) -> Frames:
        if number < 0:
            return frames("workspace", "workspaces", "")
        event, where = events[number], ""
        if event >= program.num_setup_events:
            where = ": ".join(filter(None, (program.phase_at(event), program.node_at(event))))
        return frames(program.labels[number], program.categories[number].value, where)

    return frames_of


def frames(name: str, kind: str, where: str) -> Frames:
    """A tensor and the node that makes it as the call stack that the viewer shows."""
    stack: Frames = [{"name": shortened(name), "filename": kind, "line": 0}]
    if where:
        stack.append({"name": shortened(where), "filename": "node", "line": 0})
    return stack


def _plain(state: TorchState) -> dict[str, Any]:
    return {
        "segments": [_segment(*placed) for placed in state.placed()],
        "device_traces": [state.trace],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _segment(segment: Segment, blocks: tuple[Held, ...]) -> dict[str, Any]:
    active = sum(block.size_bytes for block in blocks if block.asked_bytes)
    return {
        "device": 0,
        "address": segment.address,
        "total_size": segment.size_bytes,
        "allocated_size": active,
        "active_size": active,
        "requested_size": sum(block.asked_bytes for block in blocks),
        "stream": 0,
        "segment_type": "small" if segment.is_small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": segment.is_expandable,
        "frames": [],
        "blocks": [_block(block) for block in blocks],
    }


def _block(block: Held) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.size_bytes,
        "requested_size": block.asked_bytes,
        "state": "active_allocated" if block.asked_bytes else "inactive",
        "frames": block.frames,
    }
