"""Precisions: how many bytes an element takes in each of its places during training.

A precision speaks of floating elements of at most 32 bits, whatever the file stores; float64,
integers and truth values keep their size.

- ``fp32``: everything float32.
- ``mixed-fp16``, ``mixed-bf16``: as PyTorch's autocast does it on a GPU. Weights, gradients and
  optimizer state are float32. Each operator's list (``autocast.py``) decides what its operands are
  cast to: products read 16 bits, softmax, the normalisations and the loss float32, all else what
  it is given. One 16-bit copy of each parameter that products read is held through the forward
  pass and the loss, and then as long as a backward formula reads it; a parameter's gradient is
  made in 16 bits and cast. The scaler's few bytes are left out.
- ``bf16``: weights, gradients, state and activations all bfloat16, no float32 master copy.
- ``fp16-master``, ``bf16-master``: weights, gradients and activations of 16 bits, and an optimizer
  that keeps a float32 copy of the weights, with float32 state, and steps that one: Apex O2,
  DeepSpeed, Megatron. It reads float32 copies of the gradients. They replace those of 16 bits
  tensor by tensor before the step, as in Megatron's ``_copy_model_grads_to_main_grads``, and are
  gone after it; DeepSpeed's ``FP16_Optimizer`` flattens its own, for a moment with the copies too.
  Gradients that are added up in float32 from pass to pass are no part of this: 20 bytes then.

Per parameter with Adam, without activations, between forward and backward: 16 bytes, in mixed
precision up to 2 more for its copy, 8, and 16; with masters 18 while the optimizer steps, and its
temporaries.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from onnxmem.errors import UsageError
from onnxmem.model.graph import DType, Tensor
from onnxmem.ops.spec import Operand

_CASTABLE = frozenset(
    dtype
    for dtype in DType
    if dtype.is_floating and dtype.bits and dtype.bits <= 32  # noqa: PLR2004
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bits per floating element, by what it is."""

    name: str
    weight_bits: int
    """Of parameters and floating buffers and their gradients."""
    activation_bits: int
    """Of what no cast of autocast changes."""
    loss_bits: int
    master_bits: int = 0
    """Of the copy of the parameters that the optimizer steps; 0 where it steps the weights."""
    autocast: DType | None = None
    """The type that autocast lowers to, where it is on."""
    autocast_device: str = "cuda"
    """Whose lists autocast goes by: a key of ``autocast.LISTS``."""
    source: str

    @property
    def stepped_bits(self) -> int:
        """Of what the optimizer works on: its state, its temporaries, its gradients in the step."""
        return self.master_bits or self.weight_bits

    def bits_in_step(self, tensor: Tensor) -> int | None:
        """Bits per element of a tensor in a pass; under autocast its type says them."""
        dtype = tensor.dtype
        if self.autocast is None and dtype in _CASTABLE:
            return self.activation_bits
        return dtype.bits if dtype else None


def is_castable(tensor: Tensor) -> bool:
    """Whether a precision, and autocast, speak of a tensor's type."""
    return tensor.dtype in _CASTABLE


def held(tensor: Tensor, bits: int) -> Operand:
    """A tensor with elements of ``bits``, where precisions speak of its type."""
    known = bits if is_castable(tensor) else tensor.operand().bits
    return Operand(tensor.shape, known)


_MASTER = "ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054), section 3.1: 2 + 2 + 12 with Adam"
_AUTOCAST = "torch.amp.autocast: float32 parameters, casts cached while it is on"

_ALL = (
    Precision(
        name="fp32",
        weight_bits=32,
        activation_bits=32,
        loss_bits=32,
        source="one type throughout",
    ),
    Precision(
        name="mixed-fp16",
        weight_bits=32,
        activation_bits=32,
        loss_bits=32,
        autocast=DType.FLOAT16,
        source=_AUTOCAST,
    ),
    Precision(
        name="mixed-bf16",
        weight_bits=32,
        activation_bits=32,
        loss_bits=32,
        autocast=DType.BFLOAT16,
        source=_AUTOCAST,
    ),
    Precision(
        name="bf16",
        weight_bits=16,
        activation_bits=16,
        loss_bits=16,
        source="one type throughout",
    ),
    Precision(
        name="fp16-master",
        weight_bits=16,
        activation_bits=16,
        loss_bits=32,
        master_bits=32,
        source=_MASTER,
    ),
    Precision(
        name="bf16-master",
        weight_bits=16,
        activation_bits=16,
        loss_bits=32,
        master_bits=32,
        source=_MASTER,
    ),
)

_OLD_LISTS = frozenset({"1.12", "2.0"})
"""Releases whose lists of autocast are shorter."""

PRECISIONS: Mapping[str, Precision] = MappingProxyType({known.name: known for known in _ALL})


def precision_named(name: str, torch: str = "latest") -> Precision:
    """Find a precision, as a release of PyTorch has it.

    :raises UsageError: there is none of that name.
    """
    if name not in PRECISIONS:
        message = f"precision {name!r}: not known; one of {', '.join(PRECISIONS)}"
        raise UsageError(message)
    found = PRECISIONS[name]
    if torch in _OLD_LISTS and found.autocast_device == "cuda":
        return replace(found, autocast_device="cuda of 2.0")
    return found
