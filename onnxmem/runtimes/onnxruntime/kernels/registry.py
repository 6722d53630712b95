"""The table of all kernels by operator, and the scratch of one node.

Verified on onnxruntime 1.31.1 and 1.32.0 with one thread on an AVX-512 machine. Rules that depend
on MLAS, onnxruntime's library of CPU kernels, state for which CPUs they hold.
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

UNKNOWN: Final = Kernel("", "no record: the scratch is unknown")
WITHOUT_KERNEL: Final = frozenset(
    "Bernoulli CastLike CausalConvWithState CenterCropPad GroupNormalization HardSwish "
    "ImageDecoder LinearAttention Mish NegativeLogLikelihoodLoss SequenceMap "
    "SoftmaxCrossEntropyLoss SwiGLU Swish".split()
)
"""ONNX operators without a CPU kernel for any type; onnxruntime inlines their function bodies.

Source: ``get_all_opkernel_def()`` of onnxruntime 1.31.1.
"""


def _join(families: Iterable[Iterable[Kernel]]) -> Mapping[tuple[str, str], Kernel]:
    """Records by domain and operator; duplicates are refused."""
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


def kernel_of(op_type: str, domain: str) -> Kernel:
    """The record of an operator's kernel; ``UNKNOWN`` if there is none."""
    return KERNELS.get((domain, op_type), UNKNOWN)


_DEFAULT: Final = KernelInfo()


def scratch(
    op_type: str, domain: str, call: Call, info: KernelInfo = _DEFAULT, *, on_cuda: bool = False
) -> Scratch | None:
    """The scratch of one node; ``None`` if its rule or a shape that the rule needs is unknown."""
    kernel = kernel_of(op_type, domain)
    rule = kernel.cuda_scratch if on_cuda else kernel.scratch
    try:
        allocated = rule(KernelCall(call, info))
        # A rule may be a generator, which raises only while it is consumed here.
        return (
            allocated if isinstance(allocated, Scratch) else Scratch(tuple(filter(None, allocated)))
        )
    except (UnknownError, ValueError, IndexError, ArithmeticError):
        return None  # Invalid ranks and counts, with which no kernel runs, count as unknown too.
