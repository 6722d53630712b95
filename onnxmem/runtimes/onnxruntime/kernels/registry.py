"""The records of all kernels, and what they answer for one use of an operator.

Verified on onnxruntime 1.31.1 and 1.32.0 with one thread on an AVX-512 machine; a rule that depends
on MLAS, onnxruntime's library of kernels, and so on the CPU, says so.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from onnxmem.ops.spec import Call
from onnxmem.runtimes.onnxruntime.kernels import (
    attention,
    convolution,
    einsum,
    elementwise,
    features,
    matmul,
    normalization,
    recurrent,
    signal,
    tensor,
)
from onnxmem.runtimes.onnxruntime.kernels.kernel import (
    Kernel,
    KernelCall,
    KernelInfo,
    Scratch,
    UnknownError,
)

UNKNOWN: Final = Kernel("", "no record: what it takes is not known")
WITHOUT_KERNEL: Final = frozenset(
    "Bernoulli CastLike CausalConvWithState CenterCropPad GroupNormalization HardSwish "
    "ImageDecoder LinearAttention Mish NegativeLogLikelihoodLoss SequenceMap "
    "SoftmaxCrossEntropyLoss SwiGLU Swish".split()
)
"""ONNX operators that no CPU kernel runs in any type: each is replaced by the nodes of its ONNX
function body. Source: ``get_all_opkernel_def()`` of onnxruntime 1.31.1."""


def _join(families: Iterable[Iterable[Kernel]]) -> Mapping[tuple[str, str], Kernel]:
    """Records by domain and operator; one that is given twice is refused."""
    table: dict[tuple[str, str], Kernel] = {}
    for kernel in (kernel for family in families for kernel in family):
        for key in kernel.keys:
            if key in table:
                message = f"the kernel of {'::'.join(key)} is described twice"
                raise ValueError(message)
            table[key] = kernel
    return MappingProxyType(table)


KERNELS: Final = _join(
    (
        attention.KERNELS,
        convolution.KERNELS,
        einsum.KERNELS,
        elementwise.KERNELS,
        features.KERNELS,
        matmul.KERNELS,
        normalization.KERNELS,
        recurrent.KERNELS,
        signal.KERNELS,
        tensor.KERNELS,
    )
)


def kernel_of(op_type: str, domain: str = "") -> Kernel:
    """The record of an operator's kernel; ``UNKNOWN`` where there is none."""
    return KERNELS.get((domain, op_type), UNKNOWN)


_ANYWHERE: Final = KernelInfo()


def scratch(op_type: str, domain: str, call: Call, info: KernelInfo = _ANYWHERE) -> Scratch | None:
    """What one use of an operator takes; ``None`` where no rule or a needed shape is unknown."""
    try:
        taken = kernel_of(op_type, domain).scratch(KernelCall(call, info))
        # A rule may be a generator, which reads its shapes here.
        return taken if isinstance(taken, Scratch) else Scratch(tuple(filter(None, taken)))
    except (UnknownError, ValueError, IndexError, ArithmeticError):
        return None  # Ranks and counts that no kernel takes are as unknown as an open shape.
