"""Which operators onnxruntime's CPU provider runs at all, and which of them in half precision.

Source: onnxruntime 1.31.1, ``get_all_opkernel_def()``; ``tools/optimiser_truth.py kernels`` prints
the lists. An operator without a kernel is replaced by the nodes of its ONNX function body; one
without a kernel of its type runs in float32 between casts.
"""

from typing import Final

from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimiser.matching import BFLOAT16, FLOAT16, MICROSOFT

WITHOUT_KERNEL: Final = frozenset(
    "Bernoulli CastLike CausalConvWithState CenterCropPad GroupNormalization HardSwish "
    "ImageDecoder LinearAttention Mish NegativeLogLikelihoodLoss SequenceMap "
    "SoftmaxCrossEntropyLoss SwiGLU Swish".split()
)
"""ONNX operators that no CPU kernel runs in any type."""

_HALF_TYPES: Final = frozenset(
    "Cast Compress Concat ConcatFromSequence ConstantOfShape Flatten Gather GatherElements "
    "GatherND Identity If Loop Optional OptionalGetElement OptionalHasElement RandomNormalLike "
    "RandomUniformLike Reshape ReverseSequence Scan Scatter ScatterElements ScatterND SequenceAt "
    "SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Shrink Sign "
    "SimplifiedLayerNormalization Slice Split Squeeze TensorScatter Transpose Unsqueeze "
    "LayerNormalization".split()
)
"""With kernels for float16 and bfloat16."""

_FLOAT16: Final = frozenset(
    "Attention Clip DequantizeLinear Dropout Expand Max Min Mod QuantizeLinear RMSNormalization "
    "RotaryEmbedding Round SplitToSequence".split()
)
_FIRST_VERSION: Final = {
    "Clip": 12,
    "DequantizeLinear": 19,
    "IsInf": 20,
    "Max": 12,
    "Min": 12,
    "QuantizeLinear": 19,
}
"""Version from which float16 is among the kernel's types, where it was not from the start."""

_MICROSOFT_HALF: Final = frozenset(
    "ExpandDims GatherND SkipLayerNormalization SkipSimplifiedLayerNormalization "
    "UnfoldTensor ".split()
)
_MICROSOFT_FLOAT16: Final = frozenset(
    "GatherBlockQuantized GroupQueryAttention Inverse MRotaryEmbedding MatMulNBits QMoE "
    "RotaryEmbedding SparseAttention".split()
)
_ONNX_LAST_DROPOUT: Final = 11
"""Later versions of Dropout have no kernel for float16."""


_ARM_FLOAT16: Final = {
    **dict.fromkeys(("Add", "Div", "Mul", "Sub"), 14),
    **dict.fromkeys(("AveragePool", "Conv"), 11),
    **dict.fromkeys(("LeakyRelu", "Relu"), 6),
    "Erf": 13,
    "Gelu": 20,
    "Gemm": 7,
    "GlobalAveragePool": 1,
    "MatMul": 1,
    "MaxPool": 8,
}
"""Version from which ARM processors with half-precision arithmetic have a kernel for float16.

Source: ``get_all_opkernel_def()`` of onnxruntime 1.32.0 for aarch64, on an emulated Neoverse N1.
"""


def has_kernel(graph: Graph, node: Node) -> bool:
    """Whether a CPU kernel runs a node as it stands."""
    if node.is_unassigned or (not node.domain and node.op_type in WITHOUT_KERNEL):
        return False
    halves = {graph.elem_type_of(name) for name in (*node.inputs, *node.outputs) if name}
    halves &= {FLOAT16, BFLOAT16}
    return all(_runs(node, half) or _runs_on_arm(graph, node, half) for half in halves)


def _runs_on_arm(graph: Graph, node: Node, half: int) -> bool:
    if not graph.cpu.is_arm or half != FLOAT16:
        return False
    if node.domain == MICROSOFT:
        return node.op_type == "FusedConv"
    first = None if node.domain else _ARM_FLOAT16.get(node.op_type)
    return first is not None and node.since_version >= first


def _runs(node: Node, half: int) -> bool:
    if node.domain == MICROSOFT:
        is_both = node.op_type in _MICROSOFT_HALF
        return is_both or (half == FLOAT16 and node.op_type in _MICROSOFT_FLOAT16)
    if node.domain:
        return False
    if node.op_type in _HALF_TYPES:
        return True
    if half != FLOAT16:
        return node.op_type in {"IsInf", "IsNaN"} and node.since_version >= _FIRST_VERSION["IsInf"]
    if node.op_type == "Dropout":
        return node.since_version <= _ONNX_LAST_DROPOUT
    is_known = node.op_type in _FLOAT16 or node.op_type in {"IsInf", "IsNaN"}
    return is_known and node.since_version >= _FIRST_VERSION.get(node.op_type, 1)
