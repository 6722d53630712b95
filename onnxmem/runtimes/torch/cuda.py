"""What PyTorch takes of a CUDA device for a training run: its allocator's memory, and the rest.

In go a step and the settings of PyTorch (``TorchRuntime``); out come the figures of
``torch.cuda.memory_stats``, with the workspaces of cuBLAS and cuDNN in them and the CUDA context
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

WORKSPACE_BYTES = 8_519_680
"""cuBLAS's workspace: 4096 KiB twice and 16 KiB eight times.

Source: parseChosenWorkspaceSize of aten/src/ATen/cuda/CublasHandlePool.cpp.
"""

_NUM_CUBLAS_HANDLES: Final = 2
"""A handle belongs to a thread: the caller's, and autograd's own of the backward pass."""


@dataclass(frozen=True, slots=True)
class TorchMemory:
    """The figures of a process in device memory, in bytes."""

    requested_peak_bytes: int
    """The most that tensors and workspaces request at once, before rounding."""
    allocated_peak_bytes: int
    """The most in use at once in whole blocks: `torch.cuda.max_memory_allocated`."""
    reserved: Reserved
    """Taken from the device by the allocator: its peak is `torch.cuda.max_memory_reserved`."""
    allocated_end_bytes: int
    """In use after the last step, before the next one frees what this one leaves."""
    inactive_split_end_bytes: int
    """Free then, in segments that are in use: what `torch.cuda.empty_cache` cannot give back."""
    num_segments: int
    """Segments taken from the device; an expandable one counts once."""
    workspaces_bytes: tuple[int, ...]
    """Of each cuBLAS handle, and of cuDNN, in the order of allocation; in the allocated bytes."""
    context_bytes: int
    """The CUDA context and loaded kernels: an assumption, in no figure but the total."""

    @property
    def reserved_peak_bytes(self) -> int:
        """The most that the allocator has taken from the device."""
        return self.reserved.peak_bytes

    @property
    def is_out_of_memory(self) -> bool:
        """Whether a request failed: then all figures are of the time until then."""
        return self.reserved.is_out_of_memory

    @property
    def cublas_workspace_bytes(self) -> int:
        """Of all handles together."""
        return sum(self.workspaces_bytes[:-1])

    @property
    def cudnn_workspace_bytes(self) -> int:
        """The largest that a convolution requests."""
        return self.workspaces_bytes[-1]

    @property
    def fragmentation_bytes(self) -> int:
        """Reserved at its peak, less allocated at its own."""
        return self.reserved_peak_bytes - self.allocated_peak_bytes

    @property
    def total_bytes(self) -> int:
        """What a device must have for the run."""
        return self.reserved_peak_bytes + self.context_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchRuntime:
    """A training loop in a process of PyTorch on a CUDA device, as a ``Runtime``."""

    recipe: TrainingConfig = field(default_factory=TrainingConfig)
    config: CachingConfig = field(default_factory=CachingConfig)
    """PYTORCH_CUDA_ALLOC_CONF."""
    cublas_workspace_bytes: int = WORKSPACE_BYTES
    """Of one cuBLAS handle, shared with cublasLt; 0 where no matrix is multiplied."""
    context: Assumed = NO_TERM
    """The CUDA context and loaded kernels, outside the allocator."""
    workspace: Assumed = NO_TERM
    """The largest that a convolution of cuDNN requests, of which one runs at a time.

    Held from the first step on, which is an upper bound: cuDNN gives it back after each call.
    """
    name: ClassVar[str] = "pytorch-cuda"

    def program(self, graph: Graph) -> RuntimeProgram:
        """One training step, to be repeated.

        :raises UsageError: the configuration names an output that the graph does not have.
        """
        return self.program_of(training_memory(graph, self.recipe))

    def program_of(self, step: TrainingMemory) -> RuntimeProgram:
        """The same of a step that was walked."""
        replayed = step.replay
        return RuntimeProgram(replayed.program, replayed.sizes, step.findings, MAX_ITERATIONS)

    def allocator(self, capacity_bytes: int | None = None) -> CachingAllocator:
        """A new caching allocator."""
        return CachingAllocator(self.config, capacity_bytes)

    def overheads(self, graph: Graph | None = None) -> Overheads:  # noqa: ARG002 - known before it
        """The context, and the workspaces of cuBLAS and cuDNN."""
        cublas = (self.cublas_workspace_bytes,) * _NUM_CUBLAS_HANDLES
        return Overheads(self.context, workspace=self.workspace, workspaces_bytes=cublas)

    def memory(self, step: RuntimeProgram, capacity_bytes: int | None = None) -> TorchMemory:
        """Run a step again and again on the allocator, until it comes to rest.

        With ``capacity_bytes`` the device has so much for the allocator: cached segments are given
        back where it has no more, and the replay ends where that does not help.
        """
        allocator = self.allocator(capacity_bytes)
        workspaces = self.overheads().served_bytes
        found = step.serve_with(allocator, workspaces).reserved
        assert found is not None  # noqa: S101 - there is an allocator
        return TorchMemory(
            requested_peak_bytes=allocator.requested_peak_bytes,
            allocated_peak_bytes=allocator.allocated_peak_bytes,
            reserved=found,
            allocated_end_bytes=allocator.allocated_bytes,
            inactive_split_end_bytes=allocator.inactive_split_bytes,
            num_segments=allocator.num_segments,
            workspaces_bytes=workspaces,
            context_bytes=self.context.size_bytes,
        )
