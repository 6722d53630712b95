"""What PyTorch takes of a CUDA device for a training run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TorchMemory:
    """The terms of a process in device memory, in bytes."""

    asked_peak_bytes: int
    """The most that tensors and workspaces ask for at once, before rounding."""
    allocated_peak_bytes: int
    """The most in use at once in whole blocks: `torch.cuda.max_memory_allocated`."""
    reserved_peak_bytes: int
    """Taken from the device by the allocator: `torch.cuda.max_memory_reserved`."""
    allocated_end_bytes: int
    """In use after the last step, before the next one frees what this one leaves."""
    inactive_split_end_bytes: int
    """Free then, in segments that are in use: what `torch.cuda.empty_cache` cannot give back."""
    num_segments: int
    """Segments taken from the device; an expandable one counts once."""
    reserved_by_step_bytes: tuple[int, ...]
    """Reserved after each step until the steps are steady: it may grow in the first ones."""
    cublas_workspace_bytes: int
    """Of all handles together; in the allocated bytes."""
    cudnn_workspace_bytes: int
    """In the allocated bytes."""
    context_bytes: int
    """The CUDA context and loaded kernels: an assumption, in no figure but the total."""
    num_retries: int = 0
    """Requests for which cached segments had to be given back to a device that was full."""
    is_out_of_memory: bool = False
    """Whether a request failed: then all figures are of the time until then."""

    @property
    def fragmentation_bytes(self) -> int:
        """Reserved at its peak, less allocated at its own."""
        return self.reserved_peak_bytes - self.allocated_peak_bytes

    @property
    def total_bytes(self) -> int:
        """What a device must have for the run."""
        return self.reserved_peak_bytes + self.context_bytes

    @property
    def is_steady(self) -> bool:
        """Whether the last step took nothing more from the device than the one before."""
        return len(set(self.reserved_by_step_bytes[-2:])) == 1 < len(self.reserved_by_step_bytes)
