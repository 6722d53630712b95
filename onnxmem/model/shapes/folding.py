"""Constant folding of shape arithmetic, within a budget of elements.

Exporters compute the dims of a Reshape at run time: Shape, Gather, Mul, Concat. If all dims of the
inputs are bound, these values are constants. A value is only computed if its size is known
beforehand and small, so a few bytes of a hostile file cannot become gigabytes.

The usual operators of shape arithmetic are implemented here with numpy, for integers and booleans;
others run in onnx's reference implementation. That would give the same results for all (a test
compares them), but importing it takes as long as analyzing a small model.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import onnx.helper

from onnxmem.model.bounds import BOUNDS
from onnxmem.model.constants import Array, constant_value
from onnxmem.model.shapes.node_context import NodeSignature, node_signature
from onnxmem.model.traversal import onnx_op
from onnxmem.model.value_types import dense_type, is_complete, shape_of
from onnxmem.ops.spec import Shape, known_dims

MAX_ELEMENTS: Final = BOUNDS.elements
"""Values with more elements are not computed."""
MAX_TOTAL_ELEMENTS = 2**24
"""The most elements that are computed in total."""

SHAPE_ARITHMETIC: Final = frozenset(
    "Abs Add And ArgMax ArgMin Cast CastLike Ceil Clip Concat ConstantOfShape CumSum Div Equal Exp "
    "Expand Flatten Floor Gather GatherElements GatherND Greater GreaterOrEqual Identity Less "
    "LessOrEqual Log Max Mean Min Mod Mul Neg Not OneHot Or Pad Pow Range Reciprocal ReduceMax "
    "ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape Round ScatterElements ScatterND Sign "
    "Slice Split Sqrt Squeeze Sub Sum Tile TopK Transpose Trilu Unsqueeze Where Xor".split()
)
"""Operators whose run time is at most proportional to the sizes of inputs and outputs."""
_NOTHING = np.empty(0)
BOUNDED_BY_INPUT: Final = frozenset({"NonZero", "Compress", "Unique"})
"""Their output shape depends on values, but never exceeds rank x elements of the input."""


@dataclass(slots=True)
class Folder:
    """Computes values until its budget is exhausted."""

    opsets: Sequence[onnx.OperatorSetIdProto]
    num_elements: int = field(default=0)
    left_out: list[str] = field(default_factory=list)
    """Values that were not computed because of the budget."""
    evaluated: dict[NodeSignature, list[Array | None]] = field(default_factory=dict)
    """The outputs of evaluated nodes by signature."""

    def values_of(
        self,
        node: onnx.NodeProto,
        values: Mapping[str, Array],
        types: Mapping[str, onnx.TypeProto],
    ) -> dict[str, Array]:
        """The values of a node's outputs, if its inputs are known and both are small."""
        # All checks come before the evaluation: the memory and time of a kernel are bounded by the
        # sizes that are known here, never by what it would compute.
        if onnx_op(node) in {"Shape", "Size"}:
            return self._counted(_shape_value(node, types))
        for name in node.input[:]:
            value = values.get(name) if name else _NOTHING
            if value is None or extent(value.shape) > MAX_ELEMENTS:
                return {}
        if onnx_op(node) not in BOUNDED_BY_INPUT and not self._fits(node, types):
            return {}
        if not ends_soon(node, values):
            return {}
        return self._counted(self._evaluated(node, values))

    def _evaluated(self, node: onnx.NodeProto, values: Mapping[str, Array]) -> dict[str, Array]:
        # Values determine types, so the signature needs none. Only nodes whose values are too large
        # for a signature are evaluated every time.
        key = node_signature(node, {}, values)
        if key is None:
            return _evaluated(node, values, self.opsets)
        if key not in self.evaluated:
            made = _evaluated(node, values, self.opsets)
            self.evaluated[key] = [made.get(name) for name in node.output]
        pairs = zip(node.output, self.evaluated[key], strict=True)
        return {name: value for name, value in pairs if value is not None}

    def _fits(self, node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> bool:
        if onnx_op(node) not in SHAPE_ARITHMETIC:
            return False
        extents = [
            extent(shape_of(types[name])) if name in types else float("inf")
            for name in node.output
            if name
        ]
        largest = max(extents, default=0)
        if largest <= MAX_ELEMENTS and self.num_elements <= MAX_TOTAL_ELEMENTS:
            return True
        # A value of unknown size is not left out because of the limit: a higher one would not help.
        if largest < float("inf"):
            self.left_out.append(node.output[0])
        return False

    def _counted(self, made: dict[str, Array]) -> dict[str, Array]:
        self.num_elements += sum(value.size for value in made.values())
        return made


def type_with_value(proto: onnx.TypeProto | None, value: Array) -> onnx.TypeProto:
    """The type of a computed value; the value wins if the inferred type differs."""
    if proto is not None and is_complete(proto) and shape_of(proto) == value.shape:
        return proto
    return dense_type(onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def ends_soon(node: onnx.NodeProto, values: Mapping[str, Array]) -> bool:
    """Whether the reference implementation takes time in proportion to the sizes of values.

    Its GatherElements adds the length to an index until it is in range (``numpy.choose`` with
    ``mode="wrap"``), up to 2^63 times.
    """
    if onnx_op(node) != "GatherElements":
        return True
    indices = values[node.input[1]]
    is_whole = indices.dtype.kind in "iu"
    return is_whole and all(abs(int(index)) <= MAX_ELEMENTS for index in indices.ravel())


def extent(shape: Shape | None) -> float:
    """The elements of a tensor if dims of 0 were 1; infinite if a dim is unknown.

    A tensor without elements may have a huge dim, which a kernel may iterate over.
    """
    dims = known_dims(shape)
    return float("inf") if dims is None else prod(max(dim, 1) for dim in dims)


def _shape_value(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> dict[str, Array]:
    """The output of Shape or Size, if the dims that it needs are known."""
    shape = shape_of(types[node.input[0]]) if node.input[0] in types else None
    if shape is None:
        return {}
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    # Shape clamps `start` and `end` (since opset 15) as a slice of Python does.
    requested = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
    if onnx_op(node) == "Size":
        requested = shape
    dims = known_dims(requested)
    if dims is None:
        return {}
    if onnx_op(node) == "Size":
        # The result is an int64, which a product of huge dims exceeds.
        return {node.output[0]: np.array(prod(dims), np.int64)} if prod(dims) < 2**63 else {}
    return {node.output[0]: np.array(dims, np.int64)}


def _evaluated(
    node: onnx.NodeProto,
    values: Mapping[str, Array],
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> dict[str, Array]:
    """Run one node; nothing if it rejects its inputs."""
    outputs = [name for name in node.output if name]
    inputs = [values[name] if name else None for name in node.input]
    try:
        # An integer divided by 0 is 0 in numpy, with a warning, and undefined in C++: such a value
        # stays unknown. Floats overflow to infinity and underflow to 0 in both.
        with np.errstate(divide="raise", invalid="raise", over="ignore", under="ignore"):
            whole = run(node, inputs)
            made = [whole] if whole is not None else by_reference(node, values, opsets)
    except Exception:  # noqa: BLE001 - kernels raise anything; the value stays unknown
        return {}
    return {
        name: np.asarray(value)
        for name, value in zip(outputs, made, strict=True)
        if isinstance(value, np.ndarray | np.generic) and value.size <= MAX_ELEMENTS
    }


def by_reference(
    node: onnx.NodeProto, values: Mapping[str, Array], opsets: Sequence[onnx.OperatorSetIdProto]
) -> list[object]:
    """Run one node in onnx's reference implementation.

    :raises Exception: of any kind, if the inputs do not fit.
    """
    inputs = [name for name in dict.fromkeys(node.input) if name]
    outputs = [name for name in node.output if name]
    # As a function, because a graph would have to declare the types of its inputs.
    function = onnx.FunctionProto(
        name="folded", domain="folded", input=inputs, output=outputs, node=[node]
    )
    function.opset_import.extend(opsets)
    # Importing it takes 12 MiB and 45 ms, and few models need it.
    reference = importlib.import_module("onnx.reference")
    evaluator = reference.ReferenceEvaluator(function)
    feeds = {name: values[name] for name in inputs}
    results: list[object] = evaluator.run(None, feeds, attributes={})
    return results


_Run = Callable[..., Any]
_Attributes = Mapping[str, onnx.AttributeProto]
_INTEGERS: Final = "iu"
_WHOLE: Final = "biu"
_NUMBERS: Final = "biuf"
_WITH_GAPS: Final = "Slice"
"""The only operator with optional inputs before others."""
_NUM_DATA: Final[Mapping[str, int]] = MappingProxyType(
    {
        **dict.fromkeys(("ConstantOfShape", "Range"), 0),
        **dict.fromkeys(("Expand", "Gather", "Reshape", "Slice", "Squeeze", "Unsqueeze"), 1),
    }
)
"""The number of data inputs, before inputs for axes and dims; all inputs of other operators."""
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
    """The output of a node; a missing input is ``None``.

    ``None`` if the operator or the types of inputs are not implemented here.

    :raises Exception: of any kind, if the inputs do not fit.
    """
    operator = _OPERATORS.get(node.op_type)
    # These rules only save time: wherever one does not hold exactly, the result is ``None`` and
    # onnx's reference implementation computes the value.
    if operator is None or node.domain or not _fit(node, inputs):
        return None
    if len(node.output) != 1 or not node.output[0]:
        return None
    attributes = {attribute.name: attribute for attribute in node.attribute}
    # An attribute that no rule here reads may change the result.
    if not attributes.keys() <= _ATTRIBUTES.get(node.op_type, frozenset()):
        return None
    try:
        made = operator(attributes, *inputs)
    except TypeError:
        # Another number of inputs: an older version of the operator.
        return None
    return None if made is None else np.asarray(made)


def _fit(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> bool:
    """Whether the types of inputs are implemented here.

    Arithmetic is on integers and booleans, layout operators accept all numbers; axes and dims are
    integers, and in most operators lists.
    """
    num_data = _NUM_DATA.get(node.op_type, len(inputs))
    kinds = _NUMBERS if node.op_type in _MOVING else _WHOLE
    for index, each in enumerate(inputs):
        if each is None:
            # Only Slice has an optional input before another one.
            is_fit = node.op_type == _WITH_GAPS
        elif index < num_data:
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
    # numpy would promote parts of different types, which ONNX does not accept.
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
    # Slice clamps its bounds as a slice of Python does; `axes` may be negative in both.
    for axis, *bounds in np.stack((axes, starts, ends, steps), axis=1).tolist():
        slices[axis] = slice(*bounds)
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
        dims = [data.shape[axis] if dim == 0 else dim for axis, dim in enumerate(dims)]
    return data.reshape(dims)


def _expand(_: _Attributes, data: Array, shape: Array) -> Array:
    # Expand broadcasts in both directions, which ``np.broadcast_to`` does not.
    return np.multiply(data, np.ones(tuple(shape.tolist()), data.dtype))


def _where(_: _Attributes, condition: Array, one: Array, other: Array) -> Array | None:
    if condition.dtype.kind != "b" or one.dtype != other.dtype:
        return None
    return np.where(condition, one, other)


def _of_two(run_two: _Run, kinds: str, _: _Attributes, one: Array, other: Array) -> Any:  # noqa: ANN401 - a ufunc's
    # numpy would promote different types, where ONNX does not accept them.
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
"""The attributes of operators that have any; one with other attributes is of another version."""
