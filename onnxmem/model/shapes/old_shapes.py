"""Shapes of operators at their first version, for which onnx has no inference.

The rules are those of onnx's Changelog.md (version 1 of each): operands were then broadcast
to the first one, by ``broadcast`` and ``axis``, and what are inputs today were attributes.
"""

from collections.abc import Callable, Mapping, Sequence
from math import floor, prod
from typing import Final

import onnx
import onnx.helper

from onnxmem.model.traversal import onnx_op
from onnxmem.model.value_types import dense_type, dims_of
from onnxmem.ops.spec import Dims

_Types = dict[str, onnx.TypeProto]
_Attributes = Mapping[str, onnx.AttributeProto]
_Shapes = Sequence[Dims] | None

FIRST_WITH_INFERENCE: Final = 6
"""The opset from which on onnx infers these; Reshape and Upsample have other versions too."""
_LIKE_THE_FIRST = frozenset("Add Sub Mul Div Max Min Mean Sum".split())
_SPATIAL_FROM = 2


def first_version_types(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> _Types:
    """The types of a node's outputs by the first version of its operator; empty without a rule."""
    shapes = [dims_of(types.get(name)) for name in node.input if name]
    known = [dims for dims in shapes if dims is not None]
    data = types.get(node.input[0]) if node.input else None
    operator = onnx_op(node)
    if data is None or len(known) < len(shapes) or operator not in _RULES:
        return {}
    attributes = {attribute.name: attribute for attribute in node.attribute}
    made = _RULES[operator](known, attributes, len(node.output))
    if made is None:
        return {}
    word = data.tensor_type.elem_type
    if operator == "Cast":
        word = onnx.TensorProto.DataType.DESCRIPTOR.values_by_name[_cast_to(attributes)].number
    return {
        name: dense_type(word, dims) for name, dims in zip(node.output, made, strict=False) if name
    }


def _cast_to(attributes: _Attributes) -> str:
    return attributes["to"].s.decode("ascii", "replace").upper() if "to" in attributes else ""


def _of_the_first(shapes: Sequence[Dims], _attributes: _Attributes, _num_outputs: int) -> _Shapes:
    """The others are broadcast to the first, or equal to it."""
    return [shapes[0]]


def _cast(shapes: Sequence[Dims], attributes: _Attributes, _num_outputs: int) -> _Shapes:
    is_known = _cast_to(attributes) in onnx.TensorProto.DataType.DESCRIPTOR.values_by_name
    return [shapes[0]] if is_known else None


def _gemm(shapes: Sequence[Dims], attributes: _Attributes, _num_outputs: int) -> _Shapes:
    """[M, K] x [K, N]; C is broadcast to the product."""
    if any(len(dims) != 2 for dims in shapes[:2]) or len(shapes) < 2:  # noqa: PLR2004 - matrices
        return None
    rows = shapes[0][1 if _number(attributes, "transA", 0) else 0]
    columns = shapes[1][0 if _number(attributes, "transB", 0) else 1]
    return [(rows, columns)]


def _concat(shapes: Sequence[Dims], attributes: _Attributes, _num_outputs: int) -> _Shapes:
    """Version 1 joins along axis 1 if it is not told another."""
    axis = _axis(shapes[0], attributes, 1)
    if axis is None or len({len(dims) for dims in shapes}) > 1:
        return None
    total = sum(dims[axis] for dims in shapes)
    return [_with_dim(shapes[0], axis, total)]


def _split(shapes: Sequence[Dims], attributes: _Attributes, num_outputs: int) -> _Shapes:
    """By the lengths in ``split``, else in equal parts; a second input may hold the lengths too."""
    axis = _axis(shapes[0], attributes, 0)
    if axis is None or len(shapes) > 1:
        return None
    lengths = list(attributes["split"].ints) if "split" in attributes else []
    if not lengths and shapes[0][axis] % num_outputs == 0:
        lengths = [shapes[0][axis] // num_outputs] * num_outputs
    return [_with_dim(shapes[0], axis, length) for length in lengths] or None


def _reshape(shapes: Sequence[Dims], attributes: _Attributes, _num_outputs: int) -> _Shapes:
    """The target is an attribute: 0 copies a dim, -1 is the rest."""
    if len(shapes) > 1 or "shape" not in attributes:
        return None
    data = shapes[0]
    asked = list(attributes["shape"].ints)
    if any(dim == 0 and place >= len(data) for place, dim in enumerate(asked)):
        return None
    dims = [data[place] if dim == 0 else dim for place, dim in enumerate(asked)]
    rest = prod(dim for dim in dims if dim != -1)
    whole = prod(data)
    if -1 in dims and rest:
        dims[dims.index(-1)] = whole // rest
    return [tuple(dims)] if prod(dims) == whole and min(dims, default=0) >= 0 else None


def _upsample(shapes: Sequence[Dims], attributes: _Attributes, _num_outputs: int) -> _Shapes:
    """``height_scale`` and ``width_scale`` of images."""
    names = ("height_scale", "width_scale")
    if len(shapes[0]) != _SPATIAL_FROM + 2 or not attributes.keys() >= {*names}:
        return None
    scales = [attributes[name].f for name in names]
    spatial = (floor(d * s) for d, s in zip(shapes[0][_SPATIAL_FROM:], scales, strict=True))
    return [(*shapes[0][:_SPATIAL_FROM], *spatial)]


_RULES: Mapping[str, Callable[[Sequence[Dims], _Attributes, int], _Shapes]] = {
    **dict.fromkeys(_LIKE_THE_FIRST, _of_the_first),
    "Cast": _cast,
    "Concat": _concat,
    "Gemm": _gemm,
    "Reshape": _reshape,
    "Split": _split,
    "Upsample": _upsample,
}


def _number(attributes: _Attributes, name: str, default: int) -> int:
    return attributes[name].i if name in attributes else default


def _axis(dims: Dims, attributes: _Attributes, default: int) -> int | None:
    axis = _number(attributes, "axis", default)
    return axis % len(dims) if -len(dims) <= axis < len(dims) else None


def _with_dim(dims: Dims, axis: int, length: int) -> Dims:
    return (*dims[:axis], length, *dims[axis + 1 :])
