"""The types of a large graph, from nodes that are alike.

A large graph is few blocks many times over. Two nodes are alike whose operators and attributes are
the same and whose inputs are of the same kinds; of nodes that are alike one is asked. onnx works
each node of a whole graph out by the same function, from the same inputs; what it takes longer for
is to write the whole graph and to have it read again, and for every other batch once more.

Only a graph of which all types follow so is told; any other is left to the whole inference.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import onnx

from onnxmem.model.binding import Binding
from onnxmem.model.constants import Array
from onnxmem.model.graph import Graph, Node, dtype_of, record
from onnxmem.model.shapes.declared import agree
from onnxmem.model.shapes.folding import Folder, type_with_value
from onnxmem.model.shapes.kinds import STORED, Kinds
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.model.shapes.sequences import is_followed
from onnxmem.model.value_types import Known, dense_type, is_complete, shape_of

MANY_NODES: Final = 200
"""Of fewer nodes onnx is sooner asked as a whole."""
NODES_OF_A_KIND: Final = 32
"""So many nodes at least are alike on average, or to ask one of each is no gain."""
FEW_NODES_OF_A_KIND: Final = 4
"""The same where few are asked in all: most graphs compute dims or fix the batch, and to ask of
those as a whole takes longer than of others."""
FEW_ASKED: Final = 250
_MOST_KEPT: Final = 5_000
"""Answers: a sweep over many batches would keep those of each, some 10 KiB of a small model's."""
_FIRST_STEPS: Final = 1_000
"""Told apart by their weights alone before any is asked: most graphs that repeat nothing do so from
the start."""

LEFT_OUT: Final = -1
"""In place of a kind, of an operand that is left out."""

_PLAIN: Final = frozenset(
    {
        *(onnx.AttributeProto.INT, onnx.AttributeProto.INTS, onnx.AttributeProto.FLOAT),
        *(onnx.AttributeProto.FLOATS, onnx.AttributeProto.STRING, onnx.AttributeProto.STRINGS),
    }
)
"""Attributes that the record of a node holds."""
_MAX_ATTRIBUTE_BYTES: Final = 4096
"""Of other attributes that nodes are told by."""

Numbers = dict[str, int]
"""The kind of each tensor, by name; ``""`` is what is left out."""


@record
class Step:
    """A node as the walk sees it."""

    place: int
    """Among the nodes of the model."""
    likeness: int
    """The same for nodes whose operators, attributes and operands that are given are the same."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class UnlikeError(Exception):
    """The types of a graph do not follow from nodes that are alike."""


@dataclass(slots=True)
class Alike:
    """A large graph whose nodes are told apart by all that their outputs follow from.

    :raises UnlikeError: they cannot be.
    """

    model: onnx.ModelProto
    graph: Graph
    """The records of the model; the types that they give of what nodes make are not looked at."""
    nodes: Sequence[onnx.NodeProto]
    """Those of the model, one for each record."""
    given: Sequence[onnx.ValueInfoProto]
    """The inputs that the caller hands in."""
    kinds: Kinds = field(init=False)
    steps: list[Step] = field(init=False)
    stored: Numbers = field(init=False)
    answers: dict[tuple[int, ...], tuple[int, ...]] = field(init=False)
    """The kinds of outputs by likeness and by the kinds of inputs."""
    last_at: tuple[tuple[str, Sequence[int]], ...] | None = None
    """Where the nodes were walked last: a batch that the file fixes is moved from there."""
    last_numbers: Numbers = field(default_factory=dict)
    is_hopeless: bool = False
    """Few nodes turned out to be alike."""
    asker: NodeInference = field(init=False)
    folder: Folder = field(init=False)

    def __post_init__(self) -> None:
        stored = [each for each in self.graph.tensors.values() if each.role in STORED]
        # Nodes that read weights of other shapes are not alike, and few read more than two.
        self.give_up_after(len({(each.shape, each.dtype) for each in stored}) // 2)
        self._know_nothing()
        self.steps = list(_steps(self.nodes, self.graph.nodes, self.stored))
        few = self.steps[:_FIRST_STEPS]
        keys = {(step.likeness, *map(self.stored.get, step.inputs)) for step in few}
        self.give_up_after(len(keys))

    def _know_nothing(self) -> None:
        """Keep what the file says alone."""
        self.kinds, self.answers, self.last_at = Kinds(), {}, None
        self.asker = NodeInference(self.model)
        self.folder = Folder(self.model.opset_import)
        self.stored = {"": LEFT_OUT, **dict(self.kinds.stored(self.model, self.graph))}

    def types_at(self, binding: Binding) -> Mapping[str, Known]:
        """The types of inputs and of all that nodes make.

        :raises UnlikeError: they do not follow so, or the file says otherwise.
        """
        types = self.known(self.numbers_at(binding.shapes))
        if not agree(self.model.graph, binding.dims, types):
            raise UnlikeError
        self.refuse_other_outputs(types)
        return types

    def refuse_other_outputs(self, types: Mapping[str, Known]) -> None:
        """Hold what the file says of the outputs' kinds and elements against their types.

        :raises UnlikeError: it says otherwise, and onnx has rules of its own for that.
        """
        for value in self.model.graph.output:
            word = value.type.tensor_type.elem_type
            is_dense = value.type.WhichOneof("value") in {None, "tensor_type"}
            if not is_dense or (word and types[value.name].dtype is not dtype_of(word)):
                raise UnlikeError

    def known(self, of: Numbers) -> Mapping[str, Known]:
        """The types of all tensors by their kinds."""
        known = [kind.known for kind in self.kinds.kinds]
        return {name: known[number] for name, number in of.items() if number != LEFT_OUT}

    def numbers_at(self, shapes: Mapping[str, Sequence[int]]) -> Numbers:
        """Walk the nodes in running order, and ask of those that are alike the first.

        :raises UnlikeError: the type of a tensor does not follow, or few nodes are alike.
        """
        at = tuple(shapes.items())
        self.asker.refused.clear()
        if len(self.asker.asked) > _MOST_KEPT:
            self._know_nothing()
        if at == self.last_at:
            return self.last_numbers
        of, num_asked, answers = self.stored | self.numbers_given(shapes), 0, self.answers
        for step in self.steps:
            inputs = tuple([of[name] for name in step.inputs])
            key = (step.likeness, *inputs)
            made = answers.get(key)
            if made is None:
                num_asked += 1
                self.give_up_after(num_asked)
                made = answers[key] = self._asked(self.nodes[step.place], inputs)
            if len(made) == 1:
                of[step.outputs[0]] = made[0]
            else:
                of.update(zip(step.outputs, made, strict=True))
        self.last_at, self.last_numbers = at, of
        return of

    def give_up_after(self, num_asked: int) -> None:
        """Ask no more of single nodes than is sooner done than to ask of the whole graph.

        :raises UnlikeError: so many have been asked.
        """
        few = min(FEW_NODES_OF_A_KIND, NODES_OF_A_KIND)
        alike = few if num_asked <= FEW_ASKED else NODES_OF_A_KIND
        self.is_hopeless |= num_asked * alike > len(self.nodes)
        if self.is_hopeless:
            raise UnlikeError

    def numbers_given(self, shapes: Mapping[str, Sequence[int]]) -> Numbers:
        """The kinds of the graph's inputs.

        :raises UnlikeError: a type is not known, or without elements.
        """
        of = {}
        for value in self.given:
            proto = value.type
            if value.name in shapes:
                proto = dense_type(proto.tensor_type.elem_type, shapes[value.name])
            if not is_complete(proto) or 0 in (shape_of(proto) or ()):
                raise UnlikeError
            of[value.name] = self.kinds.number(proto)
        return of

    def _asked(self, node: onnx.NodeProto, inputs: Sequence[int]) -> tuple[int, ...]:
        """The kinds of a node's outputs."""
        kinds = self.kinds.kinds
        given = {name: kinds[at] for name, at in zip(node.input, inputs, strict=True) if name}
        types = {name: kind.type for name, kind in given.items()}
        values = {name: kind.value for name, kind in given.items() if kind.value is not None}
        types |= self.asker.output_types(node, types, values)
        return self.made(node, types, self.folder.values_of(node, values, types))

    def made(
        self, node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], values: Mapping[str, Array]
    ) -> tuple[int, ...]:
        """The kinds of a node's outputs by what is known of these.

        :raises UnlikeError: the type of one is not, or onnx refuses the inputs.
        """
        if self.asker.refused:
            # Of which findings are told, by the walk of the whole graph.
            raise UnlikeError
        made = []
        for name in node.output:
            proto, value = types.get(name), values.get(name)
            if value is not None:
                told, proto = proto, type_with_value(proto, value)
                # Where onnx knows a type and its operators make another, the whole graph is asked.
                if is_complete(told) and proto is not told:
                    raise UnlikeError
            if name and (proto is None or not is_complete(proto)):
                raise UnlikeError
            made.append(self.kinds.number(proto, value) if name and proto else LEFT_OUT)
        return tuple(made)


def alike(
    model: onnx.ModelProto,
    graph: Graph,
    nodes: Sequence[onnx.NodeProto],
    given: Sequence[onnx.ValueInfoProto],
) -> Alike | None:
    """Tell the nodes of a graph apart; ``None`` where it is small or they cannot be."""
    weights = model.graph.initializer
    if len(graph.nodes) < MANY_NODES or model.graph.sparse_initializer:
        return None
    if len({tensor.name for tensor in weights}) < len(weights):
        return None
    try:
        return Alike(model, graph, nodes, given)
    except UnlikeError:
        return None


def _steps(
    protos: Iterable[onnx.NodeProto], nodes: Iterable[Node], stored: Mapping[str, int]
) -> Iterator[Step]:
    """The nodes but Constants, which have made something before the first node runs."""
    likenesses: dict[tuple[object, ...], int] = {}
    for place, (proto, node) in enumerate(zip(protos, nodes, strict=True)):
        if node.onnx_op == "Constant":
            if not stored.keys() >= {*node.outputs}:
                raise UnlikeError
            continue
        attributes = node.attributes
        others = () if len(proto.attribute) == len(attributes) else _others(proto)
        key = (node.op_type, node.domain, id(attributes), others, *map(bool, node.outputs))
        likeness = likenesses.get(key)
        if likeness is None:
            if is_followed(proto) or any(each.ref_attr_name for each in proto.attribute):
                raise UnlikeError
            likeness = likenesses[key] = len(likenesses)
        yield Step(place, likeness, node.inputs, node.outputs)


def _others(node: onnx.NodeProto) -> tuple[bytes, ...]:
    """The attributes that the record of a node does not hold.

    :raises UnlikeError: graphs, or a tensor that is large.
    """
    others = [attribute for attribute in node.attribute if attribute.type not in _PLAIN]
    if any(each.HasField("g") or each.graphs for each in others):
        raise UnlikeError
    if sum(each.ByteSize() for each in others) > _MAX_ATTRIBUTE_BYTES:
        raise UnlikeError
    return tuple(each.SerializeToString() for each in others)
