"""Which figure of a model is held against a device's memory.

1. Training on a GPU: what PyTorch's caching allocator reserves, and the CUDA context, which is an
   assumption. Training elsewhere: the peak of the step, for no allocator of a CPU is modelled.
2. Running: what onnxruntime takes on the CPU (its whole process) or on CUDA (its arena after three
   runs, the context, and cuDNN's workspace where it is given), or weights + inputs + in-place peak.
3. On a microcontroller: inputs + in-place peak, weights being in flash.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Basis(StrEnum):
    """The figure that is held against memory."""

    TORCH = "pytorch-cuda"
    STEP = "training-peak"
    ORT_CPU = "ort-cpu"
    ORT_CUDA = "ort-cuda"
    TOTAL = "total"
    MCU = "activations"


BASES: Final[Mapping[Basis, str]] = MappingProxyType(
    {
        Basis.TORCH: "reserved by PyTorch's allocator on CUDA, and the CUDA context",
        Basis.STEP: "peak of the training step; no allocator of this device is modelled",
        Basis.ORT_CPU: "process_bytes of onnxruntime on CPU: the whole process",
        Basis.ORT_CUDA: "arena of onnxruntime on CUDA after three runs, and the CUDA context",
        Basis.TOTAL: "weights + inputs + in-place peak; no runtime's overhead is in it",
        Basis.MCU: "inputs + in-place peak in RAM; weights are taken to lie in flash",
    }
)
"""What each is, in words."""


def basis_for(kind: str | None, *, train: bool, runtime: str | None) -> Basis:
    """Choose the figure for a kind of device; ``None`` is a bare size.

    >>> basis_for("cpu", train=False, runtime=None).value
    'ort-cpu'
    """
    if train:
        return Basis.STEP if kind in {"cpu", "mcu"} else Basis.TORCH
    if runtime is not None:
        return Basis.TOTAL if runtime == "none" else Basis(runtime)
    by_kind = {"cuda": Basis.ORT_CUDA, "cpu": Basis.ORT_CPU, "mcu": Basis.MCU}
    return by_kind.get(kind or "", Basis.TOTAL)
