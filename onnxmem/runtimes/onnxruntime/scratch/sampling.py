"""Operators of few users: random draws, support vectors, convolutions over characters."""

from onnxmem.runtimes.onnxruntime.kernel_use import Use
from onnxmem.runtimes.onnxruntime.scratch.rule import Rule

_FLOAT = 4
_DOUBLE = 8


def _multinomial(use: Use) -> tuple[int, ...]:
    """X: [B, C]: the cumulated probabilities of one sample."""
    return (_DOUBLE * use.dims(0)[1],)


def _support_vectors(use: Use) -> tuple[int, ...]:
    """X: [N, F]: the kernel's value of each sample at each support vector."""
    return (_FLOAT * use.dims(0)[0] * use.integer("n_supports", 0),)


def _characters(use: Use) -> tuple[int, ...]:
    """words: [S, L], W: [E, 1, K, C]: the length of each word, its characters' vectors, the
    windows, and the convolution's output twice: before and after the activation.
    """
    (words, length), (filters, _, window, size) = use.dims(0), use.dims(1)
    places = length - window + 1
    each = (length * size, places * window * size, places * filters, places * filters)
    return (_FLOAT * words, *(_FLOAT * words * count for count in each))


RULES = (
    Rule("Multinomial", "", _multinomial, "core/providers/cpu/generator/random.cc: Compute"),
    Rule("SVMRegressor", "ai.onnx.ml", _support_vectors, "core/providers/cpu/ml/svmregressor.cc"),
    Rule(
        "WordConvEmbedding",
        "com.microsoft",
        _characters,
        "contrib_ops/cpu/word_conv_embedding.cc: Compute",
    ),
)
