"""Shapes of onnxruntime's attention operators, and of the values that they carry on.

Source: onnxruntime/core/graph/contrib_ops/bert_defs.cc (``AttentionTypeAndShapeInference``,
``MultiHeadAttentionTypeAndShapeInference``, ``BaseGroupQueryAttentionTypeAndShapeInference``,
``EmbedLayerNormalizationShapeInference``).
"""

from collections.abc import Mapping

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import INT32
from onnxmem.runtimes.onnxruntime.optimizer.value_types import (
    Dim,
    Dims,
    TensorType,
)

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
    """How long each sequence is, and the sum before it is normalised."""
    ids = graph.dims_of(node.input_at(0))
    total = TensorType(graph.elem_type_of(node.input_at(2)), embedded(graph, node))
    return {1: TensorType(INT32, ids[:1] if ids else None), 2: total}


def _sum(one: Dim, other: Dim) -> int | None:
    return one + other if isinstance(one, int) and isinstance(other, int) else None


def _product(one: Dim, other: Dim) -> int | None:
    return one * other if isinstance(one, int) and isinstance(other, int) else None
