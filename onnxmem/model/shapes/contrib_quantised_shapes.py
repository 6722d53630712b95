"""Shapes of onnxruntime's quantised operators (domain com.microsoft; ``quantization_defs.cc``)."""

from collections.abc import Callable, Mapping
from typing import Final

import onnx

from onnxmem.model.shapes.matrix_shapes import product
from onnxmem.model.shapes.node_facts import Found, NodeFacts, broadcast

_FLOAT, _INT32 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32
_GEMM_SCALE, _GEMM_ZERO_POINT = 7, 8
"""Places of what QGemm quantises its output by; without them it puts out floats."""


def _like_first(facts: NodeFacts) -> Found:
    return facts.outputs(facts.dims(0), elem_type=facts.elem_type(0))


def _quantised(facts: NodeFacts) -> Found:
    """x, scale, zero point -> x in the zero point's type."""
    return facts.outputs(facts.dims(0), elem_type=facts.elem_type(2))


def _dequantised(facts: NodeFacts) -> Found:
    """x, scale, zero point -> x in the scale's type."""
    return facts.outputs(facts.dims(0), elem_type=facts.elem_type(1))


def _broadcast(facts: NodeFacts) -> Found:
    """QLinearAdd and QLinearMul: operands stand first and fourth."""
    return facts.outputs(broadcast(facts.dims(0), facts.dims(3)), elem_type=facts.elem_type(0))


def _integer_product(facts: NodeFacts) -> Found:
    return facts.outputs(product(facts.dims(0), facts.dims(1)), elem_type=_INT32)


def _float_product(facts: NodeFacts) -> Found:
    """A product of quantised matrices, put out as floats."""
    return facts.outputs(product(facts.dims(0), facts.dims(1)), elem_type=_FLOAT)


def _gemm(facts: NodeFacts) -> Found:
    """A: [M, K] or transposed, B: [K, N] or transposed, at places 0 and 3 -> Y: [M, N]."""
    left, right = facts.dims(0), facts.dims(3)
    if left is None or right is None or len(left) != 2 or len(right) != 2:  # noqa: PLR2004
        return {}
    is_quantised = facts.has(_GEMM_SCALE) and facts.has(_GEMM_ZERO_POINT)
    elem_type = facts.elem_type(_GEMM_ZERO_POINT) if is_quantised else _FLOAT
    rows = left[1] if facts.integer("transA") else left[0]
    columns = right[0] if facts.integer("transB") else right[1]
    return facts.outputs((rows, columns), elem_type=elem_type)


def _lstm(facts: NodeFacts) -> Found:
    """X: [S, B, I], R: [D, H, 4H] -> Y: [S, D, B, H], Y_h and Y_c: [D, B, H]."""
    data, recurrence = facts.dims(0), facts.dims(2)
    if data is None or recurrence is None or len(data) != 3 or len(recurrence) != 3:  # noqa: PLR2004
        return {}
    steps, batch = data[:2]
    directions, hidden = recurrence[:2]
    last = (directions, batch, hidden)
    return facts.outputs(
        (steps, directions, batch, hidden), last, last, elem_type=facts.elem_type(0)
    )


def _embedding(facts: NodeFacts) -> Found:
    """Ids: [B, S], words: [V, H] at place 2 -> [B, S, H], floats; the mask's sums: [B]."""
    ids, words = facts.dims(0), facts.dims(2)
    if ids is None or words is None or len(words) != 2:  # noqa: PLR2004
        return {}
    found = facts.outputs(None, ids[:1], elem_type=_INT32)
    return found | facts.outputs((*ids, words[1]), elem_type=_FLOAT)


QUANTISED_RULES: Final[Mapping[str, Callable[[NodeFacts], Found]]] = {
    "DequantizeLinear": _dequantised,
    "DynamicQuantizeLSTM": _lstm,
    "DynamicQuantizeMatMul": _float_product,
    "MatMulInteger16": _integer_product,
    "MatMulIntegerToFloat": _float_product,
    "QEmbedLayerNormalization": _embedding,
    "QGemm": _gemm,
    "QLinearAdd": _broadcast,
    "QLinearLeakyRelu": _like_first,
    "QLinearMul": _broadcast,
    "QLinearSigmoid": _like_first,
    "QuantizeLinear": _quantised,
}
