"""Shape rules for control flow, and for operators at their first version.

onnx has no shape function for version 1 of most operators. The rules for these are those of onnx's
Changelog.md: operands were then broadcast to the first one, by ``broadcast`` and ``axis``, and what
are inputs today were attributes.
"""

from collections.abc import Callable, Mapping, Sequence
from math import floor, prod
from typing import Final

import onnx
import onnx.helper

from onnxmem.model.constants import Array, constant_tensor, constant_value
from onnxmem.model.control_flow import LoopBody, Scalar
from onnxmem.model.traversal import onnx_op
from onnxmem.model.value_types import dense_type, dims_of, is_complete, shape_of
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


_ShapeFunction = Callable[
    [onnx.NodeProto, Mapping[str, onnx.TypeProto], Mapping[str, Array]], _Types
]

Body = tuple[onnx.GraphProto, Mapping[str, Array]]
"""A graph inside a node, and what is known of the values in it."""

_SCAN_WITHOUT_BATCH = 9
"""Before this version Scan had a batch axis and lengths."""
_DROPOUT_MASK_IS_BOOL = 10
"""From this version on Dropout's mask is bool; before, it has the data's type."""


def own_types(
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    values: Mapping[str, Array],
    opsets: Mapping[str, int],
) -> _Types:
    """The types of a node's outputs by our own rules; empty where there is none."""
    if onnx_op(node) == "Dropout" and opsets.get("", 1) < _DROPOUT_MASK_IS_BOOL:
        return _dropout(node, types)
    if onnx_op(node) == "If":
        return _if(node, values)
    if onnx_op(node) == "Loop":
        return _loop(node, types, values)
    if opsets.get("", 1) < FIRST_WITH_INFERENCE:
        return first_version_types(node, types)
    return {}


def body_inputs(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], opsets: Mapping[str, int]
) -> _Types:
    """The types of what a Loop or a Scan hands its body when it runs for the first time."""
    body = _body(node)
    if body is None:
        return {}
    handed_in: list[onnx.TypeProto | None] = []
    if onnx_op(node) == "Loop":
        handed_in = [dense_type(onnx.TensorProto.INT64, ()), dense_type(onnx.TensorProto.BOOL, ())]
        handed_in += [types.get(name) for name in node.input[2:]]
    elif onnx_op(node) == "Scan" and opsets.get("", 1) >= _SCAN_WITHOUT_BATCH:
        handed_in = _slices(node, types)
    return {
        value.name: known
        for value, known in zip(body.input, handed_in, strict=False)
        if known is not None
    }


def _slices(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]
) -> list[onnx.TypeProto | None]:
    """A Scan's states as they are, and its scanned inputs without the axis that it runs along."""
    settings = {attribute.name: attribute for attribute in node.attribute}
    asked = settings["num_scan_inputs"].i if "num_scan_inputs" in settings else 0
    num_scanned = min(max(asked, 0), len(node.input))
    num_states = len(node.input) - num_scanned
    axes = list(settings["scan_input_axes"].ints) if "scan_input_axes" in settings else []
    axes += [0] * (num_scanned - len(axes))
    slices: list[onnx.TypeProto | None] = [types.get(name) for name in node.input[:num_states]]
    for name, axis in zip(node.input[num_states:], axes, strict=False):
        known = types.get(name)
        shape = shape_of(known) if known is not None and is_complete(known) else None
        if known is None or shape is None or not -len(shape) <= axis < len(shape):
            slices.append(None)
            continue
        dims = [dim for place, dim in enumerate(shape) if place != axis % len(shape)]
        slices.append(dense_type(known.tensor_type.elem_type, [dim or 0 for dim in dims]))
    return slices


def _loop(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], values: Mapping[str, Array]
) -> _Types:
    """Carried values keep the shape that one iteration keeps; scan outputs stack the iterations."""
    body = _body(node)
    if body is None:
        return {}
    num_carried = max(len(node.input) - 2, 0)
    made = [value.type for value in body.output[1:]]
    found = {}
    for name, initial, after in zip(node.output, node.input[2:], made, strict=False):
        known = types.get(initial)
        if known is not None and is_complete(known) and shape_of(known) == shape_of(after):
            found[name] = known
    trips = _trip_count(node, body, values)
    for name, each in zip(node.output[num_carried:], made[num_carried:], strict=False):
        dims = dims_of(each)
        if trips is not None and is_complete(each) and dims is not None:
            found[name] = dense_type(each.tensor_type.elem_type, (trips, *dims))
    return found


def _trip_count(
    node: onnx.NodeProto, body: onnx.GraphProto, values: Mapping[str, Array]
) -> int | None:
    """How often a Loop runs: its constant limit, where its condition never ends it before."""
    limit, condition = (*node.input, "", "")[:2]
    most = _scalar(values.get(limit))
    going = _scalar(values.get(condition)) if condition else True
    if (limit and not isinstance(most, int)) or going is None:
        return None
    constants = [(each.name, each) for each in body.initializer]
    constants += [(n.output[0], t) for n in body.node if (t := constant_tensor(n)) is not None]
    inside = {name: constant_value(tensor) for name, tensor in constants}
    scalars = LoopBody(
        [value.name for value in body.input],
        [value.name for value in body.output],
        [(onnx_op(n), n.input, n.output[0]) for n in body.node if n.output[0] not in inside],
        lambda name: _scalar(inside[name] if name in inside else values.get(name)),
    )
    first = [_scalar(values.get(name)) for name in node.input[2:]]
    return scalars.trips(max(int(most), 0) if most is not None else None, going, first)


def _scalar(value: Array | None) -> Scalar | None:
    """The only element of a whole number or a condition."""
    if value is None or value.size != 1 or value.dtype.kind not in "iub":
        return None
    element: Scalar = value.item()
    return element


def _body(node: onnx.NodeProto) -> onnx.GraphProto | None:
    return next((attribute.g for attribute in node.attribute if attribute.name == "body"), None)


def _dropout(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> _Types:
    """Output and mask are shaped like the data."""
    data = types.get(node.input[0])
    return {} if data is None else dict.fromkeys(node.output, data)


def values_of_branch(
    node: onnx.NodeProto, values: Mapping[str, Array], bodies: Mapping[str, Body]
) -> dict[str, Array]:
    """What an If puts out, where the branch that runs is known and so are its values."""
    branch = _branch(node, values) if onnx_op(node) == "If" else ""
    if branch not in bodies:
        return {}
    graph, inside = bodies[branch]
    pairs = zip(node.output, graph.output, strict=False)
    return {name: inside[made.name] for name, made in pairs if name and made.name in inside}


def _branch(node: onnx.NodeProto, values: Mapping[str, Array]) -> str:
    """The attribute of the branch that runs; empty where the condition is not known."""
    condition = values.get(node.input[0])
    if condition is None or condition.size != 1:
        return ""
    return "then_branch" if condition.item() else "else_branch"


def _if(node: onnx.NodeProto, values: Mapping[str, Array]) -> _Types:
    """With a known condition the outputs are those of the branch that runs."""
    branch = _branch(node, values)
    graph = next((a.g for a in node.attribute if a.name == branch), None)
    if graph is None:
        return {}
    known = [value.type for value in graph.output]
    return {
        name: proto
        for name, proto in zip(node.output, known, strict=False)
        if name and proto.WhichOneof("value")
    }
