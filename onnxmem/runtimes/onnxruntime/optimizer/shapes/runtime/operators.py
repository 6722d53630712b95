"""Which rule gives the shapes of which operator of onnxruntime's own.

Source: onnxruntime/core/graph/contrib_ops/*.cc, the ``TypeAndShapeInferenceFunction`` of each
schema. Of an operator without a rule here the static shapes count, as far as those are known.
"""

from collections.abc import Callable, Mapping
from typing import Final

from onnxmem.model.shapes.microsoft import microsoft_types
from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    FLOAT,
    INT32,
    MICROSOFT,
    NCHWC,
    UINT8,
)
from onnxmem.runtimes.onnxruntime.optimizer.reading import write_node
from onnxmem.runtimes.onnxruntime.optimizer.shapes.runtime import attention, products, windows
from onnxmem.runtimes.onnxruntime.optimizer.shapes.runtime.broadcasting import broadcast
from onnxmem.runtimes.onnxruntime.optimizer.value_types import (
    Dims,
    TensorType,
    ValueType,
    merged_dims,
    read_type,
    write_type,
)

Rule = Callable[[Graph, Node], Dims | None]
"""The dims of the first output."""


def _same(graph: Graph, node: Node) -> Dims | None:
    return graph.dims_of(node.input_at(0))


def _unknown(graph: Graph, node: Node) -> None:
    """Onnxruntime has no shapes for it, though they would follow."""


def _broadcast(graph: Graph, node: Node, one: int, other: int) -> Dims | None:
    return broadcast(graph.dims_of(node.input_at(one)), graph.dims_of(node.input_at(other)))


def _where(graph: Graph, node: Node) -> Dims | None:
    return broadcast(graph.dims_of(node.input_at(0)), _broadcast(graph, node, 1, 4))


def _concat(graph: Graph, node: Node) -> Dims | None:
    """Parts stand behind the scale and zero point of the result, each with its own two."""
    parts = [graph.dims_of(name) for name in node.inputs[2::3]]
    known = [part for part in parts if part]
    if not known or len(known) < len(parts):
        return None
    axis = integer(node, "axis") % len(known[0])
    sizes = [part[axis] for part in known if axis < len(part)]
    whole = [size for size in sizes if isinstance(size, int)]
    total = sum(whole) if len(whole) == len(parts) else None
    joined: Dims | None = known[0]
    for part in known:
        joined = joined and merged_dims(_at(part, axis, None), _at(joined, axis, None))
    return joined and _at(joined, axis, total)


def _at(dims: Dims, axis: int, dim: int | None) -> Dims:
    return (*dims[:axis], dim, *dims[axis + 1 :])


def _summed(graph: Graph, node: Node) -> Mapping[int, TensorType]:
    """The sum that is normalised, shaped like the first input."""
    return {3: TensorType(graph.elem_type_of(node.inputs[0]), _same(graph, node))}


def _statistics(graph: Graph, node: Node) -> Mapping[int, TensorType]:
    """Mean and 1 / deviation of a LayerNormalization."""
    dims = _same(graph, node)
    if dims is None:
        return {}
    axis = integer(node, "axis", -1) % max(len(dims), 1)
    made = TensorType(FLOAT, (*dims[:axis], *(1 for _ in dims[axis:])))
    return {1: made, 2: made}


_PLAIN: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(
        (
            "BiasDropout BiasGelu BiasSoftmax DequantizeLinear FastGelu Gelu Inverse "
            "QLinearLeakyRelu QLinearSigmoid QLinearSoftmax QuantizeLinear QuickGelu "
            "RotaryEmbedding SkipLayerNormalization SkipSimplifiedLayerNormalization Trilu"
        ).split(),
        _same,
    ),
    "Attention": attention.attention,
    "CDist": _unknown,
    "DynamicQuantizeMatMul": lambda g, n: products.matmul_of(g, n, 0, 1),
    "EmbedLayerNormalization": attention.embedded,
    "FusedConv": windows.convolved,
    "FusedGemm": products.gemm,
    "FusedMatMul": products.fused_matmul,
    "GroupQueryAttention": attention.attention_of_groups,
    "MatMulInteger16": lambda g, n: products.matmul_of(g, n, 0, 1),
    "MatMulIntegerToFloat": lambda g, n: products.matmul_of(g, n, 0, 1),
    "MatMulNBits": products.blocked,
    "MultiHeadAttention": attention.attention_of_heads,
    "NhwcMaxPool": lambda g, n: windows.pooled(g, n, "MaxPool"),
    "QAttention": attention.attention,
    "QGemm": lambda g, n: products.gemm(g, n, 3),
    "QLinearAdd": lambda g, n: _broadcast(g, n, 0, 3),
    "QLinearAveragePool": lambda g, n: windows.pooled(g, n, "AveragePool"),
    "QLinearConcat": _concat,
    "QLinearConv": lambda g, n: windows.convolved(g, n, 3),
    "QLinearGlobalAveragePool": lambda g, n: windows.pooled(g, n, "GlobalAveragePool"),
    "QLinearMul": lambda g, n: _broadcast(g, n, 0, 3),
    "QLinearWhere": _where,
}
_BLOCKED: Final[Mapping[str, Rule]] = {
    "AveragePool": lambda g, n: windows.pooled(g, n, "AveragePool"),
    "Conv": windows.convolved,
    "GlobalAveragePool": lambda g, n: windows.pooled(g, n, "GlobalAveragePool"),
    "GlobalMaxPool": lambda g, n: windows.pooled(g, n, "GlobalMaxPool"),
    "MaxPool": lambda g, n: windows.pooled(g, n, "MaxPool"),
    "ReorderInput": windows.reordered_in,
    "ReorderOutput": windows.reordered_out,
    "Upsample": windows.upsampled,
}
_OWN: Final[Mapping[str, Rule]] = {
    "LayerNormalization": _same,
    "SimplifiedLayerNormalization": _same,
}
"""Of ONNX's domain, where ONNX has no such operator, or not yet."""
_RULES: Final[Mapping[str, Mapping[str, Rule]]] = {MICROSOFT: _PLAIN, NCHWC: _BLOCKED, "": _OWN}

_MORE: Final[Mapping[str, Callable[[Graph, Node], Mapping[int, TensorType]]]] = {
    "Attention": attention.attention_present,
    "EmbedLayerNormalization": attention.embedded_more,
    "GroupQueryAttention": attention.present_of_groups,
    "LayerNormalization": _statistics,
    "MultiHeadAttention": attention.present_of_heads,
    "SkipLayerNormalization": _summed,
    "SkipSimplifiedLayerNormalization": _summed,
}
"""Types of the outputs behind the first, by place."""

_TYPE_FROM: Final[Mapping[str, int]] = {
    "DequantizeLinear": 1,
    "EmbedLayerNormalization": 2,
    "MatMulIntegerToFloat": 2,
    "QAttention": 3,
    "QLinearConcat": 1,
    "QLinearWhere": 1,
    "QuantizeLinear": 2,
}
"""The input whose element type the first output has, where that is not the first."""

_ZERO_OF_RESULT = 8
"""Of QGemm; without it the result is as the scales are."""
_OWN_VERSION = 1


def runtime_types(graph: Graph, node: Node) -> dict[str, ValueType] | None:
    """Types of a node's outputs; ``None`` where onnx is to be asked for them."""
    rule = _RULES.get(node.domain, {}).get(node.op_type)
    if not node.domain and node.since_version != _OWN_VERSION:
        return None
    if rule is None:
        return _static(graph, node) if node.domain == MICROSOFT else None
    found = {0: TensorType(_elem_type(graph, node), rule(graph, node))}
    if node.op_type in _MORE:
        found.update(_MORE[node.op_type](graph, node))
    return {name: known for at, known in found.items() if (name := node.output_at(at))}


def _static(graph: Graph, node: Node) -> dict[str, ValueType]:
    """What follows from inputs of which every dim is known."""
    types = {name: known for name in node.inputs if (known := graph.type_of(name)) is not None}
    protos = {name: write_type(known) for name, known in types.items()}
    found = microsoft_types(write_node(node), protos)
    read = {name: read_type(proto) for name, proto in found.items()}
    return {name: known for name, known in read.items() if known is not None}


def _elem_type(graph: Graph, node: Node) -> int:
    if node.op_type == "QuantizeLinear" and not node.input_at(2):
        return UINT8
    if node.op_type == "MatMulInteger16":
        return INT32
    place = _TYPE_FROM.get(node.op_type, 0)
    if node.op_type == "QGemm" and not node.input_at(_ZERO_OF_RESULT):
        place = 1
    return graph.elem_type_of(node.input_at(place))
