"""Events as short numbers, for all tests of allocators and of what they reserve."""

from collections.abc import Iterable
from dataclasses import replace

from onnxmem.allocators.caching import CachingAllocator, CachingConfig
from onnxmem.program.program import Category, Program, ProgramBuilder
from onnxmem.program.sizes import Sizes
from onnxmem.runtimes.base import RuntimeProgram
from onnxmem.runtimes.torch.cuda import TorchMemory, TorchRuntime
from onnxmem.settings import TrainingConfig

BARE = TorchRuntime(recipe=TrainingConfig(cublas_workspace_bytes=0))
EXPANDABLE = replace(BARE, config=CachingConfig(expandable_segments=True))

Event = tuple[int, int]
"""An allocation's number, and its bytes; below 0: it is released."""


def run(allocator: CachingAllocator, events: Iterable[Event]) -> None:
    """Serve events in order."""
    for number, size_bytes in events:
        if size_bytes > 0:
            allocator.malloc(number, size_bytes)
        else:
            allocator.free(number)


def program_of(setup: Iterable[Event], events: Iterable[Event]) -> tuple[Program, Sizes]:
    """A program that allocates the setup once, and its sizes; events of 0 bytes allocate."""
    builder = ProgramBuilder()
    numbers: dict[int, int] = {}
    sizes: list[int] = []

    def happen(number: int, size_bytes: int) -> None:
        if size_bytes < 0:
            builder.free(numbers[number])
        else:
            numbers[number] = builder.malloc(f"number {number}", Category.ACTIVATION)
            sizes.append(size_bytes)

    for event in setup:
        happen(*event)
    builder.end_setup()
    for event in events:
        happen(*event)
    return builder.program(), Sizes.of(sizes)


def replayed(
    setup: Iterable[Event],
    events: Iterable[Event],
    runtime: TorchRuntime,
    capacity_bytes: int | None = None,
    iterations: int = 8,
) -> TorchMemory:
    """Replay a setup and a step on PyTorch's allocator."""
    made = program_of(setup, events)
    return runtime.memory(RuntimeProgram(*made, iterations=iterations), capacity_bytes)
