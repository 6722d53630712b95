"""Types of one node's outputs: as onnx infers them, and by rules for onnxruntime's own operators.

A rule takes a node and gives the dims of its first output; ``runtime_types`` says which operator
has which rule, and the types of all outputs. onnxruntime/core/graph/contrib_ops/*.cc has them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import onnx
import onnx.defs
import onnx.numpy_helper
import onnx.shape_inference

from onnxmem.model.shapes.microsoft import SYMBOLIC, layer_normalization, microsoft_types
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
# What onnx's own inference says of one node.
#
# onnxruntime/core/graph/graph.cc, ``InferenceContextImpl``: each operator is asked without
# symbolic inputs; elements help where an input is a constant or follows from shapes.


MAX_ELEMENTS = 4096
"""Shapes, axes and the like are shorter, and no inference reads more.

A chain of Concats could double a shape without end.
"""


def onnx_types(
    graph: Graph, proto: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]
) -> dict[str, ValueType]:
    """What onnx says of one node's outputs; nothing where it refuses or cannot be asked."""
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
    """Constants with their elements, and values that follow from shapes in full."""
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
# Shapes of onnxruntime's attention operators, and of the values that they carry on.
#
# onnxruntime/core/graph/contrib_ops/bert_defs.cc (``AttentionTypeAndShapeInference``,
# ``MultiHeadAttentionTypeAndShapeInference``, ``BaseGroupQueryAttentionTypeAndShapeInference``,
# ``EmbedLayerNormalizationShapeInference``).


_VALUES_OF_GROUPS, _PAST_OF_GROUPS, _TOTAL_LENGTH = 2, 3, 6
_PAST, _PAST_OF_HEADS = 4, 6
_HAS_PRESENT = 3
"""Outputs, where keys and values are put out."""
_SPLIT_IN_HEADS, _PACKED = 4, 5
"""Rank of keys and values by head, and of queries packed with them."""


def attention(graph: Graph, node: Node) -> Dims | None:
    """Attention of one packed projection: the bias tells the width of the values."""
    data, bias = graph.dims_of(node.input_at(0)), graph.dims_of(node.input_at(2))
    if data is None or bias is None or len(bias) != 1 or not isinstance(bias[0], int):
        return None
    sizes = node.attributes.get("qkv_hidden_sizes")
    width = sizes.ints[2] if sizes is not None else bias[0] // 3
    return (*data[:-1], width)


def attention_present(graph: Graph, node: Node) -> Mapping[int, TensorType]:
    """Keys and values in one tensor; the past ones and those of this run."""
    data, past = graph.dims_of(node.input_at(0)), graph.dims_of(node.input_at(_PAST))
    if data is None or past is None or len(past) != _PACKED:
        return {}
    made = (*past[:3], _sum(past[3], data[1]), past[4])
    return {1: TensorType(graph.elem_type_of(node.inputs[0]), made)}


def attention_of_heads(graph: Graph, node: Node) -> Dims | None:
    """MultiHeadAttention: as wide as the values are, whichever way they come."""
    query, key, value = (graph.dims_of(node.input_at(place)) for place in range(3))
    if query is None:
        return None
    if len(query) == _PACKED:
        return (*query[:2], _product(query[2], query[4]))
    if value is not None:
        is_split = len(value) == _SPLIT_IN_HEADS
        return (*query[:2], _product(value[1], value[3]) if is_split else value[-1])
    return query if key is not None and len(key) == _PACKED else None


def present_of_heads(graph: Graph, node: Node) -> Mapping[int, TensorType]:
    """The past keys and values, and behind them those of this run."""
    past, value = (graph.dims_of(node.input_at(place)) for place in (_PAST_OF_HEADS, 2))
    if len(node.outputs) < _HAS_PRESENT or past is None or value is None or len(value) != 3:  # noqa: PLR2004 - not split in heads
        return {}
    length = _sum(past[2], value[1])
    if length is None:
        return {}
    made = TensorType(graph.elem_type_of(node.inputs[0]), (*past[:2], length, *past[3:]))
    return {1: made, 2: made}


def attention_of_groups(graph: Graph, node: Node) -> Dims | None:
    """GroupQueryAttention: as wide as the queries, which keys and values may be packed with."""
    query = graph.dims_of(node.input_at(0))
    if query is None or node.input_at(_VALUES_OF_GROUPS):
        return query
    heads, groups = integer(node, "num_heads"), integer(node, "kv_num_heads")
    width = query[-1] if isinstance(query[-1], int) else 0
    return (*query[:-1], width // max(heads + 2 * groups, 1) * heads)


def present_of_groups(graph: Graph, node: Node) -> Mapping[int, TensorType]:
    """The caller's buffers for keys and values; without them as many as there are new ones."""
    if len(node.outputs) < _HAS_PRESENT:
        return {}
    past = graph.type_of(node.input_at(_PAST_OF_GROUPS))
    array = graph.array(node.input_at(_TOTAL_LENGTH))
    total = int(array.ravel()[0]) if array is not None and array.size else 0
    if not isinstance(past, TensorType) or past.dims is None:
        dims = _first_of_groups(graph, node, total)
        kind = graph.elem_type_of(node.inputs[0])
    else:
        dims = _longer_of_groups(past.dims, total)
        kind = graph.elem_type_of(node.inputs[_PAST_OF_GROUPS])
    return {} if dims is None else dict.fromkeys((1, 2), TensorType(kind, dims))


def _longer_of_groups(past: Dims, total: int) -> Dims:
    """The past's dims with the longer length, known where both lengths are.

    Measured on onnxruntime 1.32.0; releases before took the past's length where no total is known.
    """
    length = past[2]
    longer = max(length, total) if total > 0 and isinstance(length, int) else None
    return (*past[:2], longer, *past[3:])


def _first_of_groups(graph: Graph, node: Node, total: int) -> Dims | None:
    query, value = (graph.dims_of(node.input_at(place)) for place in (0, _VALUES_OF_GROUPS))
    heads, groups = integer(node, "num_heads"), integer(node, "kv_num_heads")
    width = query[-1] if query else None
    if query is None or not isinstance(width, int) or heads <= 0 or groups <= 0:
        return None
    new = query[1] if value is None else value[1]
    head = width // (heads + 2 * groups if value is None else heads)
    return (query[0], groups, total or new, head)


def embedded(graph: Graph, node: Node) -> Dims | None:
    """Rows of a table, one for each word."""
    ids, table = graph.dims_of(node.input_at(0)), graph.dims_of(node.input_at(2))
    return None if ids is None or table is None else (*ids, table[-1])


def embedded_more(graph: Graph, node: Node) -> Mapping[int, TensorType]:
    """How long each sequence is, and the sum before it is normalized."""
    ids = graph.dims_of(node.input_at(0))
    total = TensorType(graph.elem_type_of(node.input_at(2)), embedded(graph, node))
    return {1: TensorType(INT32, ids[:1] if ids else None), 2: total}


def _sum(one: Dim, other: Dim) -> int | None:
    return one + other if isinstance(one, int) and isinstance(other, int) else None


def _product(one: Dim, other: Dim) -> int | None:
    return one * other if isinstance(one, int) and isinstance(other, int) else None


# --------------------------------------------------------------------------------------------------
# Shapes of the matrix products whose sides are fused or packed.
#
# onnxruntime/core/graph/contrib_ops/contrib_defs.cc, the schemas of the operators.


_MATRIX = 2


def gemm(graph: Graph, node: Node) -> Dims | None:
    """Dims of FusedGemm."""
    left, right = graph.dims_of(node.input_at(0)), graph.dims_of(node.input_at(1))
    if left is None or right is None or len(left) != _MATRIX or len(right) != _MATRIX:
        return None
    return (left[integer(node, "transA")], right[1 - integer(node, "transB")])


def blocked(graph: Graph, node: Node) -> Dims | None:
    """Dims of MatMulNBits, whose right side is packed."""
    left = graph.dims_of(node.input_at(0))
    return None if left is None else (*left[:-1], integer(node, "N"))


# --------------------------------------------------------------------------------------------------
# Shapes of convolutions and pools: blocked, with channels last, or quantized.
#
# onnxruntime/core/graph/contrib_ops/nchwc_schema_defs.cc (``NchwcPoolOpSchemaGenerator`` and
# others) and nhwc_inference_context.h: the shape is that of the ONNX operator, and where channels
# are last, dims are permuted before and after.


_FLOAT = 1
_STATED = ("auto_pad", "ceil_mode", "count_include_pad", "dilations", "group", "kernel_shape")
_WINDOW = (*_STATED, "pads", "strides")


def convolved(graph: Graph, node: Node, weight: int = 1) -> Dims | None:
    """Dims of a convolution whose filter is at a place."""
    return _asked(graph, node, "Conv", (0, weight))


def pooled(graph: Graph, node: Node, op_type: str) -> Dims | None:
    """Dims of a pool of the ONNX operator's kind."""
    return _asked(graph, node, op_type, (0,))


def _asked(graph: Graph, node: Node, op_type: str, places: Sequence[int]) -> Dims | None:
    """What onnx says of an operator with the node's window."""
    is_last = bool(integer(node, "channels_last")) or node.op_type == "NhwcMaxPool"
    types = {}
    for place in places:
        dims = graph.dims_of(node.input_at(place))
        if dims is None:
            return None
        if is_last and not place:
            dims = (dims[0], dims[-1], *dims[1:-1])
        types[f"in{place}"] = write_type(TensorType(_FLOAT, dims))
    proto = onnx.NodeProto(op_type=op_type, input=list(types), output=["out"])
    known = {"MaxPool": _WINDOW, "AveragePool": _WINDOW, "Conv": _WINDOW}.get(op_type, ())
    skipped = {
        "Conv": ("ceil_mode", "count_include_pad"),
        "MaxPool": ("group", "count_include_pad"),
    }
    names = [name for name in known if name not in skipped.get(op_type, ("group",))]
    proto.attribute.extend(node.attributes[name] for name in names if name in node.attributes)
    found = onnx_types(graph, proto, types).get("out")
    if not isinstance(found, TensorType) or found.dims is None:
        return None
    return (found.dims[0], *found.dims[2:], found.dims[1]) if is_last else found.dims


def upsampled(graph: Graph, node: Node) -> Dims | None:
    """Dims of the blocked Upsample: whole multiples."""
    dims = graph.dims_of(node.input_at(0))
    scales = list(node.attributes["scales"].ints) if "scales" in node.attributes else []
    if dims is None or len(dims) != len(scales):
        return None
    pairs = zip(dims, scales, strict=True)
    return tuple(_scaled(dim, scale) for dim, scale in pairs)


def _scaled(dim: int | str | None, scale: int) -> int | str | None:
    return dim * scale if isinstance(dim, int) else None


def reordered_in(graph: Graph, node: Node) -> Dims | None:
    """Dims of a value that goes into blocks, of which the last is filled up."""
    dims = graph.dims_of(node.input_at(0))
    if dims is None:
        return None
    if integer(node, "channels_last"):
        dims = (dims[0], dims[-1], *dims[1:-1])
    channels, block = dims[1], graph.cpu.channel_block
    padded = -(-channels // block) * block if isinstance(channels, int) else channels
    return (dims[0], padded, *dims[2:])


def reordered_out(graph: Graph, node: Node) -> Dims | None:
    """Dims of a value that leaves its blocks."""
    dims = graph.dims_of(node.input_at(0))
    if dims is None:
        return None
    channels = integer(node, "channels")
    is_last = integer(node, "channels_last")
    return (dims[0], *dims[2:], channels) if is_last else (dims[0], channels, *dims[2:])


# --------------------------------------------------------------------------------------------------
# Which rule gives the shapes of which operator of onnxruntime's own.
#
# onnxruntime/core/graph/contrib_ops/*.cc, the ``TypeAndShapeInferenceFunction`` of each schema. An
# operator without a rule here has the one that serves every file (onnxmem.model.shapes).


Rule = Callable[[Graph, Node], Dims | None]
"""The dims of the first output."""


def _same(graph: Graph, node: Node) -> Dims | None:
    return graph.dims_of(node.input_at(0))


def _unknown(graph: Graph, node: Node) -> None:
    """Onnxruntime has no shapes for it, though they would follow."""


def _where(graph: Graph, node: Node) -> Dims | None:
    condition, one, other = (graph.dims_of(node.input_at(index)) for index in (0, 1, 4))
    return broadcast(condition, broadcast(one, other))


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


_PLAIN: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(("QLinearSoftmax", "RotaryEmbedding"), _same),
    "Attention": attention,
    "CDist": _unknown,
    "EmbedLayerNormalization": embedded,
    "FusedConv": convolved,
    "FusedGemm": gemm,
    "GroupQueryAttention": attention_of_groups,
    "MatMulNBits": blocked,
    "MultiHeadAttention": attention_of_heads,
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
    "ReorderInput": reordered_in,
    "ReorderOutput": reordered_out,
    "Upsample": upsampled,
}
_RULES: Final[Mapping[str, Mapping[str, Rule]]] = {
    MICROSOFT: _PLAIN,
    NCHWC: _BLOCKED,
    "": {"SimplifiedLayerNormalization": _same},
}

_MORE: Final[Mapping[str, Callable[[Graph, Node], Mapping[int, TensorType]]]] = {
    "Attention": attention_present,
    "EmbedLayerNormalization": embedded_more,
    "GroupQueryAttention": present_of_groups,
    "MultiHeadAttention": present_of_heads,
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
_LAYER_NORMALIZATION = ("", "LayerNormalization")
_SUM = 3
"""The output of a skip normalization that is the sum it normalizes."""


def runtime_types(graph: Graph, node: Node) -> dict[str, ValueType] | None:
    """Types of a node's outputs; ``None`` where onnx is to be asked for them."""
    rule = _RULES.get(node.domain, {}).get(node.op_type)
    if not node.domain and node.since_version != _OWN_VERSION:
        return None
    if rule is None:
        is_shared = node.domain == MICROSOFT or (node.domain, node.op_type) == _LAYER_NORMALIZATION
        return _by_shared_rule(graph, node) if is_shared else None
    found = {0: TensorType(_elem_type(graph, node), rule(graph, node))}
    if node.op_type in _MORE:
        found.update(_MORE[node.op_type](graph, node))
    return {name: known for at, known in found.items() if (name := node.output_at(at))}


def _by_shared_rule(graph: Graph, node: Node) -> dict[str, ValueType]:
    """What the rules for the nodes of any file find; at least element types where it is symbolic.

    Other operators of onnxruntime's need inputs of which every dim is known.
    """
    known = {name: graph.type_of(name) for name in node.inputs}
    types = {name: write_type(found) for name, found in known.items() if found is not None}
    context = InferenceContext(write_node(node), types)
    made = microsoft_types(context.node, types) if node.domain else layer_normalization(context)
    read = {name: read_type(proto) for name, proto in made.items()}
    if node.op_type in SYMBOLIC or not node.domain:
        without_shape = TensorType(_elem_type(graph, node), None)
        for name in filter(None, (node.output_at(0), node.output_at(_SUM))):
            read.setdefault(name, without_shape)
    return {name: found for name, found in read.items() if found is not None}


def _elem_type(graph: Graph, node: Node) -> int:
    if node.op_type == "QuantizeLinear" and not node.input_at(2):
        return UINT8
    if node.op_type == "MatMulInteger16":
        return INT32
    place = _TYPE_FROM.get(node.op_type, 0)
    if node.op_type == "QGemm" and not node.input_at(_ZERO_OF_RESULT):
        place = 1
    return graph.elem_type_of(node.input_at(place))
