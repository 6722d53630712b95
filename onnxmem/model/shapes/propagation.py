"""Infer node by node what the inference of the whole graph left unknown.

Each node is inferred (``node_inference``) with the values of its small inputs, and its own value is
computed if it is shape arithmetic (``folding``). Nodes are in topological order, so one pass is
enough: the types and values of all inputs are known, as far as they can be, before a node is
visited.

onnx stores only what all elements of a sequence have in common. Here each element has its own type
(``Sequences``), so that an element that is taken out, or their concatenation, has a shape. The
operators are those of ONNX's ``defs/sequence/defs.cc``; sequences of others, and very long ones,
are unknown.
"""

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
from onnxmem.model.traversal import NestedNames, graphs_in, onnx_op, subgraphs
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
    """The types of the elements of sequences, by name."""

    elements: dict[str, _Elements] = field(default_factory=dict)

    def forget(self, names: Iterable[str]) -> None:
        """Remove names that are defined again, as in another subgraph."""
        if self.elements:
            for name in names:
                self.elements.pop(name, None)

    def follow(self, context: InferenceContext) -> Found:
        """Update the sequences after a node; returns the types of tensors that it takes out."""
        operator = onnx_op(context.node)
        if operator in _READERS:
            sequence = self.elements.get(context.node.input[0])
            return _READERS[operator](context, sequence) if sequence else {}
        elements = _WRITERS[operator](context, self.elements)
        if elements is not None and len(elements) <= BOUNDS.elements:
            self.elements[context.node.output[0]] = elements
        return {}


def is_followed(node: onnx.NodeProto) -> bool:
    """Whether an operator on sequences is implemented here."""
    return onnx_op(node) in _WRITERS or onnx_op(node) in _READERS


def _constructed(context: InferenceContext, elements: Mapping[str, _Elements]) -> _Elements | None:  # noqa: ARG001 - a rule like the others
    types = [context.input_type(index) for index in range(len(context.node.input))]
    known = tuple(proto for proto in types if proto is not None)
    return known if len(known) == len(types) else None


def _inserted(context: InferenceContext, elements: Mapping[str, _Elements]) -> _Elements | None:
    sequence, inserted = elements.get(context.node.input[0]), context.input_type(1)
    if sequence is None or inserted is None:
        return None
    # SequenceInsert appends by default, and the position may be the length of the sequence.
    position = _position(context, 2, len(sequence)) if context.has(2) else len(sequence)
    return None if position is None else (*sequence[:position], inserted, *sequence[position:])


def _erased(context: InferenceContext, elements: Mapping[str, _Elements]) -> _Elements | None:
    sequence = elements.get(context.node.input[0])
    if not sequence:
        return None
    # SequenceErase removes the last element by default.
    position = _position(context, 1, len(sequence)) if context.has(1) else len(sequence) - 1
    return None if position is None else (*sequence[:position], *sequence[position + 1 :])


def _split(context: InferenceContext, elements: Mapping[str, _Elements]) -> _Elements | None:  # noqa: ARG001 - a rule like the others
    """SplitToSequence: pieces of the requested lengths, by default 1, when the axis may go."""
    dims, axis = context.dims(0), context.integer("axis")
    if not dims or not -len(dims) <= axis < len(dims):
        return None
    axis %= len(dims)
    lengths = _lengths(context, dims[axis])
    if lengths is None or sum(lengths) != dims[axis]:
        return None
    # By the operator's text, keepdims has no effect where lengths are given.
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
    # More pieces than the bound on elements are not listed.
    if len(requested) != 1 or requested[0] < 1 or whole > BOUNDS.elements * requested[0]:
        return None
    # A scalar is the length of all pieces, except for a shorter last one.
    full, rest = divmod(whole, requested[0])
    return (requested[0],) * full + ((rest,) if rest else ())


def _taken(context: InferenceContext, sequence: _Elements) -> Found:
    """SequenceAt: the element at a position, or any element if all have the same type."""
    position = _position(context, 1, len(sequence))
    if position is None:
        position = 0 if all(proto == sequence[0] for proto in sequence) else len(sequence)
    return {context.node.output[0]: sequence[position]} if position < len(sequence) else {}


def _joined(context: InferenceContext, sequence: _Elements) -> Found:
    """ConcatFromSequence: concatenated along an axis, or stacked along a new one."""
    shapes = [dims for proto in sequence if (dims := dims_of(proto)) is not None]
    axis, is_new = context.integer("axis"), context.integer("new_axis")
    rank = len(shapes[0]) + bool(is_new) if shapes else 0
    if len(shapes) < len(sequence) or not -rank <= axis < rank:
        return {}
    axis %= rank
    first, elem_type = shapes[0], sequence[0].tensor_type.elem_type
    if is_new:
        is_same = all(dims == first for dims in shapes)
        stacked = (*first[:axis], len(shapes), *first[axis:]) if is_same else None
        return context.outputs(stacked, elem_type=elem_type)
    # Tensors that differ beside the axis do not concatenate: then nothing is claimed.
    around = {(dims[:axis], dims[axis + 1 :]) for dims in shapes}
    length = sum(dims[axis] for dims in shapes if len(dims) == rank)
    joined = (*first[:axis], length, *first[axis + 1 :]) if len(around) == 1 else None
    return context.outputs(joined, elem_type=elem_type)


def _position(context: InferenceContext, index: int, length: int) -> int | None:
    """The position in an input, counted from the front; ``None`` if unknown or out of range."""
    requested = context.whole_numbers(index)
    if requested is None or len(requested) != 1 or not -length <= requested[0] <= length:
        return None
    return requested[0] + length if requested[0] < 0 else requested[0]


_WRITERS: Final[
    Mapping[str, Callable[[InferenceContext, Mapping[str, _Elements]], _Elements | None]]
] = {
    "SequenceConstruct": _constructed,
    "SequenceEmpty": lambda context, elements: (),  # noqa: ARG005 - a rule like the others
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
"""The element types of lists of axes, sizes, pads and scales."""


@dataclass(frozen=True, slots=True)
class Walked:
    """The results of a walk besides types."""

    values: Mapping[str, Array]
    """Values of small constants in the top-level graph, and of what depends only on them."""
    refused: Mapping[str, str]
    """First outputs of nodes whose inputs are known and do not fit, and the reason."""
    left_out: Sequence[str] = ()
    """Values that were not computed because of a limit."""
    highest_rank: int = 0
    """The highest rank of tensors beyond the limit; 0 if there are none."""
    types: Mapping[str, Known] | None = None
    """The ``known_types`` of the top-level graph, if all are complete."""


def propagate(
    model: onnx.ModelProto,
    input_values: Mapping[str, Array] = MappingProxyType({}),
    assumed: AbstractSet[str] = frozenset(),
) -> Walked:
    """Complete the ``value_info`` of a model and its subgraphs, in place, as far as possible.

    ``input_values`` are known values of graph inputs. ``assumed`` are tensors whose shapes are only
    declared: these are not used to decide whether a value is small enough to be computed.
    """
    walk = _Walk(model, assumed)
    values: NestedNames[Array] = NestedNames({**input_values})
    walk.graph(model.graph, NestedNames(), values)
    return Walked(values, walk.inference.refused, walk.folder.left_out)


@dataclass(slots=True)
class _Walk:
    model: onnx.ModelProto
    assumed: AbstractSet[str]
    inference: NodeInference = field(init=False)
    folder: Folder = field(init=False)
    sequences: Sequences = field(default_factory=Sequences)
    completed: set[str] = field(default_factory=set)
    """Tensors completed by this walk: onnx has not checked their readers with these types yet."""
    lost: set[str] = field(default_factory=set)
    """Tensors that depend on a node whose inputs do not fit, so that they have no shape."""

    def __post_init__(self) -> None:
        self.inference = NodeInference(self.model)
        self.folder = Folder(self.model.opset_import)

    def graph(
        self,
        graph: onnx.GraphProto,
        types: "NestedNames[onnx.TypeProto]",
        values: "NestedNames[Array]",
    ) -> None:
        """Walk one graph; the first map of each chain is its own, later ones of outer graphs."""
        # A subgraph sees all names of the graphs around it, but what it adds goes to its own map:
        # the same name may be another tensor in the next branch.
        add_known(graph, _plain(types), _plain(values))
        self.sequences.forget(value.name for value in graph.input)
        for node in graph.node:
            self._node(node, types, values)
        outputs_of_nodes = [
            name for node in graph.node for name in node.output if name in types.maps[0]
        ]
        outputs = {value.name: value for value in graph.output}
        for name in self.lost & outputs.keys():
            outputs[name].type.tensor_type.ClearField("shape")
        # Written anew rather than completed: a lost name must not keep what onnx inferred for it.
        del graph.value_info[:]
        for name in outputs_of_nodes:
            if name in outputs:
                outputs[name].type.CopyFrom(types[name])
            else:
                graph.value_info.add(name=name).type.CopyFrom(types[name])

    def _node(
        self,
        node: onnx.NodeProto,
        types: "NestedNames[onnx.TypeProto]",
        values: "NestedNames[Array]",
    ) -> None:
        if node.attribute and subgraphs(node):
            values.update(values_of_branch(node, values, dict(self._bodies(node, types, values))))
        known, constants = _plain(types), _plain(values)
        found = self._checked(node, known, constants)
        # onnx has inferred the other outputs; only those without a complete type are left.
        is_open = [name for name in node.output[:] if name and not is_complete(known.get(name))]
        if is_open:
            if onnx_op(node) == "Loop":
                subject = self._in_every_iteration(node, types, values)
                found = self.inference.output_types(subject, known, constants)
            elif found is None:
                found = self.inference.output_types(node, known, constants)
            _merge(known, found)
        self.sequences.forget(node.output)
        if is_followed(node):
            _merge(known, self.sequences.follow(InferenceContext(node, known, constants)))
        derived = self._derived(node, known, constants)
        # Types before elements: whether elements are few enough to be computed follows from the
        # type.
        for name, folded in self.folder.values_of(node, constants, derived).items():
            constants[name] = folded
            known[name] = type_with_value(known.get(name), folded)
        closed = [name for name in is_open if is_complete(known.get(name))]
        self.lost.difference_update(closed)
        self.completed.update(closed)

    def _checked(self, node: onnx.NodeProto, types: Types, values: Values) -> Found | None:
        """Check a node with the types that this walk found for its inputs; returns those of its
        outputs if it was inferred.
        """
        found = None
        is_lost = not self.lost.isdisjoint(node.input)
        if not is_lost and not self.completed.isdisjoint(node.input):
            found = self.inference.output_types(node, types, values)
            is_lost = not self.inference.refused.keys().isdisjoint(node.output[:1])
        # Outputs of a node that cannot run have no shape. What onnx inferred for them is removed,
        # so that a wrong shape does not spread and hide the node that is to blame.
        if is_lost:
            for name in node.output:
                types.pop(name, None)
            self.lost.update(node.output)
        return found

    def _derived(self, node: onnx.NodeProto, types: Types, values: Values) -> Types:
        """The types of a node's inputs and outputs, without those that are only declared."""
        if self.assumed.isdisjoint(node.output):
            return types
        read = {name: types[name] for name in node.input if name in types}
        return read | self.inference.output_types(node, types, values)

    def _bodies(
        self,
        node: onnx.NodeProto,
        types: "NestedNames[onnx.TypeProto]",
        values: "NestedNames[Array]",
    ) -> Iterator[tuple[str, Body]]:
        """Walk the subgraphs of a node; yields each with its attribute and its values."""
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
        types: "NestedNames[onnx.TypeProto]",
        values: "NestedNames[Array]",
    ) -> onnx.NodeProto:
        """A copy of a Loop whose body has only types that are valid in every iteration.

        If a dim of a carried value differs after an iteration, it becomes unknown, and so does all
        that depends on it.
        """
        # A fixed point: each round makes at least one known dim of an input unknown, and none known
        # again, so it ends after at most as many rounds as there are dims.
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        body = next(graph for _, graph in subgraphs(copy))
        while True:
            pairs = list(zip(body.input[2:], body.output[1:], strict=False))
            shared = [common(before.type, after.type) for before, after in pairs]
            if all(pair[0].type == proto for pair, proto in zip(pairs, shared, strict=True)):
                return copy
            for (before, _), proto in zip(pairs, shared, strict=True):
                before.type.CopyFrom(proto)
            for graph in graphs_in(body):
                forget_shapes(graph)
            self.graph(body, types.new_child(), values.new_child())


def _plain(chain: "NestedNames[_Known]") -> MutableMapping[str, _Known]:
    """A chain, or its only map, which is faster: most graphs have no subgraphs."""
    return chain.maps[0] if len(chain.maps) == 1 else chain


def add_known(graph: onnx.GraphProto, types: Types, values: Values) -> None:
    """Add the types and values that a graph has before its first node."""
    values.update(_empty_lists(graph))
    for name, constant in add_types(graph, types):
        elements = constant_value(constant)
        if elements is not None and elements.size <= MAX_ELEMENTS and elements.dtype.kind in "biuf":
            values[name] = elements


def add_types(graph: onnx.GraphProto, types: Types) -> list[tuple[str, onnx.TensorProto]]:
    """Add the types that a graph has before its first node; returns its constants."""
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
    """Inputs that are empty lists (of axes, sizes or pads), whose value is therefore known."""
    for value in graph.input:
        elem_type = value.type.tensor_type.elem_type
        if elem_type in _NUMBERS and shape_of(value.type) == _NOTHING:
            yield value.name, np.empty(_NOTHING, onnx.helper.tensor_dtype_to_np_dtype(elem_type))


def _merge(types: Types, found: Mapping[str, onnx.TypeProto]) -> None:
    for name, derived in found.items():
        types[name] = merged(types.get(name), derived)
