"""A training step as PyTorch runs it on a CUDA device: what it allocates, and what that takes.

In goes a graph and how it is trained; out comes the step's memory by phase, category and tensor,
and what PyTorch's allocator makes of it. ``step`` is where to begin reading.
"""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.runtimes.torch.batchnorm_peaks import batchnorm_range, range_finding
    from onnxmem.runtimes.torch.cuda import (
        HOPPER_WORKSPACE_BYTES,
        TorchMemory,
        TorchRuntime,
        TorchSettings,
        torch_memory,
    )
    from onnxmem.runtimes.torch.losses import LOSSES
    from onnxmem.runtimes.torch.memory import PeakRange, TrainingMemory
    from onnxmem.runtimes.torch.optimizers import OPTIMIZERS
    from onnxmem.runtimes.torch.precision import PRECISIONS
    from onnxmem.runtimes.torch.step import training_memory

__all__ = [
    "HOPPER_WORKSPACE_BYTES",
    "LOSSES",
    "OPTIMIZERS",
    "PRECISIONS",
    "PeakRange",
    "TorchMemory",
    "TorchRuntime",
    "TorchSettings",
    "TrainingMemory",
    "batchnorm_range",
    "range_finding",
    "torch_memory",
    "training_memory",
]

__getattr__ = late(
    __name__,
    {
        "onnxmem.runtimes.torch.batchnorm_peaks": ("batchnorm_range", "range_finding"),
        "onnxmem.runtimes.torch.cuda": (
            "HOPPER_WORKSPACE_BYTES",
            "TorchMemory",
            "TorchRuntime",
            "TorchSettings",
            "torch_memory",
        ),
        "onnxmem.runtimes.torch.losses": ("LOSSES",),
        "onnxmem.runtimes.torch.memory": ("PeakRange", "TrainingMemory"),
        "onnxmem.runtimes.torch.optimizers": ("OPTIMIZERS",),
        "onnxmem.runtimes.torch.precision": ("PRECISIONS",),
        "onnxmem.runtimes.torch.step": ("training_memory",),
    },
)
