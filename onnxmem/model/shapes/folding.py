"""Values of small constants and of the shape arithmetic on them, within an element budget.

Exporters compute the dims of a Reshape at run time: Shape, Gather, Mul, Concat. With every dim of
the inputs bound, those values are constants, and onnx's reference operators work them out. A value
is only made where its size is known beforehand and small, so a few bytes of a hostile file can
never become gigabytes.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

import numpy as np
import onnx
import onnx.helper

from onnxmem.model.bounds import BOUNDS
from onnxmem.model.constants import Array
from onnxmem.model.shapes import integer_operators
from onnxmem.model.shapes.likeness import Likeness, likeness
from onnxmem.model.traversal import onnx_op
from onnxmem.model.value_types import dense_type, is_complete, shape_of
from onnxmem.ops.spec import Shape, known_dims

MAX_ELEMENTS: Final = BOUNDS.elements
"""A value with more elements than this is not made."""
MAX_TOTAL_ELEMENTS = 2**24
"""Nor is any once so many elements have been made in all."""

SHAPE_ARITHMETIC: Final = frozenset(
    "Abs Add And ArgMax ArgMin Cast CastLike Ceil Clip Concat ConstantOfShape CumSum Div Equal Exp "
    "Expand Flatten Floor Gather GatherElements GatherND Greater GreaterOrEqual Identity Less "
    "LessOrEqual Log Max Mean Min Mod Mul Neg Not OneHot Or Pad Pow Range Reciprocal ReduceMax "
    "ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape Round ScatterElements ScatterND Sign "
    "Slice Split Sqrt Squeeze Sub Sum Tile TopK Transpose Trilu Unsqueeze Where Xor".split()
)
"""Operators whose work is no more than their inputs and outputs are large."""
_NOTHING = np.empty(0)
BOUNDED_BY_INPUT: Final = frozenset({"NonZero", "Compress", "Unique"})
"""Their output shapes depend on values, but never exceed rank x elements of the input."""


@dataclass(slots=True)
class Folder:
    """Works values out until its budget is spent."""

    opsets: Sequence[onnx.OperatorSetIdProto]
    num_elements: int = field(default=0)
    left_out: list[str] = field(default_factory=list)
    """Names of values that would have been made if the budget were larger."""
    evaluated: dict[Likeness, list[Array | None]] = field(default_factory=dict)
    """The outputs of the nodes that were run, of which others are alike."""

    def values_of(
        self,
        node: onnx.NodeProto,
        values: Mapping[str, Array],
        types: Mapping[str, onnx.TypeProto],
    ) -> dict[str, Array]:
        """The values of a node's outputs, where they follow from what is known and are small."""
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
        key = likeness(node, {}, values)
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
        if largest < float("inf"):
            self.left_out.append(node.output[0])
        return False

    def _counted(self, made: dict[str, Array]) -> dict[str, Array]:
        self.num_elements += sum(value.size for value in made.values())
        return made


def type_with_value(proto: onnx.TypeProto | None, value: Array) -> onnx.TypeProto:
    """The type of what has been worked out; the value is right where the two differ."""
    if proto is not None and is_complete(proto) and shape_of(proto) == value.shape:
        return proto
    return dense_type(onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def ends_soon(node: onnx.NodeProto, values: Mapping[str, Array]) -> bool:
    """Whether the reference takes no longer than values of this size warrant.

    Its GatherElements brings an index into range by adding the length again and again
    (``numpy.choose`` with ``mode="wrap"``), 2^63 times if it has to.
    """
    if onnx_op(node) != "GatherElements":
        return True
    indices = values[node.input[1]]
    is_whole = indices.dtype.kind in "iu"
    return is_whole and all(abs(int(index)) <= MAX_ELEMENTS for index in indices.ravel())


def extent(shape: Shape | None) -> float:
    """The elements of a tensor if none of its dims were 0; infinite where one is unknown.

    A tensor without elements may have a huge dim, and a kernel that works along it is not small.
    """
    dims = known_dims(shape)
    return float("inf") if dims is None else prod(max(dim, 1) for dim in dims)


def _shape_value(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> dict[str, Array]:
    """The dims asked for, where these are known; the number of elements, where all are."""
    shape = shape_of(types[node.input[0]]) if node.input[0] in types else None
    if shape is None:
        return {}
    bounds = {attribute.name: attribute.i for attribute in node.attribute}
    asked = shape[bounds.get("start", 0) : bounds.get("end", len(shape))]
    if onnx_op(node) == "Size":
        asked = shape
    dims = known_dims(asked)
    if dims is None:
        return {}
    if onnx_op(node) == "Size":
        return {node.output[0]: np.array(prod(dims), np.int64)} if prod(dims) < 2**63 else {}
    return {node.output[0]: np.array(dims, np.int64)}


def _evaluated(
    node: onnx.NodeProto,
    values: Mapping[str, Array],
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> dict[str, Array]:
    """Run one node, most of them without a runtime; nothing where it refuses its inputs."""
    outputs = [name for name in node.output if name]
    inputs = [values[name] if name else None for name in node.input]
    try:
        with np.errstate(divide="raise", invalid="raise", over="ignore", under="ignore"):
            whole = integer_operators.run(node, inputs)
            made = [whole] if whole is not None else by_reference(node, values, opsets)
    except Exception:  # noqa: BLE001 - whatever a kernel raises, the value is unknown
        return {}
    return {
        name: np.asarray(value)
        for name, value in zip(outputs, made, strict=True)
        if isinstance(value, np.ndarray | np.generic) and value.size <= MAX_ELEMENTS
    }


def by_reference(
    node: onnx.NodeProto, values: Mapping[str, Array], opsets: Sequence[onnx.OperatorSetIdProto]
) -> list[object]:
    """Run one node with onnx's reference operators.

    :raises Exception: whatever these raise of inputs that do not fit.
    """
    inputs = [name for name in dict.fromkeys(node.input) if name]
    outputs = [name for name in node.output if name]
    function = onnx.FunctionProto(
        name="folded", domain="folded", input=inputs, output=outputs, node=[node]
    )
    function.opset_import.extend(opsets)
    # Importing it takes 12 MiB and 45 ms, and few models need it.
    reference = importlib.import_module("onnx.reference")
    evaluator = reference.ReferenceEvaluator(function)
    made: list[object] = evaluator.run(None, {name: values[name] for name in inputs}, attributes={})
    return made
