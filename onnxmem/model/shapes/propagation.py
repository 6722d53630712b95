"""A walk over the nodes that infers what the whole-graph inference left open.

Each node is asked again (``node_inference``), this time with the values of its small inputs at
hand, and its own value is worked out where it is shape arithmetic (``folding``). One walk
suffices, since nodes stand in running order.
"""

from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeVar

import numpy as np
import onnx
import onnx.helper

from onnxmem.model.constants import Array, constant_tensor, constant_value
from onnxmem.model.shapes.folding import MAX_ELEMENTS, Folder, type_with_value
from onnxmem.model.shapes.node_facts import NodeFacts
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.model.shapes.own_shapes import Body, body_inputs, values_of_branch
from onnxmem.model.shapes.sequences import Sequences, is_followed
from onnxmem.model.traversal import graphs_in, onnx_op, subgraphs
from onnxmem.model.value_types import (
    Known,
    common,
    dense_type,
    forget_shapes,
    is_complete,
    merged,
    shape_of,
)

Types = MutableMapping[str, onnx.TypeProto]
Values = MutableMapping[str, Array]

_Known = TypeVar("_Known")

_NOTHING: Final = (0,)
_NUMBERS: Final = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.INT64}
)
"""What lists of axes, sizes, pads and scales are made of."""


@dataclass(frozen=True, slots=True)
class Walked:
    """What a walk learns beside types."""

    values: Mapping[str, Array]
    """The elements of the top-level graph's small constants and of what follows from them."""
    refused: Mapping[str, str]
    """First outputs of nodes whose inputs are known and do not fit, and the reason."""
    left_out: Sequence[str] = ()
    """Values that were not worked out because a bound was reached."""
    highest_rank: int = 0
    """Of the tensors with more dims than the bound; 0 where there is none."""
    types: Mapping[str, Known] | None = None
    """The ``known_types`` of the top-level graph, where nothing is left open."""


def propagate(
    model: onnx.ModelProto,
    given: Mapping[str, Array] = MappingProxyType({}),
    assumed: AbstractSet[str] = frozenset(),
) -> Walked:
    """Complete the ``value_info`` of a model and its subgraphs, in place, as far as it goes.

    ``given`` are the values of graph inputs, where they are known. ``assumed`` are tensors of whose
    shapes there is the file's word alone: their values are no smaller for that.
    """
    walk = _Walk(model, assumed)
    values: ChainMap[str, Array] = ChainMap({**given})
    walk.graph(model.graph, ChainMap(), values)
    return Walked(values, walk.asker.refused, walk.folder.left_out)


@dataclass(slots=True)
class _Walk:
    model: onnx.ModelProto
    assumed: AbstractSet[str]
    asker: NodeInference = field(init=False)
    folder: Folder = field(init=False)
    sequences: Sequences = field(default_factory=Sequences)
    completed: set[str] = field(default_factory=set)
    """What was open before the walk: onnx has not held it against what stands beside it."""
    lost: set[str] = field(default_factory=set)
    """What does not follow any more, since some inputs do not fit."""

    def __post_init__(self) -> None:
        self.asker = NodeInference(self.model)
        self.folder = Folder(self.model.opset_import)

    def graph(
        self,
        graph: onnx.GraphProto,
        types: "ChainMap[str, onnx.TypeProto]",
        values: "ChainMap[str, Array]",
    ) -> None:
        """Walk one graph; the chains' later maps hold what enclosing graphs know."""
        add_known(graph, _plain(types), _plain(values))
        self.sequences.forget(value.name for value in graph.input)
        for node in graph.node:
            self._node(node, types, values)
        made = [name for node in graph.node for name in node.output if name in types.maps[0]]
        outputs = {value.name: value for value in graph.output}
        for name in self.lost & outputs.keys():
            outputs[name].type.tensor_type.ClearField("shape")
        del graph.value_info[:]
        for name in made:
            if name in outputs:
                outputs[name].type.CopyFrom(types[name])
            else:
                graph.value_info.add(name=name).type.CopyFrom(types[name])

    def _node(
        self,
        node: onnx.NodeProto,
        types: "ChainMap[str, onnx.TypeProto]",
        values: "ChainMap[str, Array]",
    ) -> None:
        if node.attribute:
            values.update(values_of_branch(node, values, dict(self._bodies(node, types, values))))
        known, held = _plain(types), _plain(values)
        if not self.lost.isdisjoint(node.input) or self._is_refused_late(node, known, held):
            for name in node.output:
                known.pop(name, None)
            self.lost.update(node.output)
        is_open = [name for name in node.output[:] if name and not is_complete(known.get(name))]
        if is_open:
            subject = (
                node if onnx_op(node) != "Loop" else self._in_every_iteration(node, types, values)
            )
            _merge(known, self.asker.output_types(subject, known, held))
        self.sequences.forget(node.output)
        if is_followed(node):
            _merge(known, self.sequences.follow(NodeFacts(node, known, held)))
        derived = self._derived(node, known, held)
        for name, folded in self.folder.values_of(node, held, derived).items():
            held[name] = folded
            known[name] = type_with_value(known.get(name), folded)
        found = [name for name in is_open if is_complete(known.get(name))]
        self.lost.difference_update(found)
        self.completed.update(found)

    def _is_refused_late(self, node: onnx.NodeProto, types: Types, values: Values) -> bool:
        """Whether a node with inputs that were open before the walk does not take them now."""
        if self.completed.isdisjoint(node.input):
            return False
        self.asker.output_types(node, types, values)
        return not self.asker.refused.keys().isdisjoint(node.output[:1])

    def _derived(self, node: onnx.NodeProto, types: Types, values: Values) -> Types:
        """What is known of a node's operands and results, the file's word on results left out."""
        if self.assumed.isdisjoint(node.output):
            return types
        read = {name: types[name] for name in node.input if name in types}
        return read | self.asker.output_types(node, types, values)

    def _bodies(
        self,
        node: onnx.NodeProto,
        types: "ChainMap[str, onnx.TypeProto]",
        values: "ChainMap[str, Array]",
    ) -> Iterator[tuple[str, Body]]:
        """Walk the graphs inside a node; each by its attribute, with the values in it."""
        handed_in = body_inputs(node, types, self.asker.opsets)
        for attribute, inner in subgraphs(node):
            for value in inner.input:
                if value.name in handed_in:
                    value.type.CopyFrom(merged(value.type, handed_in[value.name]))
            inside = values.new_child()
            self.graph(inner, types.new_child(), inside)
            yield attribute, (inner, inside)

    def _in_every_iteration(
        self,
        node: onnx.NodeProto,
        types: "ChainMap[str, onnx.TypeProto]",
        values: "ChainMap[str, Array]",
    ) -> onnx.NodeProto:
        """A Loop whose body holds only what is true in each of its iterations.

        A dim of a carried value that differs after an iteration is forgotten, and with it all that
        follows from it, until nothing more differs.
        """
        twin = onnx.NodeProto()
        twin.CopyFrom(node)
        body = next(graph for _, graph in subgraphs(twin))
        while True:
            pairs = list(zip(body.input[2:], body.output[1:], strict=False))
            kept = [common(before.type, after.type) for before, after in pairs]
            if all(pair[0].type == proto for pair, proto in zip(pairs, kept, strict=True)):
                return twin
            for (before, _), proto in zip(pairs, kept, strict=True):
                before.type.CopyFrom(proto)
            for graph in graphs_in(body):
                forget_shapes(graph)
            self.graph(body, types.new_child(), values.new_child())


def _plain(chain: "ChainMap[str, _Known]") -> MutableMapping[str, _Known]:
    """A chain, or its only map: that of the top-level graph is asked far more often."""
    return chain.maps[0] if len(chain.maps) == 1 else chain


def add_known(graph: onnx.GraphProto, types: Types, values: Values) -> None:
    """Enter what a graph says before its first node runs."""
    values.update(_empty_lists(graph))
    for name, constant in add_types(graph, types):
        elements = constant_value(constant)
        if elements is not None and elements.size <= MAX_ELEMENTS and elements.dtype.kind in "biuf":
            values[name] = elements


def add_types(graph: onnx.GraphProto, types: Types) -> list[tuple[str, onnx.TensorProto]]:
    """Enter the types that a graph says before its first node runs; returns its constants."""
    for value in (*graph.value_info, *graph.output, *graph.input):
        if value.type.WhichOneof("value"):
            types[value.name] = value.type
    constants = [(tensor.name, tensor) for tensor in graph.initializer]
    for node in graph.node:
        tensor = constant_tensor(node)
        if tensor is not None:
            constants.append((node.output[0], tensor))
    types.update((name, dense_type(each.data_type, each.dims)) for name, each in constants)
    return constants


def _empty_lists(graph: onnx.GraphProto) -> Iterator[tuple[str, Array]]:
    """The inputs that list no axes, sizes or pads: their elements need no telling."""
    for value in graph.input:
        elem_type = value.type.tensor_type.elem_type
        if elem_type in _NUMBERS and shape_of(value.type) == _NOTHING:
            yield value.name, np.empty(_NOTHING, onnx.helper.tensor_dtype_to_np_dtype(elem_type))


def _merge(types: Types, found: Mapping[str, onnx.TypeProto]) -> None:
    for name, derived in found.items():
        types[name] = merged(types.get(name), derived)
