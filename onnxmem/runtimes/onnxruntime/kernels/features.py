"""Classical machine learning (``ai.onnx.ml``), text and hashing.

Strings are allocated outside the arena.
"""

from onnxmem.runtimes.onnxruntime.kernels.kernel import FLOAT_BYTES, Kernel, KernelCall, nothing


def _support_vectors(call: KernelCall) -> tuple[int, ...]:
    """X: [N, F]: the kernel function of each sample and each support vector."""
    return (FLOAT_BYTES * call.dims(0)[0] * call.integer("n_supports", 0),)


def _characters(call: KernelCall) -> tuple[int, ...]:
    """words: [S, L], W: [E, 1, K, C]: the length of each word, the embeddings of its characters,
    the windows, and the outputs of the convolution before and after the activation.
    """
    # ComputeConvMaxPoolWithActivation: windows are written out for all words at once, as if each
    # had the full length, and one product multiplies those that are in use.
    (words, length), (filters, _, window, size) = call.dims(0), call.dims(1)
    windows = length - window + 1
    each = (length * size, windows * window * size, windows * filters, windows * filters)
    return (FLOAT_BYTES * words, *(FLOAT_BYTES * words * count for count in each))


KERNELS = (
    Kernel(
        "ai.onnx.ml.SVMRegressor",
        "core/providers/cpu/ml/svmregressor.cc: Compute",
        _support_vectors,
    ),
    Kernel(
        "ai.onnx.ml.ArrayFeatureExtractor ai.onnx.ml.Binarizer ai.onnx.ml.FeatureVectorizer"
        " ai.onnx.ml.Imputer ai.onnx.ml.LabelEncoder ai.onnx.ml.LinearClassifier"
        " ai.onnx.ml.LinearRegressor ai.onnx.ml.Normalizer ai.onnx.ml.OneHotEncoder"
        " ai.onnx.ml.Scaler ai.onnx.ml.TreeEnsemble",
        "core/providers/cpu/ml: Compute",
        nothing,
    ),
    Kernel(
        "RegexFullMatch StringConcat StringNormalizer StringSplit",
        "core/providers/cpu/text: Compute",
        nothing,
    ),
    Kernel("TfIdfVectorizer", "core/providers/cpu/nn/tfidfvectorizer.cc: Compute", nothing),
    Kernel(
        "com.microsoft.NGramHashMapping com.microsoft.VarlenNGramHashMapping",
        "contrib_ops/cpu/bert/ngram_hash_mapping.cc, varlen_ngram_hash_mapping.cc: Compute",
        nothing,
    ),
    Kernel("com.microsoft.MurmurHash3 com.microsoft.SampleOp", "contrib_ops/cpu: Compute", nothing),
    Kernel(
        "com.microsoft.WordConvEmbedding",
        "contrib_ops/cpu/word_conv_embedding.cc: Compute",
        _characters,
    ),
)
