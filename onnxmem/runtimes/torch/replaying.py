"""Training steps through the allocator: what is held, then the same step again and again."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, Self

from onnxmem.allocators.caching import CachingAllocator, OutOfMemoryError
from onnxmem.runtimes.torch.settings import TorchSettings
from onnxmem.runtimes.torch.torch_memory import TorchMemory

Event = tuple[int, int]
"""A block's number, and the bytes that are allocated for it; below 0 those that are freed."""

MOST_STEPS: Final = 8
"""Where a replay ends that is not steady before: the first step makes the segments, the second
finds them cut, and most are steady from there on."""


def replay(
    setup_events: Iterable[Event],
    step_events: Iterable[Event],
    steps: int = MOST_STEPS,
    settings: TorchSettings | None = None,
    *,
    capacity_bytes: int | None = None,
) -> TorchMemory:
    """Replay a training run: `setup_events` once, then `step_events` until the steps are steady.

    Steps are steady where one leaves all blocks as it found them; `steps` is the most. With
    `capacity_bytes` the device has so much for the allocator: cached segments are given back where
    it has no more, and the replay ends where that does not help.

    Setup holds what lives from step to step (parameters, buffers, the optimizer's state, inputs).
    Workspaces are taken at the start of the first step and stay. What a step leaves allocated, its
    gradients and outputs, is freed at the start of the next, as `zero_grad` and the assignments
    of a training loop do. A step may itself free blocks of setup, say the gradients of the step
    before: then blocks of the same sizes that it leaves take their places. Setup and steps share
    the numbers of blocks; events of 0 bytes are passed over.

    :raises ValueError: a block that is allocated twice or freed when it is not allocated.
    """
    settings = settings or TorchSettings()
    allocator = CachingAllocator(settings.allocator, capacity_bytes)
    setup = tuple(setup_events)
    reserved: list[int] = []
    is_out_of_memory = False
    try:
        _set_up(allocator, setup, settings)
        _run_steps(allocator, _Step.of(setup, tuple(step_events)), steps, reserved)
    except OutOfMemoryError:
        is_out_of_memory = True
    return TorchMemory(
        asked_peak_bytes=allocator.asked_peak_bytes,
        allocated_peak_bytes=allocator.allocated_peak_bytes,
        reserved_peak_bytes=allocator.reserved_peak_bytes,
        allocated_end_bytes=allocator.allocated_bytes,
        inactive_split_end_bytes=allocator.inactive_split_bytes,
        num_segments=allocator.num_segments,
        reserved_by_step_bytes=tuple(reserved),
        cublas_workspace_bytes=settings.cublas_workspace_bytes * settings.num_workspaces,
        cudnn_workspace_bytes=settings.cudnn_workspace_bytes,
        context_bytes=settings.context_bytes,
        num_retries=allocator.num_retries,
        is_out_of_memory=is_out_of_memory,
    )


def run(allocator: CachingAllocator, events: Iterable[Event]) -> None:
    """Serve events in order."""
    for number, size_bytes in events:
        if size_bytes > 0:
            allocator.allocate(number, size_bytes)
        elif size_bytes < 0:
            allocator.free(number)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that can follow itself."""

    events: Sequence[Event]
    freed_next: Sequence[Event]
    """What it leaves and the next one has no use for."""
    handed_on: Sequence[Event]
    """Of two numbers each: what it leaves, and the block of setup whose place that takes."""

    @classmethod
    def of(cls, setup: Sequence[Event], events: Sequence[Event]) -> Self:
        """Find what a step leaves, and what it takes away."""
        held, left = _alive_after(setup), _alive_after(events)
        made = {number for number, size_bytes in events if size_bytes > 0}
        freed = [number for number, size_bytes in events if size_bytes < 0 and number not in made]
        handed_on = []
        for number in freed:
            heirs = (heir for heir, size_bytes in left.items() if size_bytes == held.get(number))
            heir = next(heirs, None)
            if heir is not None:
                handed_on.append((heir, number))
                del left[heir]
        return cls(events, [(number, -size) for number, size in left.items()], handed_on)


def _set_up(allocator: CachingAllocator, setup: Sequence[Event], settings: TorchSettings) -> None:
    """Allocate what lives from step to step, and the workspaces."""
    run(allocator, setup)
    numbers = count(-1, -1)  # the events' own are from 0 on
    for size_bytes in (settings.cublas_workspace_bytes,) * settings.num_workspaces:
        allocator.allocate(next(numbers), size_bytes)
    allocator.allocate(next(numbers), settings.cudnn_workspace_bytes)


def _run_steps(allocator: CachingAllocator, step: _Step, steps: int, reserved: list[int]) -> None:
    """Run a step again and again until it is steady: the bytes reserved after each."""
    layout: tuple[tuple[int, ...], ...] = ()
    for index in range(steps):
        if index:
            run(allocator, step.freed_next)
            for heir, number in step.handed_on:
                allocator.rename(heir, number)
        run(allocator, step.events)
        reserved.append(allocator.reserved_bytes)
        before, layout = layout, allocator.layout()
        # Blocks that lie as they lay a step ago are asked for and freed the same way again.
        if layout == before:
            return


def _alive_after(events: Sequence[Event]) -> dict[int, int]:
    """Bytes of the blocks that events leave allocated, in the order of their allocation."""
    alive: dict[int, int] = {}
    for number, size_bytes in events:
        if size_bytes > 0:
            alive[number] = size_bytes
        elif size_bytes < 0:
            alive.pop(number, None)
    return alive
