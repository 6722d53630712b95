"""The types of a large graph at other dims, from nodes that are alike.

A large graph is few blocks many times over. Where onnx alone has told all its types at some dims,
two nodes are alike whose operators, attributes and small constants are the same and whose inputs
are of the same types, both at those dims and at the new ones. Of nodes that are alike one is asked:
at the old dims, where the answer must be what onnx said of the whole graph, and at the new ones.
onnx works each node of a whole graph out by the same function, from the same inputs; what it takes
longer for is to write the whole graph and to have it read again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx
import onnx.helper

from onnxmem.model.binding import Binding, given_inputs
from onnxmem.model.constants import Array
from onnxmem.model.dtypes import DType
from onnxmem.model.graph import Graph, Role, Tensor
from onnxmem.model.shapes.declared import agree
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.model.value_types import Known, dense_type, known_of
from onnxmem.ops.spec import known_dims

MANY_NODES: Final = 5_000
"""Of fewer nodes onnx is sooner asked as a whole."""
_NODES_OF_A_KIND: Final = 32
"""So many nodes at least are alike on average, or to ask one of each is no gain."""

_LEFT_OUT: Final = -1
"""In place of a kind, of an operand that is left out."""
_STORED: Final = frozenset({Role.WEIGHT, Role.UNREAD})
_NUMBERS: Final[Mapping[DType | None, int]] = {
    dtype: number for number, dtype in enumerate(DType, start=1)
}

_PLAIN: Final = frozenset(
    {
        *(onnx.AttributeProto.INT, onnx.AttributeProto.INTS, onnx.AttributeProto.FLOAT),
        *(onnx.AttributeProto.FLOATS, onnx.AttributeProto.STRING, onnx.AttributeProto.STRINGS),
    }
)
"""Attributes that the record of a node holds."""


@dataclass(frozen=True, slots=True)
class Told:
    """A graph of which onnx alone told all types, at the dims that it was asked for."""

    model: onnx.ModelProto
    graph: Graph
    types: Mapping[str, Known]
    """Of the graph's inputs and of what its nodes make."""

    def types_at(self, binding: Binding) -> Mapping[str, Known] | None:
        """The same at other dims; ``None`` where they do not follow so, or the graph is small."""
        nodes = self.model.graph.node
        if len(nodes) < MANY_NODES or not all(map(_is_plain, nodes)):
            return None
        types = _Walk(self).types_at(binding)
        is_told = types is not None and agree(self.model.graph, binding.dims, types)
        return types if is_told else None


def _is_plain(node: onnx.NodeProto) -> bool:
    """Whether the record of a node holds all of its attributes, or its outputs are constants."""
    attributes = node.attribute
    return (
        not attributes
        or node.op_type == "Constant"
        or all(each.type in _PLAIN and not each.ref_attr_name for each in attributes)
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is known of the tensors of one kind."""

    old: onnx.TypeProto
    new: onnx.TypeProto
    value: tuple[int | float, ...] | None = None
    """The elements of a small constant."""


@dataclass(slots=True)
class _Walk:
    told: Told
    kinds: list[_Kind] = field(default_factory=list)
    places: dict[tuple[object, ...], int] = field(default_factory=dict)
    """What tells a kind, and its place among the kinds."""
    asker: NodeInference = field(init=False)

    def __post_init__(self) -> None:
        self.asker = NodeInference(self.told.model)

    def types_at(self, binding: Binding) -> Mapping[str, Known] | None:
        """Walk the nodes in running order, and ask of those that are alike the first."""
        nodes, of = self.told.graph.nodes, {"": _LEFT_OUT}
        of.update(self._given(binding))
        answers: dict[tuple[object, ...], Sequence[int]] = {}
        for place, node in enumerate(nodes):
            if node.op_type == "Constant":
                if not of.keys() >= {*node.outputs}:
                    return None
                continue
            inputs = tuple([of[name] for name in node.inputs])
            key = (node.op_type, node.domain, id(node.attributes), inputs, *map(bool, node.outputs))
            made = answers.get(key)
            if made is None:
                made = self._asked(self.told.model.graph.node[place], inputs)
                if made is None or len(answers) * _NODES_OF_A_KIND > len(nodes):
                    return None
                answers[key] = made
            of.update(zip(node.outputs, made, strict=True))
        known = [known_of(kind.new) for kind in self.kinds]
        return {name: known[kind] for name, kind in of.items() if name}

    def _given(self, binding: Binding) -> Iterator[tuple[str, int]]:
        """The kinds of the inputs, of the weights and of what Constant nodes make."""
        for value in given_inputs(self.told.model.graph):
            old, new = onnx.TypeProto(), onnx.TypeProto()
            for proto in (old, new):
                proto.CopyFrom(value.type)
            if value.name in binding.shapes:
                _set_dims(old, self.told.types[value.name].shape or ())
                _set_dims(new, binding.shapes[value.name])
            yield value.name, self._kind(_Kind(old, new))
        for tensor in self.told.graph.tensors.values():
            if tensor.role in _STORED:
                yield tensor.name, self._stored(tensor)

    def _stored(self, weight: Tensor) -> int:
        value, dims = self.told.graph.values.get(weight.name), weight.shape
        # What is no float and not at hand may hold dims all the same.
        is_itself = value is None and (weight.dtype is None or not weight.dtype.is_floating)
        key = dims, weight.dtype, repr(value), weight.name if is_itself else ""
        if key not in self.places:
            proto = dense_type(_NUMBERS.get(weight.dtype, 0), known_dims(dims) or ())
            self.places[key] = len(self.kinds)
            self.kinds.append(_Kind(proto, proto, value))
        return self.places[key]

    def _kind(self, kind: _Kind) -> int:
        key = kind.old.SerializeToString(), kind.new.SerializeToString()
        if key not in self.places:
            self.places[key] = len(self.kinds)
            self.kinds.append(kind)
        return self.places[key]

    def _asked(self, node: onnx.NodeProto, inputs: Sequence[int]) -> Sequence[int] | None:
        """The kinds of a node's outputs; ``None``: it does not answer as in the whole graph."""
        given = {name: self.kinds[at] for name, at in zip(node.input, inputs, strict=True) if name}
        values = {name: _array(kind) for name, kind in given.items() if kind.value is not None}
        before = self.asker.onnx_types(node, {n: kind.old for n, kind in given.items()}, values)
        after = self.asker.onnx_types(node, {n: kind.new for n, kind in given.items()}, values)
        made = []
        for name in node.output:
            if name and not (
                name in before
                and name in after
                and known_of(before[name]) == self.told.types[name]
                and known_of(after[name]).is_complete
            ):
                return None
            made.append(self._kind(_Kind(before[name], after[name])) if name else _LEFT_OUT)
        return made


def _set_dims(proto: onnx.TypeProto, dims: Sequence[int | None]) -> None:
    shape = proto.tensor_type.shape
    del shape.dim[:]
    shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=dim) for dim in dims)


def _array(kind: _Kind) -> Array:
    """The elements of a small constant as they stand in the file."""
    dense = kind.old.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(dense.elem_type)
    return np.array(kind.value, dtype).reshape([dim.dim_value for dim in dense.shape.dim])
