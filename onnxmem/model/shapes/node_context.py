"""The arguments of shape rules: a node, and the types and known values of its operands."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

import onnx

from onnxmem.model.constants import Array
from onnxmem.model.value_types import dense_type, dims_of, shape_of
from onnxmem.ops.spec import Dims

_MAX_DIM: Final = 2**63 - 1

Types = Mapping[str, onnx.TypeProto]
Found = dict[str, onnx.TypeProto]
"""Types of outputs by name."""
Dim = int | str | None
"""A number, a symbol, or unknown."""
SymbolicShape = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class InferenceContext:
    """A node with the types and values of its inputs, as far as they are known."""

    node: onnx.NodeProto
    types: Types
    values: Mapping[str, Array] = field(default_factory=dict)
    """Known values of small tensors."""
    attributes: Mapping[str, onnx.AttributeProto] = field(init=False)

    def __post_init__(self) -> None:
        attributes = {attribute.name: attribute for attribute in self.node.attribute}
        object.__setattr__(self, "attributes", attributes)

    def dims(self, index: int) -> Dims | None:
        """The dims of an input; ``None`` unless all are known."""
        return dims_of(self.input_type(index))

    def shape(self, index: int) -> SymbolicShape | None:
        """The dims of an input as far as they are known; ``None`` if its rank is unknown."""
        proto = self.input_type(index)
        if proto is None or shape_of(proto) is None:
            return None
        return tuple(
            dim.dim_value
            if dim.HasField("dim_value") and dim.dim_value >= 0
            else dim.dim_param or None
            for dim in proto.tensor_type.shape.dim
        )

    def elem_type(self, index: int) -> int:
        """The element type of an input; 0 if it is unknown."""
        proto = self.input_type(index)
        return 0 if proto is None else proto.tensor_type.elem_type

    def has(self, index: int) -> bool:
        """Whether the node has an optional input."""
        return index < len(self.node.input) and self.node.input[index] != ""

    def input_type(self, index: int) -> onnx.TypeProto | None:
        """The type of an input; ``None`` if it is missing or unknown."""
        return self.types.get(self.node.input[index]) if self.has(index) else None

    def whole_numbers(self, index: int) -> Dims | None:
        """The elements of an input; ``None`` unless they are known integers."""
        value = self.values.get(self.node.input[index]) if self.has(index) else None
        if value is None or value.dtype.kind not in "iu":
            return None
        return tuple(int(element) for element in value.ravel().tolist())

    def integer(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        return self.attributes[name].i if name in self.attributes else default

    def integers(self, name: str) -> tuple[int, ...]:
        """A list attribute of integers; empty by default."""
        return tuple(self.attributes[name].ints) if name in self.attributes else ()

    def text(self, name: str) -> str:
        """A string attribute; empty by default."""
        raw = self.attributes[name].s if name in self.attributes else b""
        return raw.decode(errors="replace")

    def outputs(self, *shapes: SymbolicShape | None, elem_type: int) -> Found:
        """The types of the first outputs, with one element type; unknown shapes are skipped."""
        return {
            name: _tensor_type(elem_type, shape)
            for name, shape in zip(self.node.output, shapes, strict=False)
            if name and elem_type and shape is not None and all(map(_is_dim, shape))
        }


def broadcast(one: SymbolicShape | None, other: SymbolicShape | None) -> SymbolicShape | None:
    """The shape to which two shapes broadcast; ``None`` if one is unknown or they do not fit.

    onnx/defs/shape_inference.h, ``bidirectionalBroadcastShapeInference``.
    """
    if one is None or other is None:
        return None
    rank = max(len(one), len(other))
    padded = ((1,) * (rank - len(shape)) + shape for shape in (one, other))
    # Aligned at the last axis, as in NumPy; a missing axis counts as 1.
    pairs = list(zip(*padded, strict=True))
    if any(1 not in pair and _differ(*pair) for pair in pairs):
        return None
    return tuple(_common_dim(*pair) for pair in pairs)


def product(one: SymbolicShape | None, other: SymbolicShape | None) -> SymbolicShape | None:
    """The output shape of ``MatMul``, with broadcast batch dims; ``None`` if they do not fit."""
    if not one or not other:
        return None
    # [*batch, M, K] x [*batch, K, N]; a vector loses its axis in the product.
    batch = broadcast(one[:-2], other[:-2])
    columns = other[-1:] if len(other) > 1 else ()
    return None if batch is None else (*batch, *one[-2:-1], *columns)


def _differ(one: Dim, other: Dim) -> bool:
    return isinstance(one, int) and isinstance(other, int) and one != other


def _common_dim(one: Dim, other: Dim) -> Dim:
    """The broadcast dim; a number above 1 wins over an unknown dim, which must be equal or 1."""
    if one == 1:
        return other
    if other in {1, one}:
        return one
    return next((dim for dim in (one, other) if isinstance(dim, int)), None)


def _is_dim(dim: Dim) -> bool:
    return not isinstance(dim, int) or 0 <= dim <= _MAX_DIM


def _tensor_type(elem_type: int, shape: SymbolicShape) -> onnx.TypeProto:
    if all(isinstance(dim, int) for dim in shape):
        return dense_type(elem_type, cast("Dims", shape))
    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = elem_type
    for dim in shape:
        added = proto.tensor_type.shape.dim.add()
        if isinstance(dim, int):
            added.dim_value = dim
        elif dim is not None:
            added.dim_param = dim
    return proto


_MAX_ELEMENTS = 256
"""Values with more elements are not part of a signature: a node that reads one has none."""

NodeSignature = tuple[object, ...]


def node_signature(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], values: Mapping[str, Array]
) -> NodeSignature | None:
    """Everything that the types of a node's outputs depend on; equal nodes differ only in names.

    ``None`` if that is too large, or if the node has subgraphs, which read tensors by name.
    """
    attributes = node.attribute[:]
    if any(attribute.HasField("g") or attribute.graphs for attribute in attributes):
        return None
    inputs = node.input[:]
    # A missing operand must differ from one whose type is unknown: both have no type.
    present = (len(inputs), *map(bool, inputs), *map(bool, node.output))
    found: list[object] = [node.op_type, node.domain, *present]
    for name in inputs:
        proto, value = types.get(name), values.get(name)
        found.append(None if proto is None else proto.SerializeToString())
        if value is not None:
            # The bytes of an array of objects are addresses.
            if value.size > _MAX_ELEMENTS or value.dtype.hasobject:
                return None
            found += value.dtype, value.shape, value.tobytes()
    found += (attribute.SerializeToString() for attribute in attributes)
    return tuple(found)
