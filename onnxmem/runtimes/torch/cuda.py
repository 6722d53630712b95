"""The device memory of a PyTorch training run: the caching allocator's, and the rest.

``TorchRuntime`` takes a step and the settings of PyTorch, and returns the figures of
``torch.cuda.memory_stats``, which include the workspaces of cuBLAS and cuDNN, and the CUDA context
beside them.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final

from onnxmem.allocators.caching import CachingAllocator, CachingConfig
from onnxmem.model.graph import Graph
from onnxmem.program.replay import MAX_ITERATIONS, Reserved
from onnxmem.runtimes.assumed import NO_TERM, Assumed
from onnxmem.runtimes.base import Overheads, RuntimeProgram
from onnxmem.runtimes.torch.memory import TrainingMemory
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.settings import TrainingConfig

_NUM_CUBLAS_HANDLES: Final = 2
"""A handle belongs to a thread: the caller's, and the autograd engine's for the backward pass."""


@dataclass(frozen=True, slots=True)
class TorchMemory:
    """The figures of a process in device memory, in bytes."""

    requested_peak_bytes: int
    """The peak of what tensors and workspaces request, before rounding."""
    allocated_bytes: int
    """The peak of allocated blocks: `torch.cuda.max_memory_allocated`."""
    reserved: Reserved
    """What the allocator reserves: its peak is `torch.cuda.max_memory_reserved`."""
    allocated_end_bytes: int
    """Allocated after the last step, before the next one frees what this one leaves."""
    inactive_split_end_bytes: int
    """Free then, in segments that are in use: `torch.cuda.empty_cache` cannot release it."""
    num_segments: int
    """Segments from cudaMalloc; an expandable one counts once."""
    workspaces_bytes: tuple[int, ...]
    """Of each cuBLAS handle and of cuDNN, in the order of allocation; part of the allocated
    bytes."""
    context_bytes: int
    """The CUDA context and loaded kernels: an assumption, part of no figure but the total."""

    @property
    def reserved_bytes(self) -> int:
        """`torch.cuda.max_memory_reserved`."""
        return self.reserved.peak_bytes

    @property
    def is_out_of_memory(self) -> bool:
        """Whether a request failed: then all figures cover only the time until then."""
        return self.reserved.is_out_of_memory

    @property
    def cublas_workspace_bytes(self) -> int:
        """The workspaces of all handles together."""
        return sum(self.workspaces_bytes[:-1])

    @property
    def cudnn_workspace_bytes(self) -> int:
        """The largest workspace that a convolution requests."""
        return self.workspaces_bytes[-1]

    @property
    def fragmentation_bytes(self) -> int:
        """The reserved peak less the allocated peak."""
        return self.reserved_bytes - self.allocated_bytes

    @property
    def total_bytes(self) -> int:
        """The device memory that the run needs."""
        return self.reserved_bytes + self.context_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchRuntime:
    """A training loop in a process of PyTorch on a CUDA device, as a ``Runtime``."""

    recipe: TrainingConfig = field(default_factory=TrainingConfig)
    config: CachingConfig = field(default_factory=CachingConfig)
    """PYTORCH_CUDA_ALLOC_CONF."""
    context: Assumed = NO_TERM
    """The CUDA context and loaded kernels, outside the allocator."""
    workspace: Assumed = NO_TERM
    """The largest workspace that a convolution requests; one convolution runs at a time.

    Counted as allocated from the first step on, which is an upper bound: PyTorch frees it after
    each call (aten/src/ATen/native/cudnn/Conv_v7.cpp).
    """
    name: ClassVar[str] = "pytorch-cuda"

    def program(self, graph: Graph) -> RuntimeProgram:
        """One training step, which is replayed several times.

        :raises UsageError: the configuration names an output that the graph does not have.
        """
        return self.program_of(training_memory(graph, self.recipe))

    def program_of(self, step: TrainingMemory) -> RuntimeProgram:
        """The same for a step that was simulated already."""
        replayed = step.replay
        return RuntimeProgram(replayed.program, replayed.sizes, step.findings, MAX_ITERATIONS)

    def allocator(self, capacity_bytes: int | None = None) -> CachingAllocator:
        """A new caching allocator."""
        return CachingAllocator(self.config, capacity_bytes)

    def overheads(self, graph: Graph | None = None) -> Overheads:  # noqa: ARG002 - known before it
        """The context, and the workspaces of cuBLAS and cuDNN."""
        # cublasLt shares the workspace of its handle.
        cublas = (self.recipe.cublas_bytes(),) * _NUM_CUBLAS_HANDLES
        return Overheads(self.context, workspace=self.workspace, workspaces_bytes=cublas)

    def memory(self, step: RuntimeProgram, capacity_bytes: int | None = None) -> TorchMemory:
        """Replay a step on the allocator until its state repeats.

        ``capacity_bytes`` is what the device has for the allocator: where it is used up, cached
        segments are released, and the replay ends where that does not help.
        """
        allocator = self.allocator(capacity_bytes)
        workspaces = self.overheads().served_bytes
        found = step.serve_with(allocator, workspaces).reserved
        assert found is not None  # noqa: S101 - there is an allocator
        return TorchMemory(
            requested_peak_bytes=allocator.requested_peak_bytes,
            allocated_bytes=allocator.allocated_peak_bytes,
            reserved=found,
            allocated_end_bytes=allocator.allocated_bytes,
            inactive_split_end_bytes=allocator.inactive_split_bytes,
            num_segments=allocator.num_segments,
            workspaces_bytes=workspaces,
            context_bytes=self.context.size_bytes,
        )
