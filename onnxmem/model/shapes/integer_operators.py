"""The operators that exporters work shapes out with, on integers and bools, by numpy.

onnx's reference runs all others. It says what these come to as well, and a test holds them to it,
but to import it takes as long as to analyse a small model.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx

from onnxmem.model.constants import Array, constant_value

_Run = Callable[..., Any]
_Attributes = Mapping[str, onnx.AttributeProto]
_INTEGERS: Final = "iu"
_WHOLE: Final = "biu"
_NUMBERS: Final = "biuf"
_WITH_GAPS: Final = "Slice"
"""The one operator whose inputs in the middle may be left out."""
_NUM_DATA: Final[Mapping[str, int]] = MappingProxyType(
    {
        **dict.fromkeys(("ConstantOfShape", "Range"), 0),
        **dict.fromkeys(("Expand", "Gather", "Reshape", "Slice", "Squeeze", "Unsqueeze"), 1),
    }
)
"""Inputs before those that say places and dims, which are integers; of others all."""
_BY_ANY_RANK: Final = frozenset({"Gather", "Range"})
_MOVING: Final = frozenset(
    {"Concat", "Expand", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze", "Where"}
)
_CAST_TO: Final[Mapping[int, type[np.generic]]] = MappingProxyType(
    {
        onnx.TensorProto.BOOL: np.bool_,
        onnx.TensorProto.INT32: np.int32,
        onnx.TensorProto.INT64: np.int64,
    }
)


def run(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> Array | None:
    """What a node makes of its inputs, ``None`` among them being left out.

    ``None``: it is none of these operators, or its inputs are of other kinds.

    :raises Exception: the inputs do not fit, as numpy says.
    """
    operator = _OPERATORS.get(node.op_type)
    if operator is None or node.domain or not _fit(node, inputs):
        return None
    if len(node.output) != 1 or not node.output[0]:
        return None
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if not attributes.keys() <= _ATTRIBUTES.get(node.op_type, frozenset()):
        return None
    try:
        made = operator(attributes, *inputs)
    except TypeError:
        # Another number of inputs: an older form of the operator.
        return None
    return None if made is None else np.asarray(made)


def _fit(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> bool:
    """Whether inputs are of the kinds that are worked out here.

    What is worked with is integers or bools, what is only moved any numbers; what says places or
    dims is integers, and most of it a list.
    """
    num_data = _NUM_DATA.get(node.op_type, len(inputs))
    kinds = _NUMBERS if node.op_type in _MOVING else _WHOLE
    for place, each in enumerate(inputs):
        if each is None:
            is_fit = node.op_type == _WITH_GAPS
        elif place < num_data:
            is_fit = each.dtype.kind in kinds
        else:
            is_list = each.ndim == 1 or node.op_type in _BY_ANY_RANK
            is_fit = each.dtype.kind in _INTEGERS and is_list
        if not is_fit:
            return False
    return True


def _gather(attributes: _Attributes, data: Array, indices: npt.NDArray[np.int64]) -> Array:
    axis = attributes["axis"].i if "axis" in attributes else 0
    return np.take(data, indices, axis=axis)


def _concat(attributes: _Attributes, *parts: Array) -> Array | None:
    if "axis" not in attributes or len({part.dtype for part in parts}) > 1:
        return None
    return np.concatenate(parts, attributes["axis"].i)


def _unsqueeze(_: _Attributes, data: Array, axes: Array) -> Array:
    return np.expand_dims(data, tuple(axes.tolist()))


def _squeeze(_: _Attributes, data: Array, axes: Array | None = None) -> Array:
    return np.squeeze(data, None if axes is None else tuple(axes.tolist()))


def _slice(
    _: _Attributes,
    data: Array,
    starts: Array,
    ends: Array,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array | None:
    axes = np.arange(starts.size) if axes is None else axes
    steps = np.ones(starts.size, np.int64) if steps is None else steps
    if {each.size for each in (ends, axes, steps)} != {starts.size}:
        return None
    slices = [slice(None)] * data.ndim
    for place, *bounds in np.stack((axes, starts, ends, steps), axis=1).tolist():
        slices[place] = slice(*bounds)
    return data[tuple(slices)]


def _range(_: _Attributes, start: Array, limit: Array, delta: Array) -> Array:
    return np.arange(start.item(), limit.item(), delta.item()).astype(start.dtype)


def _constant_of_shape(attributes: _Attributes, shape: Array) -> Array | None:
    value = constant_value(attributes["value"].t) if "value" in attributes else None
    if value is None or value.size != 1:
        return None
    return np.full(tuple(shape.tolist()), value.flat[0])


def _cast(attributes: _Attributes, data: Array) -> Array | None:
    to = _CAST_TO.get(attributes["to"].i) if "to" in attributes else None
    return None if to is None else data.astype(to)


def _reshape(attributes: _Attributes, data: Array, shape: Array) -> Array:
    keeps_zeros = "allowzero" in attributes and attributes["allowzero"].i == 1
    dims = shape.tolist()
    if not keeps_zeros:
        dims = [data.shape[place] if dim == 0 else dim for place, dim in enumerate(dims)]
    return data.reshape(dims)


def _expand(_: _Attributes, data: Array, shape: Array) -> Array:
    return np.multiply(data, np.ones(tuple(shape.tolist()), data.dtype))


def _where(_: _Attributes, condition: Array, one: Array, other: Array) -> Array | None:
    if condition.dtype.kind != "b" or one.dtype != other.dtype:
        return None
    return np.where(condition, one, other)


def _of_two(run_two: _Run, kinds: str, _: _Attributes, one: Array, other: Array) -> Any:  # noqa: ANN401 - a ufunc's
    if one.dtype != other.dtype or one.dtype.kind not in kinds:
        return None
    return run_two(one, other)


def _identity(_: _Attributes, data: Array) -> Array:
    return data


def _not(_: _Attributes, data: Array) -> Array | None:
    return None if data.dtype.kind != "b" else np.logical_not(data)


_OPERATORS: Final[Mapping[str, _Run]] = MappingProxyType(
    {
        "Add": partial(_of_two, np.add, _INTEGERS),
        "And": partial(_of_two, np.logical_and, "b"),
        "Cast": _cast,
        "Concat": _concat,
        "ConstantOfShape": _constant_of_shape,
        "Equal": partial(_of_two, np.equal, _WHOLE),
        "Expand": _expand,
        "Gather": _gather,
        "Greater": partial(_of_two, np.greater, _INTEGERS),
        "GreaterOrEqual": partial(_of_two, np.greater_equal, _INTEGERS),
        "Identity": _identity,
        "Less": partial(_of_two, np.less, _INTEGERS),
        "LessOrEqual": partial(_of_two, np.less_equal, _INTEGERS),
        "Max": partial(_of_two, np.maximum, _INTEGERS),
        "Min": partial(_of_two, np.minimum, _INTEGERS),
        "Mul": partial(_of_two, np.multiply, _INTEGERS),
        "Not": _not,
        "Or": partial(_of_two, np.logical_or, "b"),
        "Range": _range,
        "Reshape": _reshape,
        "Slice": _slice,
        "Squeeze": _squeeze,
        "Sub": partial(_of_two, np.subtract, _INTEGERS),
        "Unsqueeze": _unsqueeze,
        "Where": _where,
    }
)
_ATTRIBUTES: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "Cast": frozenset({"to", "saturate"}),
        "Concat": frozenset({"axis"}),
        "ConstantOfShape": frozenset({"value"}),
        "Gather": frozenset({"axis"}),
        "Reshape": frozenset({"allowzero"}),
    }
)
"""Of the operators that have any; with another one a node is of another version."""
