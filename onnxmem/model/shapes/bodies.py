"""Subgraphs in the signature of a node, and the types of their tensors from one inference.

``type_memo`` infers each distinct node once. A node with subgraphs is distinct by their nodes, by
the types of what they read from outside and of the constants in them, and by what they declare.
Their tensors are numbered in the order in which they are met, so that names do not count.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import onnx

from onnxmem.model.constants import Array
from onnxmem.model.graph import Graph, Node
from onnxmem.model.shapes.inference import inferred_alone
from onnxmem.model.traversal import initializer_names, outer_reads, subgraphs
from onnxmem.model.value_types import forget_shapes

_OMITTED: Final = -1
"""The number of a missing operand."""


class NoSignatureError(Exception):
    """The subgraphs of a node have no signature: constants hide how their tensors are named."""


@dataclass(slots=True)
class Bodies:
    """The subgraphs of one node. Mutable: ``add`` numbers the tensors of one after another."""

    signature_of: Callable[[onnx.NodeProto, Node], object]
    """The operator and the attributes of a node, without its subgraphs."""
    key: list[object] = field(default_factory=list)
    """What the types depend on besides the types of the operands."""
    operands: list[str] = field(default_factory=list)
    """What the subgraphs read from outside, and their constants."""
    written: list[str] = field(default_factory=list)
    """The inputs and activations of the subgraphs, in the order of ``types_written``."""
    declared: list[tuple[str, onnx.TypeProto]] = field(default_factory=list)
    """The types that the subgraphs declare for what their nodes write."""
    numbers: dict[str, int] = field(default_factory=lambda: {"": _OMITTED})

    def add(self, attribute: str, proto: onnx.GraphProto, graph: Graph) -> None:
        """Number the tensors of a subgraph and of those inside it.

        :raises NoSignatureError: an input has a default, or a constant is sparse or not unique.
        """
        inputs, weights = proto.input, proto.initializer
        if proto.sparse_initializer or len(inputs) != len(graph.inputs):
            raise NoSignatureError
        if weights and len({tensor.name for tensor in weights}) < len(weights):
            raise NoSignatureError
        self.key += (attribute, len(inputs), len(graph.nodes), len(proto.output))
        self.key += (value.type.SerializeToString() for value in inputs)
        self._define(graph.inputs)
        names: dict[str, str] = {}
        for protos, node in zip(proto.node, graph.nodes, strict=True):
            names.update(zip(protos.output[:], node.outputs, strict=True))
            if node.onnx_op != "Constant":
                self._add_node(protos, node)
        for value, name in zip(proto.output, graph.outputs, strict=True):
            kind = value.type.WhichOneof("value")
            is_dense = kind == "tensor_type"
            declared = value.type.tensor_type.elem_type if is_dense else kind
            # Names do not matter, only which tensor it is: two bodies with other names have one
            # signature.
            self.key += (self._number(name), declared)
        self.declared += (
            (names[value.name], value.type)
            for value in (*proto.value_info, *proto.output)
            if value.name in names and value.type.tensor_type.HasField("shape")
        )

    def _add_node(self, proto: onnx.NodeProto, node: Node) -> None:
        self.key.append(self.signature_of(proto, node))
        self.key += map(self._number, node.inputs)
        if node.subgraphs:
            for (_, inner), (attribute, graph) in zip(
                subgraphs(proto), node.subgraphs, strict=True
            ):
                self.add(attribute, inner, graph)
        self._define(node.outputs)

    def _number(self, name: str) -> int:
        # A name that the bodies have not defined is of a graph around them: an operand.
        if name not in self.numbers:
            self.numbers[name] = len(self.numbers)
            self.operands.append(name)
        return self.numbers[name]

    def _define(self, names: Sequence[str]) -> None:
        for name in names:
            if name:
                self.key.append(self.numbers.setdefault(name, len(self.numbers)))
                self.written.append(name)


def reads_of(node: onnx.NodeProto) -> list[str]:
    """What a node and its subgraphs read, without the tensors of the subgraphs."""
    outer = (outer_reads(inner) for _, inner in subgraphs(node))
    return list(dict.fromkeys((*filter(None, node.input), *(n for names in outer for n in names))))


def types_inside(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    values: Mapping[str, Array],
) -> tuple[dict[str, onnx.TypeProto], Mapping[str, Array], list[onnx.TypeProto | None]] | None:
    """The types and values of a node's outputs, and the types of ``Bodies.written``.

    ``types`` and ``values`` are those of what the node reads. ``None``: onnx rejects the node.
    """
    # A model of this node: what inference costs does not grow with the graph around it. Known
    # values are initializers there, whose data onnx propagates.
    alone = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    added = alone.graph.node.add()
    added.CopyFrom(node)
    for name, proto in types.items():
        if name in values:
            alone.graph.initializer.append(onnx.numpy_helper.from_array(values[name], name))
        else:
            alone.graph.input.add(name=name, type=proto)
    for graph in _all_bodies(added):
        forget_shapes(graph)
    walked = inferred_alone(alone)
    if walked is None:
        return None
    shaped, found = walked
    outer = {value.name: value.type for value in shaped.graph.value_info}
    inside = [each for _, body in subgraphs(shaped.graph.node[0]) for each in _types_written(body)]
    return outer, found, inside


def _all_bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for _, body in subgraphs(node):
        yield body
        for inner in body.node:
            yield from _all_bodies(inner)


def _types_written(body: onnx.GraphProto) -> Iterator[onnx.TypeProto | None]:
    """The types of what a subgraph writes, in the order of ``Bodies``."""
    values = (*body.value_info, *body.output, *body.input)
    types = {value.name: value.type for value in values}
    constants = initializer_names(body)
    yield from (value.type for value in body.input if value.name not in constants)
    for node in body.node:
        if node.op_type == "Constant" and not node.domain:
            continue
        for _, inner in subgraphs(node):
            yield from _types_written(inner)
        yield from (types.get(name) for name in node.output if name)
