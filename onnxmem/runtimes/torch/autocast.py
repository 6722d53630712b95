"""What ``torch.amp.autocast`` does with an operator's floating operands: its lists, as data.

Each list names the framework's operators; here stand the operators of ONNX that exporters write for
them (and the framework's own, for composites). An operator of no list runs in the type that its
operands promote to. float64, integers and truth values are never cast.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from onnxmem.runtimes.torch.matmul import PRODUCTS
from onnxmem.runtimes.torch.recurrent_layer import RECURRENT


class Policy(StrEnum):
    """How an operator's floating operands are cast."""

    LOWER = "lower_precision_fp"
    """To 16 bits."""
    FLOAT32 = "fp32"
    """To float32."""
    FLOAT32_RESULT = "fp32_set_opt_dtype"
    """Not at all: the kernel reads 16 bits and writes float32."""
    HALF_TO_FLOAT = "half_to_float"
    """The same where the 16 bits are float16; bfloat16 is cast (``softmax`` of
    aten/src/ATen/native/SoftMax.cpp), and the gradient comes in 16 bits at once."""
    PROMOTE = "promote"
    """To the widest among them."""


Lists = Mapping[str, Policy]
"""Policies by operator."""

_LOWERED = (*PRODUCTS, "PRelu")
_LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")


def _lists(*named: tuple[Policy, tuple[str, ...]]) -> Lists:
    return MappingProxyType({name: policy for policy, names in named for name in names})


CUDA_LISTS = _lists(
    # cuDNN's recurrent layers: `_cudnn_rnn_cast_reflatten` of aten/src/ATen/native/cudnn/RNN.cpp
    (Policy.LOWER, (*_LOWERED, *RECURRENT)),
    (Policy.FLOAT32, ("Acos", "Asin", "Cosh", "Exp", "Log", "Reciprocal", "Sinh", "Tan")),
    (Policy.FLOAT32, ("Pow", "ReduceLogSumExp", "Resize", "Softplus", "Upsample", "rsqrt")),
    (Policy.FLOAT32, ("GroupNormalization", "LayerNormalization", "RMSNormalization")),
    (Policy.FLOAT32, ("SimplifiedLayerNormalization", *_LOSSES)),
    # torchvision/csrc/ops/autocast/deform_conv2d_kernel.cpp; what casts its result back is left out
    (Policy.FLOAT32, ("DeformConv",)),
    # sum, prod, cumsum and vector norms; the last two divide by what norm and pow give
    (Policy.FLOAT32_RESULT, ("CumProd", "CumSum", "ReduceL1", "ReduceL2", "ReduceLogSum")),
    (Policy.FLOAT32_RESULT, ("ReduceProd", "ReduceSum", "ReduceSumSquare")),
    (Policy.FLOAT32_RESULT, ("LpNormalization", "LRN")),
    (Policy.HALF_TO_FLOAT, ("LogSoftmax", "Softmax")),
    (Policy.PROMOTE, ("GridSample", "ScatterND")),
)
"""Source: aten/src/ATen/autocast_mode.h, ``AT_FORALL_LOWER_PRECISION_FP`` and what follows it."""

CPU_LISTS = _lists(
    (Policy.LOWER, _LOWERED),
    (Policy.FLOAT32, ("GridSample", "ReduceProd", *_LOSSES)),
    (Policy.PROMOTE, ("Concat",)),
)
"""Source: aten/src/ATen/autocast_mode.cpp, ``TORCH_LIBRARY_IMPL(aten, AutocastCPU, m)``.

Recurrent layers run gate by gate there, and pools of volumes and reflecting pads go to float32:
neither is listed."""

_OLD_CUDA_LISTS = MappingProxyType(
    {name: policy for name, policy in CUDA_LISTS.items() if name not in {"Resize", "Upsample"}}
)
"""Before they had ``upsample_*``: libtorch_cpu of 2.0.1 and of 2.1.2 registers none for CUDA, that
of 2.5.1 does."""

LISTS: Mapping[str, Lists] = MappingProxyType(
    {"cuda": CUDA_LISTS, "cuda of 2.0": _OLD_CUDA_LISTS, "cpu": CPU_LISTS}
)
"""By device. Steps can be measured without a GPU by the CPU's; a product's user trains on a GPU."""
