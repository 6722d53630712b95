"""Facts about operators that several passes ask for.

Source: onnxruntime/core/optimizer/utils.cc, ``IsOperationDeterministic``.
"""

_RANDOM = frozenset(
    "RandomUniform RandomNormal RandomUniformLike RandomNormalLike Multinomial Dropout".split()
)
_DETERMINISTIC_OF_MICROSOFT = frozenset({"QuantizeLinear", "DequantizeLinear"})


def is_deterministic(domain: str, op_type: str) -> bool:
    """Whether an operator computes the same of the same inputs, as far as onnxruntime says."""
    if domain == "com.microsoft":
        return op_type in _DETERMINISTIC_OF_MICROSOFT
    return not domain and op_type not in _RANDOM
