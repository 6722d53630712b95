"""A snapshot for PyTorch's memory viewer (pytorch.org/memory_viz), made without PyTorch.

Source of the layout: ``torch/cuda/memory.py`` (``memory_snapshot``) and
``torch/cuda/_memory_viz.py`` of PyTorch 2.13: a pickled dict of ``segments`` and
``device_traces``. Its values are plain ones: nothing in it is code.
"""

import pickle
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Final

from onnxmem.allocators.caching import CachingConfig
from onnxmem.analysis.analysis import Analysis
from onnxmem.errors import shortened
from onnxmem.export.torch_replay import TorchReplay
from onnxmem.export.torch_state import Frames, Held, Segment, TorchState
from onnxmem.model import Role
from onnxmem.runtimes.ideal import ActivationMemory
from onnxmem.runtimes.torch import TorchMemory, TorchSettings, TrainingMemory
from onnxmem.runtimes.torch.heap import Event

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
        settings = TorchSettings(allocator=config)
        _training(state, analysis.training, analysis.torch, settings)
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
        nodes = [node.name for node in graph.nodes]
        _activations(state, analysis.activations, nodes)


def _activations(state: TorchState, memory: ActivationMemory, nodes: list[str]) -> None:
    segment = state.new_segment(memory.arena.size_bytes)
    blocks = [block for block in memory.blocks if block.buffer.size_bytes]
    offsets = [offset for _, offset in memory.arena.offsets]
    events = []
    for block, offset in zip(blocks, offsets, strict=True):
        what = (segment.address + offset, block.buffer)
        events.append((block.start, True, what))
        if block.stop < len(nodes):  # what is left lives to the end
            events.append((block.stop, False, what))
    # At a step what has died goes before what is made: False sorts before True.
    for step, is_allocation, (address, buffer) in sorted(events, key=itemgetter(0, 1)):
        if is_allocation:
            named = frames(buffer.tensors[0], "activations", nodes[step])
            state.allocate(address, buffer.size_bytes or 0, named)
        else:
            state.free(address)


def _training(
    state: TorchState, training: TrainingMemory, torch: TorchMemory, settings: TorchSettings
) -> None:
    """Replay what is held, the workspaces, and one step, in the order of ``torch.replay``."""
    trace = training.trace
    replayed = TorchReplay.on(state, settings.allocator)
    num_handles = settings.num_cublas_handles
    workspaces = [torch.cublas_workspace_bytes // num_handles] * num_handles
    for place, event in enumerate(trace.events):
        if place == trace.num_held_events:
            _workspaces(replayed, [*workspaces, torch.cudnn_workspace_bytes])
        block = trace.blocks[event.block]
        if event.is_allocation:
            is_held = place < trace.num_held_events
            named = frames(block.label, block.kind.value, "" if is_held else _where(event))
            replayed.allocate(event.block, block.size_bytes, named)
        elif block.size_bytes:
            replayed.free(event.block)


def _where(event: Event) -> str:
    return f"{event.phase.value}: {event.node}" if event.node else event.phase.value


def _workspaces(replayed: TorchReplay, sizes: list[int]) -> None:
    for number, size in enumerate(sizes, start=1):
        replayed.allocate(-number, size, frames("workspace", "workspaces", ""))


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
