"""PyTorch on a CUDA device: its caching allocator, replayed without PyTorch or a device."""

from typing import TYPE_CHECKING

from onnxmem.late import late

if TYPE_CHECKING:
    from onnxmem.runtimes.torch.replaying import replay
    from onnxmem.runtimes.torch.settings import HOPPER_WORKSPACE_BYTES, TorchSettings
    from onnxmem.runtimes.torch.torch_memory import TorchMemory

__all__ = [
    "HOPPER_WORKSPACE_BYTES",
    "TorchMemory",
    "TorchSettings",
    "replay",
]

__getattr__ = late(
    __name__,
    {
        "onnxmem.runtimes.torch.replaying": ("replay",),
        "onnxmem.runtimes.torch.settings": ("HOPPER_WORKSPACE_BYTES", "TorchSettings"),
        "onnxmem.runtimes.torch.torch_memory": ("TorchMemory",),
    },
)
