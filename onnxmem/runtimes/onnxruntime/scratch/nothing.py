"""Operators whose CPU kernels take nothing from the arena for themselves.

Their kernels ask for no temporary space (``GetTempSpaceAllocator``), or hold what they need outside
the arena: reductions and TopK in vectors, matrix products in MLAS's own buffers, ScatterElements
and GatherND in vectors of offsets.
"""

from collections.abc import Mapping

from onnxmem.runtimes.onnxruntime.kernel_use import Use
from onnxmem.runtimes.onnxruntime.scratch.rule import Rule

_OPERATORS: Mapping[tuple[str, str], str] = {
    ("", "core/providers/cpu/math, activation: element-wise kernels"): """
        Abs Acos Acosh Add And Asin Asinh Atan Atanh BitCast BitShift BitwiseAnd BitwiseNot
        BitwiseOr BitwiseXor Cast Ceil Celu Clip Cos Cosh DequantizeLinear Div Dropout
        DynamicQuantizeLinear Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual
        HardSigmoid Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Mod Mul Neg Not Or
        PRelu Pow QuantizeLinear Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh
        Softplus Softsign Sqrt Sub Tan Tanh ThresholdedRelu Xor""",
    ("", "core/providers/cpu/tensor: copies and views"): """
        AffineGrid Col2Im Compress Concat ConstantOfShape DepthToSpace Expand EyeLike
        Flatten Gather GatherElements GatherND GridSample NonZero OneHot Optional
        OptionalGetElement OptionalHasElement Pad Range Reshape ReverseSequence Scatter
        ScatterElements ScatterND Shape Size Slice SpaceToDepth Split Squeeze TensorScatter
        Tile Transpose Trilu Unique Unsqueeze""",
    ("", "core/providers/cpu/reduction/reduction_ops.cc"): """
        ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
        ReduceMin ReduceProd ReduceSum ReduceSumSquare""",
    ("", "core/providers/cpu/math: MLAS works in buffers of its own"): """
        CumProd CumSum Det Gemm MatMul MatMulInteger TopK""",
    ("", "core/providers/cpu/nn, object_detection"): """
        AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool InstanceNormalization
        LpNormalization LpPool MaxPool MaxRoiPool MaxUnpool NonMaxSuppression RoiAlign
        TfIdfVectorizer""",
    ("", "core/providers/cpu/llm/rotary_embedding.cc"): "RotaryEmbedding",
    ("", "core/providers/cpu/generator, signal/window_functions.cc"): """
        BlackmanWindow HammingWindow HannWindow MelWeightMatrix RandomNormal
        RandomNormalLike RandomUniform RandomUniformLike""",
    ("", "core/providers/cpu/text: strings lie outside the arena"): """
        RegexFullMatch StringConcat StringNormalizer StringSplit""",
    ("", "core/providers/cpu/controlflow: what a body takes is its nodes'"): "If Loop",
    ("ai.onnx.ml", "core/providers/cpu/ml"): """
        ArrayFeatureExtractor Binarizer FeatureVectorizer Imputer LabelEncoder
        LinearClassifier LinearRegressor Normalizer Scaler TreeEnsemble""",
    ("com.microsoft", "contrib_ops/cpu"): """
        BifurcationDetector CDist CropAndResize DequantizeLinear DynamicTimeWarping
        EmbedLayerNormalization ExpandDims FusedGemm FusedMatMul GatherND Gelu GridSample
        Inverse MatMulIntegerToFloat MaxpoolWithMask MurmurHash3 NGramRepeatBlock Pad
        QEmbedLayerNormalization QLinearAdd QLinearConcat QLinearGlobalAveragePool
        QLinearLeakyRelu QLinearMul QLinearSigmoid QuantizeLinear QuickGelu Range
        RotaryEmbedding SampleOp ScaledSiLU TransposeMatMul Trilu UnfoldTensor Unique""",
    ("com.microsoft.nchwc", "contrib_ops/cpu/nchwc_ops.cc"): """
        AveragePool Conv GlobalAveragePool GlobalMaxPool MaxPool ReorderInput ReorderOutput
        Upsample""",
}


def _nothing(use: Use) -> tuple[int, ...]:  # noqa: ARG001 - a rule like any other
    return ()


RULES = tuple(
    Rule(op_type, domain, _nothing, source)
    for (domain, source), names in _OPERATORS.items()
    for op_type in names.split()
)
