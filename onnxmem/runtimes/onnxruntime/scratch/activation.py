"""Activations with a bias: the sum of the two is kept beside the output."""

from onnxmem.runtimes.onnxruntime.kernel_use import Use
from onnxmem.runtimes.onnxruntime.scratch.rule import Rule


def _biased(use: Use) -> tuple[int, ...]:
    """X, bias: as much as the output, where there is a bias."""
    return (use.size_bytes(0),) if use.has(1) else ()


RULES = (
    Rule("BiasGelu", "com.microsoft", _biased, "contrib_ops/cpu/bert/bias_gelu.cc: Compute"),
    Rule("FastGelu", "com.microsoft", _biased, "contrib_ops/cpu/bert/bias_gelu.cc: Compute"),
)
