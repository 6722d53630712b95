"""Which rule gives the shapes of which operator of onnxruntime's own.

Source: onnxruntime/core/graph/contrib_ops/*.cc, the ``TypeAndShapeInferenceFunction`` of each
schema. An operator that is not listed has no known shapes.
"""

from collections.abc import Callable, Mapping
from typing import Final

from onnxmem.runtimes.onnxruntime.optimiser.attributes import integer
from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimiser.matching import FLOAT, INT32, MICROSOFT, NCHWC
from onnxmem.runtimes.onnxruntime.optimiser.shapes.runtime import products, windows
from onnxmem.runtimes.onnxruntime.optimiser.shapes.runtime.broadcasting import broadcast
from onnxmem.runtimes.onnxruntime.optimiser.value_types import Dims, TensorType, ValueType

Rule = Callable[[Graph, Node], Dims | None]


def _same(graph: Graph, node: Node) -> Dims | None:
    return graph.dims_of(node.input_at(0))


def _broadcast(graph: Graph, node: Node, one: int, other: int) -> Dims | None:
    return broadcast(graph.dims_of(node.input_at(one)), graph.dims_of(node.input_at(other)))


def _where(graph: Graph, node: Node) -> Dims | None:
    return broadcast(graph.dims_of(node.input_at(0)), _broadcast(graph, node, 1, 4))


def _concat(graph: Graph, node: Node) -> Dims | None:
    """Parts stand behind the scale and zero point of the result, each with its own two."""
    parts = [graph.dims_of(name) for name in node.inputs[2::3]]
    if not parts or any(part is None or len(part) != len(parts[0] or ()) for part in parts):
        return None
    known = [part for part in parts if part is not None]
    axis = integer(node, "axis") % len(known[0])
    joined = list(known[0])
    sizes = [part[axis] for part in known]
    whole = [size for size in sizes if isinstance(size, int)]
    joined[axis] = sum(whole) if len(whole) == len(sizes) else None
    return tuple(joined)


def _attention(graph: Graph, node: Node) -> Dims | None:
    """Attention of one packed projection: the bias tells the width of the values."""
    data, bias = graph.dims_of(node.input_at(0)), graph.dims_of(node.input_at(2))
    if data is None or bias is None or len(bias) != 1 or not isinstance(bias[0], int):
        return None
    sizes = node.attributes.get("qkv_hidden_sizes")
    width = sizes.ints[2] if sizes is not None else bias[0] // 3
    return (*data[:-1], width)


def _embedded(graph: Graph, node: Node) -> Dims | None:
    ids, table = graph.dims_of(node.input_at(0)), graph.dims_of(node.input_at(2))
    return None if ids is None or table is None else (*ids, table[-1])


_PLAIN: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(
        (
            "BiasDropout BiasGelu BiasSoftmax DequantizeLinear FastGelu Gelu GroupQueryAttention "
            "MultiHeadAttention QLinearLeakyRelu QLinearSigmoid QLinearSoftmax QuantizeLinear "
            "QuickGelu RotaryEmbedding SkipLayerNormalization SkipSimplifiedLayerNormalization"
        ).split(),
        _same,
    ),
    "Attention": _attention,
    "DynamicQuantizeMatMul": lambda g, n: products.matmul_of(g, n, 0, 1),
    "EmbedLayerNormalization": _embedded,
    "FusedConv": windows.convolved,
    "FusedGemm": products.gemm,
    "FusedMatMul": products.fused_matmul,
    "MatMulInteger16": lambda g, n: products.matmul_of(g, n, 0, 1),
    "MatMulIntegerToFloat": lambda g, n: products.matmul_of(g, n, 0, 1),
    "MatMulNBits": products.blocked,
    "NhwcMaxPool": lambda g, n: windows.pooled(g, n, "MaxPool"),
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
_RULES: Final[Mapping[str, Mapping[str, Rule]]] = {MICROSOFT: _PLAIN, NCHWC: _BLOCKED}

_FLOAT_RESULTS = frozenset({"DequantizeLinear", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"})


def runtime_types(graph: Graph, node: Node) -> dict[str, ValueType] | None:
    """Types of a node's outputs; ``None`` where its operator is not one of onnxruntime's own."""
    if node.domain not in _RULES:
        return None
    rule = _RULES[node.domain].get(node.op_type)
    dims = None if rule is None else rule(graph, node)
    first = node.output_at(0)
    if rule is None or not first:
        return {}
    found: dict[str, ValueType] = {first: TensorType(_elem_type(graph, node), dims)}
    if node.op_type.startswith("Skip") and node.output_at(3):
        found[node.outputs[3]] = TensorType(graph.elem_type_of(node.inputs[0]), dims)
    if node.op_type == "EmbedLayerNormalization" and node.output_at(1):
        found[node.outputs[1]] = TensorType(INT32, dims[:1] if dims else None)
    return found


def _elem_type(graph: Graph, node: Node) -> int:
    if node.op_type in _FLOAT_RESULTS:
        return FLOAT
    if node.op_type == "QLinearConcat":
        return graph.elem_type_of(node.input_at(1))
    if node.op_type == "QLinearWhere":
        return graph.elem_type_of(node.input_at(1))
    if node.op_type == "EmbedLayerNormalization":
        return graph.elem_type_of(node.input_at(2))
    if node.op_type == "QuantizeLinear":
        return graph.elem_type_of(node.input_at(2))
    if node.op_type == "QGemm" and not node.input_at(8):
        return graph.elem_type_of(node.input_at(1)) if not node.input_at(7) else 0
    return graph.elem_type_of(node.input_at(0))
