"""Shapes of onnxruntime's own operators that its graph optimiser writes (domain com.microsoft).

The rules are those of ``contrib_defs.cc`` and ``bert_defs.cc``. LayerNormalization stands here too:
the optimiser writes it in ONNX's domain under opsets that do not know it yet.
"""

from collections.abc import Callable, Mapping
from typing import Final

import onnx

from onnxmem.model.value_types import dense_type, dims_of
from onnxmem.ops.spec import Dims

_Types = Mapping[str, onnx.TypeProto]
_Found = dict[str, onnx.TypeProto]

_LIKE_FIRST: Final = frozenset(
    {
        *("BiasGelu", "FastGelu", "Gelu", "QuickGelu", "LayerNormalization"),
        *("SimplifiedLayerNormalization", "SkipLayerNormalization", "BiasDropout"),
        *("SkipSimplifiedLayerNormalization", "QLinearSigmoid", "QLinearLeakyRelu"),
    }
)
"""The first output is shaped like the first input, and so is the sum that some put out fourth."""
_SUM_PLACE: Final = 3
_FLOAT: Final = onnx.TensorProto.FLOAT


def contrib_types(node: onnx.NodeProto, types: _Types) -> _Found:
    """The types of a node's outputs; empty for an operator that has no rule here."""
    if node.op_type in _LIKE_FIRST:
        return _like_first(node, types)
    rule = _RULES.get(node.op_type) if node.domain else None
    return rule(node, types) if rule else {}


def _like_first(node: onnx.NodeProto, types: _Types) -> _Found:
    first = types.get(node.input[0])
    if first is None or not node.output:
        return {}
    shaped_so = [node.output[0], *node.output[_SUM_PLACE : _SUM_PLACE + 1]]
    return {name: first for name in shaped_so if name}


def _fused_matmul(node: onnx.NodeProto, types: _Types) -> _Found:
    settings = {attribute.name: attribute.i for attribute in node.attribute}
    return _product(
        node,
        types,
        _transposed(dims_of(types.get(node.input[0])), settings, "A"),
        _transposed(dims_of(types.get(node.input[1])), settings, "B"),
    )


def _transposed(dims: Dims | None, settings: Mapping[str, int], side: str) -> Dims | None:
    """The dims as the product reads them: ``transBatch`` moves the first dim before the last."""
    if dims is None or len(dims) < 2:  # noqa: PLR2004 - a vector has nothing to transpose
        return dims
    if settings.get(f"transBatch{side}"):
        dims = (*dims[1:-1], dims[0], dims[-1])
    if settings.get(f"trans{side}"):
        dims = (*dims[:-2], dims[-1], dims[-2])
    return dims


def _float_product(node: onnx.NodeProto, types: _Types) -> _Found:
    """A product of quantised matrices, put out as floats."""
    one, other = (dims_of(types.get(name)) for name in node.input[:2])
    return _product(node, types, one, other, elem_type=_FLOAT)


def _product(
    node: onnx.NodeProto,
    types: _Types,
    one: Dims | None,
    other: Dims | None,
    *,
    elem_type: int | None = None,
) -> _Found:
    """What ``MatMul`` makes of two matrices of these dims, batch dims broadcast."""
    if one is None or other is None or not (one and other):
        return {}
    rows = one[-2:-1]
    columns = other[-1:] if len(other) > 1 else ()
    batch = _broadcast(one[:-2], other[:-2])
    kept = types[node.input[0]].tensor_type.elem_type if elem_type is None else elem_type
    return {} if batch is None else {node.output[0]: dense_type(kept, (*batch, *rows, *columns))}


def _broadcast_like_first(node: onnx.NodeProto, types: _Types) -> _Found:
    """QLinearAdd and QLinearMul: operands stand first and fourth."""
    one, other = (dims_of(types.get(node.input[place])) for place in (0, 3))
    dims = None if one is None or other is None else _broadcast(one, other)
    if dims is None:
        return {}
    return {node.output[0]: dense_type(types[node.input[0]].tensor_type.elem_type, dims)}


def _broadcast(one: Dims, other: Dims) -> Dims | None:
    """The common shape of two; ``None`` where they do not fit."""
    rank = max(len(one), len(other))
    pairs = zip((1,) * (rank - len(one)) + one, (1,) * (rank - len(other)) + other, strict=True)
    dims = [b if a == 1 else a if b in {1, a} else None for a, b in pairs]
    known = tuple(dim for dim in dims if dim is not None)
    return known if len(known) == rank else None


_RULES: Final[Mapping[str, Callable[[onnx.NodeProto, _Types], _Found]]] = {
    "FusedMatMul": _fused_matmul,
    "MatMulIntegerToFloat": _float_product,
    "DynamicQuantizeMatMul": _float_product,
    "QLinearAdd": _broadcast_like_first,
    "QLinearMul": _broadcast_like_first,
}
