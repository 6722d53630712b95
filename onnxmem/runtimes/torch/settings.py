"""What is set of PyTorch's CUDA allocator, and what lies beside it in device memory."""

from dataclasses import dataclass, field

from onnxmem.allocators.caching import CachingConfig

WORKSPACE_BYTES = 8_519_680
"""cuBLAS's workspace: 4096 KiB twice and 16 KiB eight times.

Source: parseChosenWorkspaceSize of aten/src/ATen/cuda/CublasHandlePool.cpp.
"""

HOPPER_WORKSPACE_BYTES = 33_554_432
"""The same where the compute capability is 9.x, and in some releases 10.x and 12.x."""


@dataclass(frozen=True, slots=True)
class TorchSettings:
    """PyTorch's allocator, and the terms that no list of tensors holds; sizes in bytes."""

    allocator: CachingConfig = field(default_factory=CachingConfig)
    """PYTORCH_CUDA_ALLOC_CONF."""
    cublas_workspace_bytes: int = WORKSPACE_BYTES
    """Of one cuBLAS handle, shared with cublasLt; 0 where no matrix is multiplied."""
    num_cublas_handles: int = 2
    """A handle belongs to a thread: the caller's, and autograd's own that runs the way back."""
    cudnn_workspace_bytes: int = 0
    """The largest that a convolution asks for, of which one runs at a time.
    Held from the first step on, which is an upper bound: cuDNN gives it back after each call.
    """
    context_bytes: int = 0
    """The CUDA context and loaded kernels, outside the allocator."""

    @property
    def num_workspaces(self) -> int:
        """Handles that have a workspace of cuBLAS."""
        return self.num_cublas_handles if self.cublas_workspace_bytes else 0
