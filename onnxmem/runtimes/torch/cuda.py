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
from onnxmem.program.sizes import CountRule, Derived
from onnxmem.runtimes.assumed import NO_TERM, Assumed, workspace_of
from onnxmem.runtimes.base import Overheads, RuntimeProgram
from onnxmem.runtimes.torch.memory import KernelBuffer, TrainingMemory
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.settings import H100_THREADS, TrainingConfig

_NUM_CUBLAS_HANDLES: Final = 2
"""A handle belongs to a thread: the caller's, and the autograd engine's for the backward pass."""


_MOST_THREADS: Final = 512
_WARP: Final = 32
_LEAST_VALUES: Final = 16
_MOST_VALUES: Final = 256
"""Of Reduce.cuh: threads of a block, and the values that a thread adds."""
_FLOAT_BYTES: Final = 4


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
    """Of each cuBLAS handle, kept from the first step on, and the largest of cuDNN."""
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


@dataclass(frozen=True, slots=True)
class ConvolutionWorkspace:
    """The workspace of a convolution by the bytes of its operands and result."""

    given_bytes: int | None
    """What every convolution takes; ``None``: by its size, at most 32 MiB."""

    def size_bytes(self, count: int) -> int:
        """Bytes for a convolution."""
        return workspace_of(count, self.given_bytes).size_bytes


@dataclass(frozen=True, slots=True)
class SumBuffer:
    """Where blocks of threads leave what they have added, by the number of rows.

    ``setReduceConfig`` and ``global_memory_size`` of aten/src/ATen/native/cuda/Reduce.cuh, for the
    sum over the rows of a row-major matrix, as a bias's gradient is. Sums are made in float32.
    """

    num_columns: int
    gpu_threads: int = H100_THREADS
    """``multiProcessorCount * maxThreadsPerMultiProcessor`` of the device's properties."""

    def size_bytes(self, count: int) -> int:
        """Bytes for a sum over so many rows; 0: no block needs the others' results."""
        vector = next(each for each in (4, 2, 1) if self.num_columns % each == 0)
        most = _MOST_THREADS // vector
        # `set_block_dimension`: columns along x up to a warp, rows along y, and what threads are
        # left to x.
        width, height = (_power_of_2(dim, most) for dim in (self.num_columns // vector, count))
        block_width = min(width, _WARP)
        block_height = min(height, most // block_width)
        block_width = min(width, most // block_height)
        # Too few rows to split them across warps: each thread adds whole columns.
        if count < min(16 * block_height, _MOST_VALUES):
            return 0
        values = -(-count // block_height)
        blocks = -(-(self.num_columns // vector) // block_width)
        target = self.gpu_threads // (block_width * block_height)
        # Rows are split across blocks only if threads add many values and few blocks are running.
        if values < _MOST_VALUES or blocks > target:
            return 0
        # `ctas_per_output`: as many blocks as fill the GPU, with 16 to 256 values for each thread.
        most_parts, least_parts = (-(-values // each) for each in (_LEAST_VALUES, _MOST_VALUES))
        parts = max(least_parts, min(-(-target // blocks), most_parts))
        if parts < 2:  # noqa: PLR2004 - one part is the result
            return 0
        return _FLOAT_BYTES * self.num_columns * parts * block_width * vector


@dataclass(frozen=True, slots=True)
class OwnTensor:
    """A tensor of a kernel by its bytes."""

    def size_bytes(self, count: int) -> int:
        """The bytes themselves."""
        return count


def _power_of_2(dim: int, most: int) -> int:
    """The largest power of 2 that a dim has, at most so many."""
    return 1 << min(dim, most).bit_length() - 1 if dim else 1


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

    PyTorch frees it after each call (aten/src/ATen/native/cudnn/Conv_v7.cpp). As assumed, each
    convolution takes 32 MiB, or the bytes of its operands and result if they are fewer; as given,
    each takes what is given.
    """
    name: ClassVar[str] = "pytorch-cuda"

    def program(self, graph: Graph) -> RuntimeProgram:
        """One training step, which is replayed several times.

        :raises UsageError: the configuration names an output that the graph does not have.
        """
        return self.program_of(training_memory(graph, self.recipe))

    def program_of(self, step: TrainingMemory) -> RuntimeProgram:
        """The same for a step that was simulated already."""
        replayed, buffers = step.replay, step.kernel_buffers
        program = replayed.program.with_temporaries(
            [each.label for each in buffers], [each.event for each in buffers]
        )
        # Temporaries are numbered after the allocations of the step.
        first = replayed.program.num_allocations
        # What is given is no range: 0 is that cuDNN takes none, and not that nothing is known.
        is_given = self.workspace.low_bytes == self.workspace.high_bytes
        workspace = ConvolutionWorkspace(self.workspace.low_bytes if is_given else None)
        threads = self.recipe.gpu_threads or H100_THREADS

        def rule_of(buffer: KernelBuffer) -> CountRule:
            if buffer.is_tensor:
                return OwnTensor()
            columns = buffer.num_columns
            return workspace if columns is None else SumBuffer(columns, threads)

        sizes = replayed.sizes.with_derived(
            Derived(number, each.count, rule_of(each)) for number, each in enumerate(buffers, first)
        )
        return RuntimeProgram(program, sizes, step.findings, MAX_ITERATIONS)

    def allocator(self, capacity_bytes: int | None = None) -> CachingAllocator:
        """A new caching allocator."""
        return CachingAllocator(self.config, capacity_bytes)

    def overheads(self, graph: Graph | None = None) -> Overheads:  # noqa: ARG002 - known before it
        """The context, and the workspaces of cuBLAS and cuDNN."""
        # cublasLt shares the workspace of its handle.
        cublas = (self.recipe.cublas_bytes(),) * _NUM_CUBLAS_HANDLES
        return Overheads(
            self.context,
            workspace=self.workspace,
            workspaces_bytes=cublas,
            has_workspace_in_program=True,
        )

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
            workspaces_bytes=(*workspaces, self.workspace.size_bytes),
            context_bytes=self.context.size_bytes,
        )
