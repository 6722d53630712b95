"""Which figure of a model is compared with a device's memory.

``process`` is what the program takes, and what counts with ``--train`` or ``--runtime``:

1. Training on a GPU: what PyTorch's caching allocator reserves, and the CUDA context. Training
   elsewhere: the peak of the step, for no allocator of a CPU is modelled.
2. Running: what onnxruntime takes on the CPU (its whole process) or on CUDA (its arena after three
   runs, cuDNN's workspace and the context).

``tensors`` is what the tensors take: the peak of the step, or weights + inputs + in-place peak; on
a microcontroller inputs + in-place peak, weights being in flash.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from onnxmem.errors import UsageError


class Basis(StrEnum):
    """The figure that is compared with memory."""

    TORCH = "pytorch-cuda"
    STEP = "training-peak"
    ORT_CPU = "ort-cpu"
    ORT_CUDA = "ort-cuda"
    TOTAL = "total"
    MCU = "activations"


class RuntimeBasis(str):
    """What a runtime takes that was given as an object, by its name."""

    __slots__ = ()

    @property
    def value(self) -> str:
        """The name, as that of a ``Basis``."""
        return str(self)


AnyBasis = Basis | RuntimeBasis


class _Descriptions(dict[AnyBasis, str]):
    def __missing__(self, basis: AnyBasis) -> str:
        return f"what {basis.value} reserves by its allocator, and its overheads"


BASES: Final[Mapping[AnyBasis, str]] = _Descriptions(
    {
        Basis.TORCH: "reserved by PyTorch's allocator on CUDA, and the CUDA context",
        Basis.STEP: "peak of the training step; no allocator of this device is modelled",
        Basis.ORT_CPU: "process_bytes of onnxruntime on CPU: the whole process",
        Basis.ORT_CUDA: "arena of onnxruntime on CUDA after three runs, workspace and context",
        Basis.TOTAL: "weights + inputs + in-place peak; no runtime's overhead is in it",
        Basis.MCU: "inputs + in-place peak in RAM; weights are taken to lie in flash",
    }
)
"""What each is, in words."""


def basis_named(name: str) -> AnyBasis:
    """The basis of a name; one that is not built in is a runtime's."""
    return Basis(name) if name in set(Basis) else RuntimeBasis(name)


def basis_for(
    kind: str | None, *, train: bool, runtime: str | None, basis: str | None = None
) -> AnyBasis:
    """Choose the figure for a kind of device; ``None`` is a bare size.

    ``basis`` is ``tensors`` or ``process``; ``None``: ``process`` where a training or a runtime is
    named.

    :raises UsageError: the process of a run without a runtime.

    >>> basis_for("cpu", train=False, runtime="ort-cpu").value
    'ort-cpu'
    """
    if basis == "tensors" or (basis is None and not train and runtime in {None, "none"}):
        tensors = Basis.MCU if kind == "mcu" else Basis.TOTAL
        return Basis.STEP if train else tensors
    if train:
        return Basis.STEP if kind in {"cpu", "mcu"} else Basis.TORCH
    if runtime in {None, "none"}:
        message = "--basis process: name whose process, by --runtime or --train"
        raise UsageError(message)
    return basis_named(runtime)
