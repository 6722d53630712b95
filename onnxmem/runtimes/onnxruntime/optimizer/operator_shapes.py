"""Types of one node's outputs: by onnx's inference, and by rules for onnxruntime's own operators.

A rule returns the dims of a node's first output. ``runtime_types`` has the table of rules, and
returns the types of all outputs. Source: onnxruntime/core/graph/contrib_ops/*.cc.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import onnx
import onnx.defs
import onnx.numpy_helper
import onnx.shape_inference

from onnxmem.model.shapes.microsoft import (
    SYMBOLIC,
    blocked_types,
    layer_normalization,
    microsoft_types,
)
from onnxmem.model.shapes.node_context import InferenceContext, broadcast
from onnxmem.model.shapes.node_inference import ends_the_process
from onnxmem.runtimes.onnxruntime.optimizer.graph import (
    Dim,
    Dims,
    Graph,
    Node,
    TensorType,
    ValueType,
    merged_dims,
    read_type,
    write_type,
)
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    INT32,
    MICROSOFT,
    NCHWC,
    UINT8,
    integer,
)
from onnxmem.runtimes.onnxruntime.optimizer.reading import write_node

# --------------------------------------------------------------------------------------------------
# onnx's own inference of one node.
#
# onnxruntime/core/graph/graph.cc, ``InferenceContextImpl``: the inference of an operator sees the
# types of its inputs, and the elements of an input that is a constant or follows from shapes in
# full, but no symbolic elements (``getSymbolicInput``).


MAX_ELEMENTS = 4096
"""Inference reads no longer shapes, axes and the like.

Without a limit, a chain of Concats could double a shape endlessly.
"""


def onnx_types(
    graph: Graph, proto: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]
) -> dict[str, ValueType]:
    """The types that onnx infers for one node's outputs; none if it raises or could crash."""
    if ends_the_process([proto], graph.opsets, types):
        return {}
    try:
        schema = onnx.defs.get_schema(
            proto.op_type, graph.opsets.get(proto.domain, 1), proto.domain
        )
        inferred = onnx.shape_inference.infer_node_outputs(
            schema,
            proto,
            dict(types),
            _known_elements(graph, proto),
            opset_imports=[
                onnx.OperatorSetIdProto(domain=d, version=v) for d, v in graph.opsets.items()
            ],
            ir_version=graph.ir_version,
        )
    except Exception:  # noqa: BLE001 - whatever it raises costs this node's shapes alone
        return {}
    read = {name: read_type(found) for name, found in inferred.items()}
    return {name: known for name, known in read.items() if known is not None}


def _known_elements(graph: Graph, proto: onnx.NodeProto) -> dict[str, onnx.TensorProto]:
    """The elements of constants, and of values whose elements all follow from shapes."""
    elements: dict[str, onnx.TensorProto] = {}
    for name in proto.input:
        array = graph.array(name) if name else None
        if array is not None and array.size <= MAX_ELEMENTS:
            elements[name] = onnx.numpy_helper.from_array(array, name)
        value = graph.shape_values.get(name)
        if array is None and value is not None:
            known = np.array(value.elements, np.int64)
            elements[name] = onnx.numpy_helper.from_array(
                known.reshape(()) if value.is_scalar else known, name
            )
    return elements


# --------------------------------------------------------------------------------------------------
# Shapes of onnxruntime's attention operators, and of the present keys and values they return.
#
# onnxruntime/core/graph/contrib_ops/bert_defs.cc (``AttentionTypeAndShapeInference``,
# ``MultiHeadAttentionTypeAndShapeInference``, ``BaseGroupQueryAttentionTypeAndShapeInference``,
# ``EmbedLayerNormalizationShapeInference``).


_GROUP_QUERY_VALUE, _GROUP_QUERY_PAST, _TOTAL_LENGTH = 2, 3, 6
_PAST, _MULTI_HEAD_PAST = 4, 6
_HAS_PRESENT = 3
"""The number of outputs if the present keys and values are among them."""
_SPLIT_IN_HEADS, _PACKED = 4, 5
"""Rank of keys and values by head, and of queries packed with keys and values."""


def attention(graph: Graph, node: Node) -> Dims | None:
    """Attention with one packed projection: the width of the values follows from the bias."""
    data, bias = graph.dims_of(node.input_at(0)), graph.dims_of(node.input_at(2))
    if data is None or bias is None or len(bias) != 1 or not isinstance(bias[0], int):
        return None
    sizes = node.attributes.get("qkv_hidden_sizes")
    width = sizes.ints[2] if sizes is not None else bias[0] // 3
    return (*data[:-1], width)


def attention_present(graph: Graph, node: Node) -> Mapping[int, TensorType]:
    """The present of Attention: past and new keys and values in one tensor."""
    data, past = graph.dims_of(node.input_at(0)), graph.dims_of(node.input_at(_PAST))
    if data is None or past is None or len(past) != _PACKED:
        return {}
    present = (*past[:3], _sum(past[3], data[1]), past[4])
    return {1: TensorType(graph.elem_type_of(node.inputs[0]), present)}


def multi_head_attention(graph: Graph, node: Node) -> Dims | None:
    """MultiHeadAttention is as wide as its values, whether packed, split into heads or flat."""
    query, key, value = (graph.dims_of(node.input_at(index)) for index in range(3))
    if query is None:
        return None
    if len(query) == _PACKED:
        return (*query[:2], _product(query[2], query[4]))
    if value is not None:
        is_split = len(value) == _SPLIT_IN_HEADS
        return (*query[:2], _product(value[1], value[3]) if is_split else value[-1])
    return query if key is not None and len(key) == _PACKED else None


def multi_head_present(graph: Graph, node: Node) -> Mapping[int, TensorType]:
    """The present keys and values of MultiHeadAttention: the past ones, then the new ones."""
    past, value = (graph.dims_of(node.input_at(index)) for index in (_MULTI_HEAD_PAST, 2))
    if len(node.outputs) < _HAS_PRESENT or past is None or value is None or len(value) != 3:  # noqa: PLR2004 - not split in heads
        return {}
    length = _sum(past[2], value[1])
    if length is None:
        return {}
    present = TensorType(graph.elem_type_of(node.inputs[0]), (*past[:2], length, *past[3:]))
    return {1: present, 2: present}


def group_query_attention(graph: Graph, node: Node) -> Dims | None:
    """GroupQueryAttention is as wide as its queries, which may be packed with keys and values."""
    query = graph.dims_of(node.input_at(0))
    if query is None or node.input_at(_GROUP_QUERY_VALUE):
        return query
    heads, groups = integer(node, "num_heads"), integer(node, "kv_num_heads")
    width = query[-1] if isinstance(query[-1], int) else 0
    return (*query[:-1], width // max(heads + 2 * groups, 1) * heads)


def group_query_present(graph: Graph, node: Node) -> Mapping[int, TensorType]:
    """The present keys and values of GroupQueryAttention.

    They are as long as the caller's past buffers, or as the new keys if there is no past.
    """
    if len(node.outputs) < _HAS_PRESENT:
        return {}
    past = graph.type_of(node.input_at(_GROUP_QUERY_PAST))
    array = graph.array(node.input_at(_TOTAL_LENGTH))
    total = int(array.ravel()[0]) if array is not None and array.size else 0
    if not isinstance(past, TensorType) or past.dims is None:
        dims = _present_without_past(graph, node, total)
        kind = graph.elem_type_of(node.inputs[0])
    else:
        dims = _present_after_past(past.dims, total)
        kind = graph.elem_type_of(node.inputs[_GROUP_QUERY_PAST])
    return {} if dims is None else dict.fromkeys((1, 2), TensorType(kind, dims))


def _present_after_past(past: Dims, total: int) -> Dims:
    """The dims of the past with the larger of its length and the total; both must be known.

    Measured on onnxruntime 1.32.0; earlier releases took the length of the past if the total is
    unknown.
    """
    length = past[2]
    longer = max(length, total) if total > 0 and isinstance(length, int) else None
    return (*past[:2], longer, *past[3:])


def _present_without_past(graph: Graph, node: Node, total: int) -> Dims | None:
    query, value = (graph.dims_of(node.input_at(index)) for index in (0, _GROUP_QUERY_VALUE))
    heads, groups = integer(node, "num_heads"), integer(node, "kv_num_heads")
    width = query[-1] if query else None
    if query is None or not isinstance(width, int) or heads <= 0 or groups <= 0:
        return None
    new = query[1] if value is None else value[1]
    head = width // (heads + 2 * groups if value is None else heads)
    return (query[0], groups, total or new, head)


def embed_layer_norm(graph: Graph, node: Node) -> Dims | None:
    """EmbedLayerNormalization: one row of the embedding table for each token."""
    ids, table = graph.dims_of(node.input_at(0)), graph.dims_of(node.input_at(2))
    return None if ids is None or table is None else (*ids, table[-1])


def embed_layer_norm_more(graph: Graph, node: Node) -> Mapping[int, TensorType]:
    """The mask index, one per sequence, and the sum of embeddings before normalization."""
    ids = graph.dims_of(node.input_at(0))
    total = TensorType(graph.elem_type_of(node.input_at(2)), embed_layer_norm(graph, node))
    return {1: TensorType(INT32, ids[:1] if ids else None), 2: total}


def _sum(one: Dim, other: Dim) -> int | None:
    return one + other if isinstance(one, int) and isinstance(other, int) else None


def _product(one: Dim, other: Dim) -> int | None:
    return one * other if isinstance(one, int) and isinstance(other, int) else None


# --------------------------------------------------------------------------------------------------
# Shapes of matrix products with fused operations or packed weights.
#
# onnxruntime/core/graph/contrib_ops/contrib_defs.cc, the schemas of the operators.


_MATRIX = 2


def gemm(graph: Graph, node: Node) -> Dims | None:
    """Dims of FusedGemm."""
    left, right = graph.dims_of(node.input_at(0)), graph.dims_of(node.input_at(1))
    if left is None or right is None or len(left) != _MATRIX or len(right) != _MATRIX:
        return None
    return (left[integer(node, "transA")], right[1 - integer(node, "transB")])


def matmul_nbits(graph: Graph, node: Node) -> Dims | None:
    """Dims of MatMulNBits; its packed weights have no column dim, so ``N`` gives the columns."""
    left = graph.dims_of(node.input_at(0))
    return None if left is None else (*left[:-1], integer(node, "N"))


# --------------------------------------------------------------------------------------------------
# Shapes of convolutions and pools in the blocked layout, with channels last, or quantized.
#
# onnxruntime/core/graph/contrib_ops/nchwc_schema_defs.cc (``NchwcPoolOpSchemaGenerator`` and
# others) and nhwc_inference_context.h: the shape is that of the ONNX operator; for channels last,
# the dims are permuted before and after.


_FLOAT = 1
_STATED = ("auto_pad", "ceil_mode", "count_include_pad", "dilations", "group", "kernel_shape")
_WINDOW = (*_STATED, "pads", "strides")


def convolved(graph: Graph, node: Node, weight: int = 1) -> Dims | None:
    """Dims of a convolution whose filter is an input with the index ``weight``."""
    return _as_onnx_op(graph, node, "Conv", (0, weight))


def pooled(graph: Graph, node: Node, op_type: str) -> Dims | None:
    """Dims of a pool that works like an ONNX operator."""
    return _as_onnx_op(graph, node, op_type, (0,))


def _as_onnx_op(graph: Graph, node: Node, op_type: str, inputs: Sequence[int]) -> Dims | None:
    """The dims that onnx infers for an ONNX operator with the node's inputs and window."""
    is_last = bool(integer(node, "channels_last")) or node.op_type == "NhwcMaxPool"
    types = {}
    for index in inputs:
        dims = graph.dims_of(node.input_at(index))
        if dims is None:
            return None
        if is_last and not index:
            dims = (dims[0], dims[-1], *dims[1:-1])
        types[f"in{index}"] = write_type(TensorType(_FLOAT, dims))
    proto = onnx.NodeProto(op_type=op_type, input=list(types), output=["out"])
    known = {"MaxPool": _WINDOW, "AveragePool": _WINDOW, "Conv": _WINDOW}.get(op_type, ())
    skipped = {
        "Conv": ("ceil_mode", "count_include_pad"),
        "MaxPool": ("group", "count_include_pad"),
    }
    names = [name for name in known if name not in skipped.get(op_type, ("group",))]
    proto.attribute.extend(node.attributes[name] for name in names if name in node.attributes)
    # onnx refuses attributes that the operator does not have, and would infer nothing.
    found = onnx_types(graph, proto, types).get("out")
    if not isinstance(found, TensorType) or found.dims is None:
        return None
    return (found.dims[0], *found.dims[2:], found.dims[1]) if is_last else found.dims


# --------------------------------------------------------------------------------------------------
# The table of rules by operator.
#
# onnxruntime/core/graph/contrib_ops/*.cc, the ``TypeAndShapeInferenceFunction`` of each schema. An
# operator without a rule here uses the shared rules for com.microsoft (onnxmem.model.shapes).


Rule = Callable[[Graph, Node], Dims | None]
"""The dims of the first output."""


def _same(graph: Graph, node: Node) -> Dims | None:
    return graph.dims_of(node.input_at(0))


def _unknown(graph: Graph, node: Node) -> None:
    """No dims: onnxruntime infers none for the operator."""


def _where(graph: Graph, node: Node) -> Dims | None:
    condition, one, other = (graph.dims_of(node.input_at(index)) for index in (0, 1, 4))
    return broadcast(condition, broadcast(one, other))


def _concat(graph: Graph, node: Node) -> Dims | None:
    """The inputs are the result's scale and zero point, then each part with its own two."""
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


_PLAIN: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(("QLinearSoftmax", "RotaryEmbedding"), _same),
    "Attention": attention,
    "CDist": _unknown,
    "EmbedLayerNormalization": embed_layer_norm,
    "FusedConv": convolved,
    "FusedGemm": gemm,
    "GroupQueryAttention": group_query_attention,
    "MatMulNBits": matmul_nbits,
    "MultiHeadAttention": multi_head_attention,
    "NhwcMaxPool": lambda g, n: pooled(g, n, "MaxPool"),
    "QAttention": attention,
    "QLinearAveragePool": lambda g, n: pooled(g, n, "AveragePool"),
    "QLinearConcat": _concat,
    "QLinearConv": lambda g, n: convolved(g, n, 3),
    "QLinearGlobalAveragePool": lambda g, n: pooled(g, n, "GlobalAveragePool"),
    "QLinearWhere": _where,
}
_BLOCKED: Final[Mapping[str, Rule]] = {
    "AveragePool": lambda g, n: pooled(g, n, "AveragePool"),
    "Conv": convolved,
    "GlobalAveragePool": lambda g, n: pooled(g, n, "GlobalAveragePool"),
    "GlobalMaxPool": lambda g, n: pooled(g, n, "GlobalMaxPool"),
    "MaxPool": lambda g, n: pooled(g, n, "MaxPool"),
}
_RULES: Final[Mapping[str, Mapping[str, Rule]]] = {
    MICROSOFT: _PLAIN,
    NCHWC: _BLOCKED,
    "": {"SimplifiedLayerNormalization": _same},
}

_MORE: Final[Mapping[str, Callable[[Graph, Node], Mapping[int, TensorType]]]] = {
    "Attention": attention_present,
    "EmbedLayerNormalization": embed_layer_norm_more,
    "GroupQueryAttention": group_query_present,
    "MultiHeadAttention": multi_head_present,
}
"""Types of the outputs after the first, by index."""

_TYPE_FROM: Final[Mapping[str, int]] = {
    "DequantizeLinear": 1,
    "EmbedLayerNormalization": 2,
    "MatMulIntegerToFloat": 2,
    "QAttention": 3,
    "QLinearConcat": 1,
    "QLinearWhere": 1,
    "QuantizeLinear": 2,
}
"""Index of the input that has the first output's element type, if that is not the first input."""

_OUTPUT_ZERO_POINT = 8
"""Input of QGemm; without it, the output has the type of the scales."""
_OWN_VERSION = 1
_LAYER_NORMALIZATION = ("", "LayerNormalization")
_SUM = 3
"""Output of SkipLayerNormalization: the sum before normalization."""


def runtime_types(graph: Graph, node: Node) -> dict[str, ValueType] | None:
    """Types of a node's outputs by onnxruntime's own rules; ``None`` if onnx infers them."""
    rule = _RULES.get(node.domain, {}).get(node.op_type)
    if not node.domain and node.since_version != _OWN_VERSION:
        return None
    if rule is None:
        is_own = node.domain in {MICROSOFT, NCHWC}
        is_shared = is_own or (node.domain, node.op_type) == _LAYER_NORMALIZATION
        return _by_shared_rule(graph, node) if is_shared else None
    found = {0: TensorType(_elem_type(graph, node), rule(graph, node))}
    if node.op_type in _MORE:
        found.update(_MORE[node.op_type](graph, node))
    return {name: known for index, known in found.items() if (name := node.output_at(index))}


def _by_shared_rule(graph: Graph, node: Node) -> dict[str, ValueType]:
    """Types by the shared rules; if they find none, at least element types for symbolic operators.

    The shared rules of all other operators need inputs whose dims are all known.
    """
    known = {name: graph.type_of(name) for name in node.inputs}
    types = {name: write_type(found) for name, found in known.items() if found is not None}
    context = InferenceContext(write_node(node), types)
    if node.domain == NCHWC:
        inferred = blocked_types(context.node, types, graph.cpu.channel_block)
    elif node.domain:
        inferred = microsoft_types(context.node, types)
    else:
        inferred = layer_normalization(context)
    read = {name: read_type(proto) for name, proto in inferred.items()}
    if node.op_type in SYMBOLIC or node.domain != MICROSOFT:
        # onnxruntime propagates the element type before it looks at shapes, so it has one without
        # these.
        without_shape = TensorType(_elem_type(graph, node), None)
        for name in filter(None, (node.output_at(0), node.output_at(_SUM))):
            read.setdefault(name, without_shape)
    return {name: found for name, found in read.items() if found is not None}


def _elem_type(graph: Graph, node: Node) -> int:
    if node.op_type == "QuantizeLinear" and not node.input_at(2):
        return UINT8
    if node.op_type == "MatMulInteger16":
        return INT32
    index = _TYPE_FROM.get(node.op_type, 0)
    if node.op_type == "QGemm" and not node.input_at(_OUTPUT_ZERO_POINT):
        index = 1
    return graph.elem_type_of(node.input_at(index))
