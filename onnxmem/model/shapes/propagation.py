"""A walk over the nodes that infers what the whole-graph inference left open.

Each node is inferred alone (``node_inference``), this time with the values of its small inputs at
hand, and its own value is computed where it is shape arithmetic (``folding``). One walk suffices,
since nodes stand in running order.

onnx keeps what all elements of a sequence have in common; here each has its own type
(``Sequences``), so that the one that is taken out, or all of them joined, have shapes. Followed are
the operators of ONNX's ``defs/sequence/defs.cc``; a sequence of anything else, or longer than a
bound, is unknown.
"""

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeVar

import numpy as np
import onnx
import onnx.helper

from onnxmem.model.bounds import BOUNDS
from onnxmem.model.constants import Array, constant_tensor, constant_value
from onnxmem.model.shapes.control_flow import Body, body_inputs, values_of_branch
from onnxmem.model.shapes.folding import MAX_ELEMENTS, Folder, type_with_value
from onnxmem.model.shapes.node_context import Found, InferenceContext
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.model.traversal import graphs_in, onnx_op, subgraphs
from onnxmem.model.value_types import (
    Known,
    common,
    dense_type,
    dims_of,
    forget_shapes,
    is_complete,
    merged,
    shape_of,
)
from onnxmem.ops.spec import Dims

_Elements = tuple[onnx.TypeProto, ...]


@dataclass(slots=True)
class Sequences:
    """The elements of the sequences of the graph so far, by name."""

    elements: dict[str, _Elements] = field(default_factory=dict)

    def forget(self, names: Iterable[str]) -> None:
        """Names that are defined anew, as in another body: what was in them is gone."""
        if self.elements:
            for name in names:
                self.elements.pop(name, None)

    def follow(self, context: InferenceContext) -> Found:
        """Note what a followed node puts into a sequence; the type of what it takes out of one."""
        operator = onnx_op(context.node)
        if operator in _READERS:
            sequence = self.elements.get(context.node.input[0])
            return _READERS[operator](context, sequence) if sequence else {}
        made = _MAKERS[operator](context, self.elements)
        if made is not None and len(made) <= BOUNDS.elements:
            self.elements[context.node.output[0]] = made
        return {}


def is_followed(node: onnx.NodeProto) -> bool:
    """Whether an operator works on sequences, and is one that is followed."""
    return onnx_op(node) in _MAKERS or onnx_op(node) in _READERS


def _constructed(context: InferenceContext, elements: Mapping[str, _Elements]) -> _Elements | None:  # noqa: ARG001
    types = [context.input_type(index) for index in range(len(context.node.input))]
    known = tuple(proto for proto in types if proto is not None)
    return known if len(known) == len(types) else None


def _inserted(context: InferenceContext, elements: Mapping[str, _Elements]) -> _Elements | None:
    sequence, made = elements.get(context.node.input[0]), context.input_type(1)
    if sequence is None or made is None:
        return None
    position = _position(context, 2, len(sequence)) if context.has(2) else len(sequence)
    return None if position is None else (*sequence[:position], made, *sequence[position:])


def _erased(context: InferenceContext, elements: Mapping[str, _Elements]) -> _Elements | None:
    sequence = elements.get(context.node.input[0])
    if not sequence:
        return None
    position = _position(context, 1, len(sequence)) if context.has(1) else len(sequence) - 1
    return None if position is None else (*sequence[:position], *sequence[position + 1 :])


def _split(context: InferenceContext, elements: Mapping[str, _Elements]) -> _Elements | None:  # noqa: ARG001
    """Pieces of the requested lengths, of one length, or of 1, whose axis may be dropped."""
    dims, axis = context.dims(0), context.integer("axis")
    if not dims or not -len(dims) <= axis < len(dims):
        return None
    axis %= len(dims)
    lengths = _lengths(context, dims[axis])
    if lengths is None or sum(lengths) != dims[axis]:
        return None
    is_kept = context.has(1) or context.integer("keepdims", 1)
    return tuple(
        dense_type(
            context.elem_type(0), (*dims[:axis], *((length,) if is_kept else ()), *dims[axis + 1 :])
        )
        for length in lengths
    )


def _lengths(context: InferenceContext, whole: int) -> Dims | None:
    requested = context.whole_numbers(1) if context.has(1) else (1,)
    if requested is None or (context.has(1) and context.dims(1)):
        return requested
    if len(requested) != 1 or requested[0] < 1 or whole > BOUNDS.elements * requested[0]:
        return None
    full, rest = divmod(whole, requested[0])
    return (requested[0],) * full + ((rest,) if rest else ())


def _taken(context: InferenceContext, sequence: _Elements) -> Found:
    """SequenceAt: the element at a position, or any where all have one type."""
    position = _position(context, 1, len(sequence))
    if position is None:
        position = 0 if all(proto == sequence[0] for proto in sequence) else len(sequence)
    return {context.node.output[0]: sequence[position]} if position < len(sequence) else {}


def _joined(context: InferenceContext, sequence: _Elements) -> Found:
    """ConcatFromSequence: side by side along an axis, or stacked along a new one."""
    shapes = [dims for proto in sequence if (dims := dims_of(proto)) is not None]
    axis, is_new = context.integer("axis"), context.integer("new_axis")
    rank = len(shapes[0]) + bool(is_new) if shapes else 0
    if len(shapes) < len(sequence) or not -rank <= axis < rank:
        return {}
    axis %= rank
    first, elem_type = shapes[0], sequence[0].tensor_type.elem_type
    if is_new:
        is_same = all(dims == first for dims in shapes)
        made = (*first[:axis], len(shapes), *first[axis:]) if is_same else None
        return context.outputs(made, elem_type=elem_type)
    around = {(dims[:axis], dims[axis + 1 :]) for dims in shapes}
    lengths = sum(dims[axis] for dims in shapes if len(dims) == rank)
    made = (*first[:axis], lengths, *first[axis + 1 :]) if len(around) == 1 else None
    return context.outputs(made, elem_type=elem_type)


def _position(context: InferenceContext, index: int, length: int) -> int | None:
    """A position from the front, by an input's value; unknown where that is, or out of bounds."""
    requested = context.whole_numbers(index)
    if requested is None or len(requested) != 1 or not -length <= requested[0] <= length:
        return None
    return requested[0] + length if requested[0] < 0 else requested[0]


_MAKERS: Final[
    Mapping[str, Callable[[InferenceContext, Mapping[str, _Elements]], _Elements | None]]
] = {
    "SequenceConstruct": _constructed,
    "SequenceEmpty": lambda context, elements: (),  # noqa: ARG005
    "SequenceErase": _erased,
    "SequenceInsert": _inserted,
    "SplitToSequence": _split,
}
_READERS: Final[Mapping[str, Callable[[InferenceContext, _Elements], Found]]] = {
    "ConcatFromSequence": _joined,
    "SequenceAt": _taken,
}


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
    """Values that were not computed because a bound was reached."""
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
    shapes only the file says something: their values are no smaller for that.
    """
    walk = _Walk(model, assumed)
    values: ChainMap[str, Array] = ChainMap({**given})
    walk.graph(model.graph, ChainMap(), values)
    return Walked(values, walk.inference.refused, walk.folder.left_out)


@dataclass(slots=True)
class _Walk:
    model: onnx.ModelProto
    assumed: AbstractSet[str]
    inference: NodeInference = field(init=False)
    folder: Folder = field(init=False)
    sequences: Sequences = field(default_factory=Sequences)
    completed: set[str] = field(default_factory=set)
    """What was open before the walk: onnx has not compared it with its neighbors."""
    lost: set[str] = field(default_factory=set)
    """What does not follow any more, since some inputs do not fit."""

    def __post_init__(self) -> None:
        self.inference = NodeInference(self.model)
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
        known, constants = _plain(types), _plain(values)
        if not self.lost.isdisjoint(node.input) or self._is_refused_late(node, known, constants):
            for name in node.output:
                known.pop(name, None)
            self.lost.update(node.output)
        is_open = [name for name in node.output[:] if name and not is_complete(known.get(name))]
        if is_open:
            subject = (
                node if onnx_op(node) != "Loop" else self._in_every_iteration(node, types, values)
            )
            _merge(known, self.inference.output_types(subject, known, constants))
        self.sequences.forget(node.output)
        if is_followed(node):
            _merge(known, self.sequences.follow(InferenceContext(node, known, constants)))
        derived = self._derived(node, known, constants)
        for name, folded in self.folder.values_of(node, constants, derived).items():
            constants[name] = folded
            known[name] = type_with_value(known.get(name), folded)
        found = [name for name in is_open if is_complete(known.get(name))]
        self.lost.difference_update(found)
        self.completed.update(found)

    def _is_refused_late(self, node: onnx.NodeProto, types: Types, values: Values) -> bool:
        """Whether a node with inputs that were open before the walk does not take them now."""
        if self.completed.isdisjoint(node.input):
            return False
        self.inference.output_types(node, types, values)
        return not self.inference.refused.keys().isdisjoint(node.output[:1])

    def _derived(self, node: onnx.NodeProto, types: Types, values: Values) -> Types:
        """What is known of a node's operands and results, less what is only declared."""
        if self.assumed.isdisjoint(node.output):
            return types
        read = {name: types[name] for name in node.input if name in types}
        return read | self.inference.output_types(node, types, values)

    def _bodies(
        self,
        node: onnx.NodeProto,
        types: "ChainMap[str, onnx.TypeProto]",
        values: "ChainMap[str, Array]",
    ) -> Iterator[tuple[str, Body]]:
        """Walk the graphs inside a node; each by its attribute, with the values in it."""
        passed = body_inputs(node, types, self.inference.opsets)
        for attribute, inner in subgraphs(node):
            for value in inner.input:
                if value.name in passed:
                    value.type.CopyFrom(merged(value.type, passed[value.name]))
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
    """A chain, or its only map: that of the top-level graph is read far more often."""
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
    """The inputs that list no axes, sizes or pads: their elements are known."""
    for value in graph.input:
        elem_type = value.type.tensor_type.elem_type
        if elem_type in _NUMBERS and shape_of(value.type) == _NOTHING:
            yield value.name, np.empty(_NOTHING, onnx.helper.tensor_dtype_to_np_dtype(elem_type))


def _merge(types: Types, found: Mapping[str, onnx.TypeProto]) -> None:
    for name, derived in found.items():
        types[name] = merged(types.get(name), derived)
