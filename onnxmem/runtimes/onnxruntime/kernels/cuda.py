"""The kernels of the CUDA provider: their types, and the operands that stay in the host's memory.

Sources: docs/OperatorKernels.md of onnxruntime 1.31 for the operators and types, and the
registrations under ``core/providers/cuda`` and ``contrib_ops/cuda`` (``InputMemoryType``,
``OutputMemoryType``) for the operands. An operand on the host takes nothing of the CUDA arena: a
shape that a Reshape reads, for example, which a kernel needs before it can be launched.

A node without a kernel here runs on the CPU between copies, and in fewer cases one with a kernel
does too (``optimizer.placement``).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from onnxmem.runtimes.onnxruntime.kernels.kernel import ALWAYS, since

_NEVER: Final = range(0)
_BFLOAT16: Final = 16
_FLOATS: Final = frozenset({1, 10, 11})
"""Element types, as ``TensorProto.DataType`` numbers them: float, float16, double."""
_WIDE: Final = frozenset({6, 7, 12, 13})
"""Integers of 32 and 64 bits."""
_NUMBERS: Final = _FLOATS | _WIDE | {2, 3, 4, 5}
_FIXED: Final = _NUMBERS | {9}
"""All types whose elements have one size."""
_BOOL: Final = frozenset({9})


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """Kernels of the CUDA provider with the same types and operands on the host."""

    operators: str
    """Separated by spaces; those outside ONNX's own domain are prefixed by their domain."""
    types: Collection[int]
    """Element types of the operand that is checked, without bfloat16."""
    bfloat16: range = _NEVER
    """Versions of the operator that it runs in bfloat16."""
    host_inputs: tuple[int, ...] = ()
    host_outputs: tuple[int, ...] = ()
    versions: range = ALWAYS
    """Versions whose inputs these are."""
    checked: int = 0
    """The input whose type is checked."""

    def runs(self, version: int, elem_type: int) -> bool:
        """Whether it runs a version of the operator with a type; one that is not known passes."""
        if elem_type == _BFLOAT16:
            return version in self.bfloat16
        return not elem_type or elem_type in self.types


_SINCE_13: Final = since(13)
# Types by their numbers in `TensorProto.DataType`: 1 float, 2 uint8, 3 int8, 5 int16, 6 int32, 7
# int64, 9 bool, 10 float16, 11 double, 13 uint64, 16 bfloat16, 17 float8e4m3fn.
_KERNELS: Final = (
    # Element by element.
    CudaKernel("Abs Add Div Mul Sign Sub", _NUMBERS, _SINCE_13),
    CudaKernel("Neg", _FLOATS | {3, 5, 6, 7}, _SINCE_13),
    CudaKernel("Mod Max Min", _FLOATS | _WIDE, _SINCE_13),
    CudaKernel("Pow", _FLOATS | {6, 7}, _SINCE_13),
    CudaKernel("Erf Exp Relu Sigmoid Sqrt Sum Tanh", _FLOATS, _SINCE_13),
    CudaKernel("Gelu", _FLOATS, ALWAYS),
    CudaKernel("HardSigmoid HardSwish", _FLOATS, since(22)),
    CudaKernel(
        "Affine Ceil Cos Crop Elu Floor ImageScaler LeakyRelu Log PRelu ParametricSoftplus "
        "Reciprocal Round ScaledTanh Selu Sin Softplus Softsign ThresholdedRelu",
        _FLOATS,
    ),
    CudaKernel("Shrink", _NUMBERS),
    CudaKernel("Clip", _FLOATS | {2, 3, 7, 13}),
    CudaKernel("And Not Or Xor", _BOOL),
    CudaKernel("Equal", _FLOATS | _WIDE | _BOOL),
    CudaKernel("Greater GreaterOrEqual Less LessOrEqual", _FLOATS | _WIDE),
    CudaKernel("IsInf", _FLOATS, since(20)),
    CudaKernel("IsNaN", _FLOATS, _SINCE_13),
    CudaKernel("Where", _FLOATS | {2, 6, 7}, since(16), checked=1),
    CudaKernel("Cast", _FIXED, _SINCE_13),
    CudaKernel("Dropout", _FLOATS, _SINCE_13, host_inputs=(1, 2)),
    # Products, images, normalization, recurrent networks.
    CudaKernel("Gemm MatMul", _FLOATS, _SINCE_13),
    CudaKernel("MatMulInteger", {3}),
    CudaKernel("Conv AveragePool", _FLOATS, since(22)),
    CudaKernel(
        "BatchNormalization ConvTranspose DepthToSpace Einsum GlobalAveragePool GlobalMaxPool "
        "InstanceNormalization LRN SpaceToDepth",
        _FLOATS,
    ),
    CudaKernel("MaxPool", _FLOATS | {2, 3}),
    CudaKernel("GridSample", {1}),
    CudaKernel("RoiAlign", {1, 11}),
    CudaKernel("LayerNormalization RMSNormalization SimplifiedLayerNormalization", _FLOATS, ALWAYS),
    CudaKernel("Softmax", _FLOATS, _SINCE_13),
    CudaKernel("LogSoftmax", _FLOATS),
    CudaKernel("GRU LSTM RNN", _FLOATS),
    CudaKernel("Attention RotaryEmbedding", {1, 10}, ALWAYS),
    # Reductions.
    CudaKernel("ArgMax ArgMin", _FLOATS),
    CudaKernel("ReduceLogSum ReduceLogSumExp ReduceSumSquare", _FLOATS, host_inputs=(1,)),
    CudaKernel("ReduceL1 ReduceL2 ReduceMean ReduceProd", _FLOATS | {6}, host_inputs=(1,)),
    CudaKernel("ReduceMax", _FLOATS | {6, 7}, host_inputs=(1,)),
    CudaKernel("ReduceMin", _FLOATS | {2, 3, 6, 7}, host_inputs=(1,)),
    CudaKernel("ReduceSum", _FLOATS | {6, 7}, _SINCE_13, host_inputs=(1,)),
    CudaKernel("CumSum", _FLOATS | _WIDE, host_inputs=(1,)),
    CudaKernel("TopK", _FLOATS | {6, 7}, host_inputs=(1,)),
    # Tensors and their shapes.
    CudaKernel("Compress Concat Flatten GatherElements Identity Transpose", _FIXED, ALWAYS),
    CudaKernel("Gather ReverseSequence Scatter ScatterElements ScatterND", _FIXED, ALWAYS),
    CudaKernel("TensorScatter", _FIXED, ALWAYS),
    CudaKernel("GatherND", _FLOATS | {7, 9}, _SINCE_13),
    CudaKernel("EyeLike", {1, 6, 7, 11, 13}),
    CudaKernel("NonZero", {1, 2, 6, 7, 9, 10}),
    CudaKernel("OneHot", {6, 7}, host_inputs=(1,)),
    CudaKernel("Expand Reshape Split Squeeze Trilu Unsqueeze", _FIXED, ALWAYS, host_inputs=(1,)),
    CudaKernel("Slice DynamicSlice", _FIXED, ALWAYS, host_inputs=(1, 2, 3, 4)),
    CudaKernel("Tile", _FLOATS | {6, 7}, _SINCE_13, host_inputs=(1,)),
    CudaKernel("Pad", _FLOATS | _BOOL, host_inputs=(1, 2, 3)),
    CudaKernel("Resize Upsample", _FLOATS | {2, 6}, host_inputs=(1, 2, 3)),
    CudaKernel("ConstantOfShape", {7}, host_inputs=(0,)),
    CudaKernel("Range", {1, 5, 6, 7, 11}, host_inputs=(0, 1, 2)),
    CudaKernel("Shape", _FIXED, ALWAYS, host_outputs=(0,)),
    CudaKernel("Size", _FIXED | {8}, ALWAYS, host_outputs=(0,)),
    CudaKernel("RandomNormal RandomUniform", ()),
    CudaKernel("RandomNormalLike RandomUniformLike", _FIXED, ALWAYS),
    # Sequences and control flow: what they take and give is not one tensor's type.
    CudaKernel("ConcatFromSequence SequenceConstruct SequenceEmpty", _FIXED, ALWAYS),
    CudaKernel("SequenceAt SequenceErase", _FIXED, ALWAYS, host_inputs=(1,)),
    CudaKernel("SequenceInsert", _FIXED, ALWAYS, host_inputs=(2,)),
    CudaKernel("SequenceLength", _FIXED, ALWAYS, host_outputs=(0,)),
    CudaKernel("If", _BOOL, host_inputs=(0,)),
    CudaKernel("Loop", {7}, host_inputs=(0, 1)),
    CudaKernel("Scan", _FIXED, ALWAYS),
    # Quantized.
    CudaKernel("QuantizeLinear", {1}),
    CudaKernel("QuantizeLinear", {1, 10}, versions=since(19)),
    CudaKernel("DequantizeLinear", {2, 3}),
    CudaKernel("DequantizeLinear", {2, 3, 17, 19}, versions=range(19, 21)),
    CudaKernel("DequantizeLinear", {2, 3, 17, 19, 21, 22}, versions=since(21)),
    # onnxruntime's own.
    CudaKernel(
        "com.microsoft.BiasDropout com.microsoft.BitmaskBiasDropout",
        _FLOATS,
        ALWAYS,
        host_inputs=(3, 4),
    ),
    CudaKernel("com.microsoft.BitmaskDropout", _FLOATS, ALWAYS, host_inputs=(1, 2)),
    CudaKernel(
        "com.microsoft.BiasGelu com.microsoft.FastGelu com.microsoft.FusedMatMul "
        "com.microsoft.Gelu com.microsoft.QuickGelu com.microsoft.TransposeMatMul",
        _FLOATS,
        ALWAYS,
    ),
    CudaKernel(
        "com.microsoft.BiasSoftmax com.microsoft.Inverse com.microsoft.Irfft com.microsoft.Rfft",
        _FLOATS,
    ),
    CudaKernel("com.microsoft.FusedConv com.microsoft.GridSample", {1}),
    CudaKernel("com.microsoft.ConvTransposeWithDynamicPads", {1}, host_inputs=(2,)),
    CudaKernel(
        "com.microsoft.Attention com.microsoft.MatMulBnb4 com.microsoft.MatMulNBits "
        "com.microsoft.MoE com.microsoft.MultiHeadAttention com.microsoft.RotaryEmbedding "
        "com.microsoft.SkipLayerNormalization com.microsoft.SkipSimplifiedLayerNormalization",
        {1, 10},
        ALWAYS,
    ),
    CudaKernel(
        "com.microsoft.BiasAdd com.microsoft.BiasSplitGelu com.microsoft.ComplexMul "
        "com.microsoft.ComplexMulConj com.microsoft.DecoderAttention "
        "com.microsoft.GatedRelativePositionBias com.microsoft.GroupNorm "
        "com.microsoft.LongformerAttention com.microsoft.NhwcConv com.microsoft.PackedAttention "
        "com.microsoft.PackedMultiHeadAttention com.microsoft.QuantizeWithOrder "
        "com.microsoft.RemovePadding com.microsoft.RestorePadding com.microsoft.SkipGroupNorm",
        {1, 10},
    ),
    CudaKernel("com.microsoft.EmbedLayerNormalization", {6}),
    CudaKernel("com.microsoft.RelativePositionBias", {1, 10}, host_inputs=(1, 2)),
    CudaKernel(
        "com.microsoft.DecoderMaskedMultiHeadAttention com.microsoft.DecoderMaskedSelfAttention",
        {1, 10},
    ),
    CudaKernel("com.microsoft.GroupQueryAttention", {10}, ALWAYS, host_inputs=(6,)),
    CudaKernel("com.microsoft.SparseAttention", {10}, ALWAYS, host_inputs=(7,)),
    CudaKernel("com.microsoft.PagedAttention com.microsoft.QMoE", {10}, ALWAYS),
    CudaKernel("com.microsoft.GatherBlockQuantized", {2, 21, 22}),
    CudaKernel("com.microsoft.DequantizeLinear", {2, 3}),
    CudaKernel("com.microsoft.QuantizeLinear", {10}),
    CudaKernel("com.microsoft.QAttention com.microsoft.DequantizeWithOrder", {3}),
    CudaKernel("com.microsoft.NGramRepeatBlock", {7}),
    CudaKernel(
        "com.microsoft.BeamSearch com.microsoft.GreedySearch com.microsoft.Sampling "
        "com.microsoft.WhisperBeamSearch",
        {1, 6, 10},
    ),
    CudaKernel(
        "com.microsoft.QOrderedAttention com.microsoft.QOrderedGelu "
        "com.microsoft.QOrderedLayerNormalization com.microsoft.QOrderedLongformerAttention "
        "com.microsoft.QOrderedMatMul",
        {3},
    ),
    CudaKernel("com.microsoft.Trilu", _FIXED, ALWAYS, host_inputs=(1,)),
    CudaKernel("com.microsoft.UnfoldTensor", _FIXED, ALWAYS),
)


def _table() -> Mapping[tuple[str, str], tuple[CudaKernel, ...]]:
    table: dict[tuple[str, str], tuple[CudaKernel, ...]] = {}
    for kernel in _KERNELS:
        for name in kernel.operators.split():
            domain, _, op_type = name.rpartition(".")
            table[domain, op_type] = (*table.get((domain, op_type), ()), kernel)
    return MappingProxyType(table)


_BY_OPERATOR: Final = _table()


def cuda_kernel(domain: str, op_type: str, version: int) -> CudaKernel | None:
    """The CUDA kernel of a version of an operator, of several the newest; ``None``: none."""
    fitting = (
        kernel for kernel in _BY_OPERATOR.get((domain, op_type), ()) if version in kernel.versions
    )
    # Of several records that hold for a version, the newest.
    return max(fitting, key=lambda kernel: kernel.versions.start, default=None)
