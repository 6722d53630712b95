"""What a shape rule reads of a node: attributes, and the types and values of its operands."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import onnx

from onnxmem.model.constants import Array
from onnxmem.model.value_types import dense_type, dims_of
from onnxmem.ops.spec import Dims

_MAX_DIM: Final = 2**63 - 1

Types = Mapping[str, onnx.TypeProto]
Found = dict[str, onnx.TypeProto]
"""Types of outputs by their names."""


@dataclass(frozen=True, slots=True)
class InferenceContext:
    """One node with what is known of the values that it reads."""

    node: onnx.NodeProto
    types: Types
    values: Mapping[str, Array] = field(default_factory=dict)
    """Elements of the small inputs whose values are known."""
    attributes: Mapping[str, onnx.AttributeProto] = field(init=False)

    def __post_init__(self) -> None:
        attributes = {attribute.name: attribute for attribute in self.node.attribute}
        object.__setattr__(self, "attributes", attributes)

    def dims(self, place: int) -> Dims | None:
        """The dims of an input, where every one is known."""
        return dims_of(self.input_type(place))

    def elem_type(self, place: int) -> int:
        """The element type of an input; 0 where that is unknown."""
        proto = self.input_type(place)
        return 0 if proto is None else proto.tensor_type.elem_type

    def has(self, place: int) -> bool:
        """Whether an optional input is given."""
        return place < len(self.node.input) and self.node.input[place] != ""

    def input_type(self, place: int) -> onnx.TypeProto | None:
        """The type of an input; ``None`` where it is left out or unknown."""
        return self.types.get(self.node.input[place]) if self.has(place) else None

    def whole_numbers(self, place: int) -> Dims | None:
        """The elements of an input, where they are known and whole numbers."""
        value = self.values.get(self.node.input[place]) if self.has(place) else None
        if value is None or value.dtype.kind not in "iu":
            return None
        return tuple(int(element) for element in value.ravel().tolist())

    def integer(self, name: str, default: int = 0) -> int:
        """An integer attribute."""
        return self.attributes[name].i if name in self.attributes else default

    def integers(self, name: str) -> tuple[int, ...]:
        """A list attribute of integers; empty where it is left out."""
        return tuple(self.attributes[name].ints) if name in self.attributes else ()

    def text(self, name: str) -> str:
        """A string attribute; empty where it is left out."""
        raw = self.attributes[name].s if name in self.attributes else b""
        return raw.decode(errors="replace")

    def outputs(self, *shapes: Dims | None, elem_type: int) -> Found:
        """Types of the first outputs, of one element type; those of unknown shape are left out."""
        known = zip(self.node.output, shapes, strict=False)
        return {
            name: dense_type(elem_type, dims)
            for name, dims in known
            if name and elem_type and dims is not None and all(0 <= dim <= _MAX_DIM for dim in dims)
        }


def broadcast(one: Dims | None, other: Dims | None) -> Dims | None:
    """The common shape of two; ``None`` where one is unknown or they do not fit."""
    if one is None or other is None:
        return None
    rank = max(len(one), len(other))
    pairs = zip((1,) * (rank - len(one)) + one, (1,) * (rank - len(other)) + other, strict=True)
    dims = [b if a == 1 else a if b in {1, a} else None for a, b in pairs]
    known = tuple(dim for dim in dims if dim is not None)
    return known if len(known) == rank else None


def product(one: Dims | None, other: Dims | None) -> Dims | None:
    """What ``MatMul`` makes of two, batch dims broadcast; ``None`` where they do not fit."""
    if not one or not other:
        return None
    batch = broadcast(one[:-2], other[:-2])
    columns = other[-1:] if len(other) > 1 else ()
    return None if batch is None else (*batch, *one[-2:-1], *columns)


_MAX_ELEMENTS = 256
"""Of a value that nodes are told by: one that reads a larger one is like no other."""

NodeSignature = tuple[object, ...]


def node_signature(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], values: Mapping[str, Array]
) -> NodeSignature | None:
    """All that a node's outputs follow from but names; ``None`` where it is like no other.

    The graphs inside a node read names of their own, so that such a node is none's like.
    """
    attributes = node.attribute[:]
    if any(attribute.HasField("g") or attribute.graphs for attribute in attributes):
        return None
    inputs = node.input[:]
    # An operand that is left out is not one of which nothing is known.
    given = (len(inputs), *map(bool, inputs), *map(bool, node.output))
    found: list[object] = [node.op_type, node.domain, *given]
    for name in inputs:
        proto, value = types.get(name), values.get(name)
        found.append(None if proto is None else proto.SerializeToString())
        if value is not None:
            if value.size > _MAX_ELEMENTS or value.dtype.hasobject:
                return None
            found += value.dtype, value.shape, value.tobytes()
    found += (attribute.SerializeToString() for attribute in attributes)
    return tuple(found)
