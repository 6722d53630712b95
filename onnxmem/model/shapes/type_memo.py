"""Infer the types of a large graph by inferring each distinct node once.

A large graph repeats few blocks many times. Nodes with equal operators and attributes have one
signature; if their inputs have equal types too, so do their outputs, and one inference serves all
of them. onnx's inference of the whole graph applies the same function to every node, but it also
serializes the graph and parses it again, for every batch.

The memo is used only if all types of a graph can be found in this way (``TypeMemo.types_at``).
``batch_memo`` does the same for another batch of a graph with a fixed one, by the rules that
``batch_rewrite`` has for a node. Otherwise ``MemoMissError`` is raised, and the whole graph is
inferred.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx
import onnx.helper

from onnxmem.model.binding import Binding
from onnxmem.model.constants import Array, constant_tensor, constant_value
from onnxmem.model.graph import DType, Graph, Node, Role, Tensor, dtype_of, record
from onnxmem.model.shapes.bodies import Bodies, NoSignatureError, reads_of, types_inside
from onnxmem.model.shapes.folding import MAX_ELEMENTS, Folder, type_with_value
from onnxmem.model.shapes.inference import agree, agree_with
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.model.shapes.propagation import is_followed
from onnxmem.model.traversal import Columns, subgraphs
from onnxmem.model.value_types import Known, dense_type, is_complete, known_of
from onnxmem.ops.spec import known_dims

MIN_REPEATS: Final = 32
"""Memoization pays off only if nodes repeat at least this often on average."""
MIN_REPEATS_OF_FEW: Final = 4
"""The same if at most ``FEW_INFERRED`` nodes are inferred: most such graphs compute dims or have a
fixed batch, and take longer to infer as a whole."""
FEW_INFERRED: Final = 2_500
_AHEAD: Final = 250
"""The distinct nodes that may come before any repeats: those of the first blocks."""
_MAX_CACHED: Final = 5_000
"""Cached results: a sweep would add some 10 KiB for each batch of a small model."""
_FIRST_STEPS: Final = 1_000
"""Nodes that are compared by their weights before any is inferred: most graphs without repetition
show it at the start."""
_MAX_ATTRIBUTE_BYTES: Final = 4096
"""The most bytes of attributes in a signature, besides those that a ``Node`` has."""
_MAX_SCALES: Final = 8
"""The most floats on which shapes depend: twice the scales of a Resize of an image."""

LEFT_OUT: Final = -1
"""The type id of a missing operand."""

_STORED: Final = frozenset({Role.WEIGHT, Role.UNREAD})
"""Roles of tensors that are stored in the file."""
_ELEM_TYPES: Final[Mapping[DType | None, int]] = {
    dtype: number for number, dtype in enumerate(DType, start=1)
}
_PLAIN: Final = frozenset(
    {
        *(onnx.AttributeProto.INT, onnx.AttributeProto.INTS, onnx.AttributeProto.FLOAT),
        *(onnx.AttributeProto.FLOATS, onnx.AttributeProto.STRING, onnx.AttributeProto.STRINGS),
    }
)
"""The types of attributes that a ``Node`` has."""
_ELSEWHERE: Final = _PLAIN | {onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS}
"""The types of attributes that are not serialized for a signature."""

Shapes = Mapping[str, Sequence[int]]
TypeIds = dict[str, int]
"""Type ids by the names of tensors; ``""`` is a missing operand."""


class MemoMissError(Exception):
    """The types of a graph cannot be found by inferring each distinct node once."""


@dataclass(frozen=True, slots=True, eq=False)
class InternedType:
    """A type, and for small constants and what depends only on them also the value."""

    type: onnx.TypeProto
    known: Known
    value: Array | None = None


@dataclass(slots=True)
class TypeInterner:
    """Assigns an id to each distinct pair of a type and a value."""

    interned: list[InternedType] = field(default_factory=list)
    """Types by id."""
    ids: dict[tuple[object, ...], int] = field(default_factory=dict)

    def id_of(self, proto: onnx.TypeProto, value: Array | None = None) -> int:
        """The id of a type and a value."""
        key: tuple[object, ...] = (proto.SerializeToString(),)
        if value is not None:
            key += value.dtype, value.shape, value.tobytes()
        return self._entered(key, proto, value)

    def stored(self, model: onnx.ModelProto, graph: Graph) -> Iterator[tuple[str, int]]:
        """The ids of dense weights and of the outputs of Constant nodes."""
        weights = [each for each in graph.tensors.values() if each.role in _STORED]
        # One pass over the initializers for all that have to be read, instead of a search for each.
        large = {each.name for each in weights if _may_hold_dims(each) and _is_large(each, graph)}
        arrays = _arrays(model.graph, large) if large else {}
        for weight in weights:
            if weight.shape is not None and weight.num_stored is None:
                yield weight.name, self._weight(weight, graph, arrays)

    def _weight(self, weight: Tensor, graph: Graph, arrays: Mapping[str, Array]) -> int:
        value = _value(weight, graph)
        # Shapes may depend on integers that the file has, so different ones have different ids.
        # Nobody knows those of another file, nor reads as many as no shape has.
        array, itself = arrays.get(weight.name), b""
        if array is not None:
            itself = array.tobytes()
        elif value is None and _may_hold_dims(weight) and _is_readable(weight):
            itself = weight.name.encode()
        key = weight.shape, weight.dtype, value, itself
        if key in self.ids:
            return self.ids[key]
        dims = known_dims(weight.shape) or ()
        proto = dense_type(_ELEM_TYPES.get(weight.dtype, 0), dims)
        if value is None:
            return self._entered(key, proto, array)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(proto.tensor_type.elem_type)
        return self._entered(key, proto, np.array(value, dtype).reshape(dims))

    def _entered(self, key: tuple[object, ...], proto: onnx.TypeProto, value: Array | None) -> int:
        if key not in self.ids:
            self.ids[key] = len(self.interned)
            self.interned.append(InternedType(proto, known_of(proto), value))
        return self.ids[key]


@record
class Step:
    """A node of the walk."""

    index: int
    """The index of the node in the model."""
    signature: int
    """A number that nodes with equal operators, attributes and present outputs share."""
    inputs: tuple[str, ...]
    """The inputs of the node, then what its subgraphs read (``Bodies.operands``)."""
    outputs: tuple[str, ...]
    """The outputs of the node, then what its subgraphs write (``Bodies.written``)."""
    declared: Sequence[tuple[str, onnx.TypeProto]] | None = None
    """``Bodies.declared``; ``None``: the node has no subgraphs."""


@dataclass(slots=True)
class TypeMemo:
    """A large graph and the results of inferring its distinct nodes.

    Mutable: results accumulate from batch to batch.

    :raises MemoMissError: its nodes have no signatures, or repeat too rarely.
    """

    model: onnx.ModelProto
    graph: Graph
    """The graph of the model; the types of activations in it are not used."""
    nodes: Sequence[onnx.NodeProto]
    """The nodes of the model, in the order of ``graph``."""
    inputs: Sequence[onnx.ValueInfoProto]
    """The inputs without a default."""
    interner: TypeInterner = field(init=False)
    steps: list[Step] = field(init=False)
    stored: TypeIds = field(init=False)
    results: dict[tuple[int, ...], tuple[int, ...]] = field(init=False)
    """The type ids of outputs by signature and type ids of inputs."""
    last_shapes: tuple[tuple[str, Sequence[int]], ...] | None = None
    """The shapes of inputs in the last walk: ``BatchMemo`` needs its results for every batch."""
    last_type_ids: TypeIds = field(default_factory=dict)
    is_disabled: bool = False
    """Whether nodes repeat too rarely, so that the memo is not used any more."""
    inference: NodeInference = field(init=False)
    folder: Folder = field(init=False)

    def __post_init__(self) -> None:
        self._start_anew()
        self.steps = list(_steps(self.nodes, self.graph.nodes, self.stored))
        first = self.steps[:_FIRST_STEPS]
        keys = {(step.signature, *map(self.stored.get, step.inputs)) for step in first}
        self.refuse_more_than(len(keys), len(first))

    def _start_anew(self) -> None:
        """Discard all results except those on stored tensors."""
        self.interner, self.results, self.last_shapes = TypeInterner(), {}, None
        self.inference = NodeInference(self.model)
        self.folder = Folder(self.model.opset_import)
        self.stored, highest = {"": LEFT_OUT}, -1
        for name, type_id in self.interner.stored(self.model, self.graph):
            self.stored[name] = type_id
            if type_id > highest:
                # Nodes that read different constants are distinct, and few read more than two: half
                # of these is a lower bound of the distinct nodes, known without reading any node.
                highest = type_id
                self.refuse_more_than(highest // 2)

    def types_at(self, binding: Binding) -> Mapping[str, Known]:
        """The types of inputs and activations.

        :raises MemoMissError: they cannot be found, or differ from declared types.
        """
        ids = self.type_ids_at(binding.shapes)
        known = [interned.known for interned in self.interner.interned]
        types = {name: known[type_id] for name, type_id in ids.items() if type_id != LEFT_OUT}
        if not agree(self.model.graph, binding.dims, types):
            raise MemoMissError
        # A shape that a body declares for one of its tensors must agree as well.
        declared = (each for step in self.steps if step.declared for each in step.declared)
        if not agree_with(declared, binding.dims, types):
            raise MemoMissError
        self.refuse_other_outputs(types)
        return types

    def refuse_other_outputs(self, types: Mapping[str, Known]) -> None:
        """Compare the declared element types of graph outputs with the inferred ones.

        :raises MemoMissError: they differ, and onnx has its own rules for that case.
        """
        for value in self.model.graph.output:
            elem_type = value.type.tensor_type.elem_type
            is_dense = value.type.WhichOneof("value") in {None, "tensor_type"}
            if not is_dense or (elem_type and types[value.name].dtype is not dtype_of(elem_type)):
                raise MemoMissError

    def type_ids_at(self, shapes: Shapes) -> TypeIds:
        """Visit the nodes in topological order, and infer each distinct one once.

        The signature of a node and the type ids of its inputs determine everything that an
        inference reads, so equal keys have equal results. In topological order the ids of all
        inputs are known when a node is visited.

        :raises MemoMissError: a type cannot be inferred, or nodes repeat too rarely.
        """
        key_of_shapes = tuple(shapes.items())
        # An error at an earlier batch must not count for this one.
        self.inference.refused.clear()
        if len(self.inference.memo) > _MAX_CACHED:
            self._start_anew()
        if key_of_shapes == self.last_shapes:
            return self.last_type_ids
        ids, num_inferred, results = self.stored | self.input_type_ids(shapes), 0, self.results
        # O(nodes) look-ups, and one inference for each distinct node.
        for visited, step in enumerate(self.steps):
            inputs = tuple([ids[name] for name in step.inputs])
            key = (step.signature, *inputs)
            outputs = results.get(key)
            if outputs is None:
                num_inferred += 1
                self.refuse_more_than(num_inferred, visited)
                outputs = results[key] = self._inferred(step, inputs)
            if len(outputs) == 1:
                ids[step.outputs[0]] = outputs[0]
            else:
                ids.update(zip(step.outputs, outputs, strict=True))
        self.last_shapes, self.last_type_ids = key_of_shapes, ids
        return ids

    def refuse_more_than(self, num_inferred: int, num_visited: int | None = None) -> None:
        """Stop if inferring the whole graph would have been faster.

        ``num_visited`` is the number of nodes that were inferred or found; ``None``: all.

        :raises MemoMissError: too many nodes were inferred; the memo is then disabled.
        """
        # The nodes inferred so far are distinct, so ``len(nodes) / num_inferred`` is an upper bound
        # of how often a node repeats: below the minimum the memo cannot pay off any more.
        few = min(MIN_REPEATS_OF_FEW, MIN_REPEATS)
        repeats = few if num_inferred <= FEW_INFERRED else MIN_REPEATS
        visited = len(self.nodes) if num_visited is None else num_visited
        self.is_disabled |= num_inferred * repeats > len(self.nodes)
        # What few repeats shows early: a graph without any pays for a few hundred nodes in vain.
        self.is_disabled |= (num_inferred - _AHEAD) * few > visited
        if self.is_disabled:
            # Nobody asks again, and a graph without repetition is large without this too.
            self.interner, self.steps, self.stored, self.results = TypeInterner(), [], {}, {}
            raise MemoMissError

    def input_type_ids(self, shapes: Shapes) -> TypeIds:
        """The type ids of the graph's inputs.

        :raises MemoMissError: a type is unknown.
        """
        ids = {}
        for value in self.inputs:
            proto = value.type
            if value.name in shapes:
                proto = dense_type(proto.tensor_type.elem_type, shapes[value.name])
            if not is_complete(proto):
                raise MemoMissError
            ids[value.name] = self.interner.id_of(proto)
        return ids

    def _inferred(self, step: Step, inputs: Sequence[int]) -> tuple[int, ...]:
        """The type ids of a node's outputs and of what its subgraphs write."""
        node, interned = self.nodes[step.index], self.interner.interned
        operands = {name: interned[i] for name, i in zip(step.inputs, inputs, strict=True) if name}
        if step.declared is not None:
            operands = {name: operands[name] for name in reads_of(node)}
        types = {name: each.type for name, each in operands.items()}
        values = {name: each.value for name, each in operands.items() if each.value is not None}
        if step.declared is not None:
            return self._inferred_with_bodies(node, types, values)
        types |= self.inference.output_types(node, types, values)
        return self.output_type_ids(node, types, self.folder.values_of(node, values, types))

    def _inferred_with_bodies(
        self, node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], values: Mapping[str, Array]
    ) -> tuple[int, ...]:
        found = types_inside(self.model, node, types, values)
        if found is None:
            raise MemoMissError
        outer, computed, inside = found
        ids = [*self.output_type_ids(node, outer, computed)]
        for proto in inside:
            if proto is None or not is_complete(proto):
                raise MemoMissError
            ids.append(self.interner.id_of(proto))
        return tuple(ids)

    def output_type_ids(
        self, node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], values: Mapping[str, Array]
    ) -> tuple[int, ...]:
        """The type ids of a node's outputs, by their types and values.

        :raises MemoMissError: a type is unknown, or onnx rejects the inputs.
        """
        if self.inference.refused:
            # The inference of the whole graph reports these as findings.
            raise MemoMissError
        ids = []
        for name in node.output:
            proto, value = types.get(name), values.get(name)
            if value is not None:
                inferred, proto = proto, type_with_value(proto, value)
                # The inferred type and the computed value contradict each other.
                if is_complete(inferred) and proto is not inferred:
                    raise MemoMissError
            if name and (proto is None or not is_complete(proto)):
                raise MemoMissError
            ids.append(self.interner.id_of(proto, value) if name and proto else LEFT_OUT)
        return tuple(ids)


def type_memo_of(
    model: onnx.ModelProto,
    graph: Callable[[], Graph],
    columns: Columns,
    inputs: Sequence[onnx.ValueInfoProto],
) -> TypeMemo | None:
    """A memo for a graph; ``None`` if it repeats too rarely or has no signatures."""
    weights = model.graph.initializer
    if model.graph.sparse_initializer:
        return None
    if len({tensor.name for tensor in weights}) < len(weights):
        return None
    try:
        return TypeMemo(model, graph(), columns.nodes, inputs)
    except MemoMissError:
        return None


def _steps(
    protos: Iterable[onnx.NodeProto], nodes: Iterable[Node], stored: Mapping[str, int]
) -> Iterator[Step]:
    """The nodes except for Constants, whose outputs are stored tensors."""
    signatures: dict[tuple[object, ...], int] = {}
    for index, (proto, node) in enumerate(zip(protos, nodes, strict=True)):
        if node.onnx_op == "Constant":
            if not stored.keys() >= {*node.outputs}:
                raise MemoMissError
            continue
        key, bodies = _signature(proto, node), None
        if node.subgraphs:
            bodies = _bodies(proto, node, stored)
            key = (*key, *bodies.key)
        # Checked once for each signature: all nodes with it have the same attributes.
        signature = signatures.get(key)
        if signature is None:
            if is_followed(proto) or any(each.ref_attr_name for each in proto.attribute):
                raise MemoMissError
            signature = signatures[key] = len(signatures)
        if bodies is None:
            yield Step(index, signature, node.inputs, node.outputs)
        else:
            inputs = (*node.inputs, *bodies.operands)
            outputs = (*node.outputs, *bodies.written)
            yield Step(index, signature, inputs, outputs, bodies.declared)


def _signature(proto: onnx.NodeProto, node: Node) -> tuple[object, ...]:
    """The operator, the attributes and the present outputs of a node, without its subgraphs."""
    attributes = node.attributes
    # Nodes with equal attributes share one mapping (``reading._Reader``), so its id identifies
    # them without comparing the attributes.
    others = () if len(proto.attribute) == len(attributes) else _others(proto)
    return (node.op_type, node.domain, id(attributes), others, *map(bool, node.outputs))


def _signature_inside(proto: onnx.NodeProto, node: Node) -> tuple[object, ...]:
    if is_followed(proto) or any(each.ref_attr_name for each in proto.attribute):
        raise MemoMissError
    return (len(node.inputs), *_signature(proto, node))


def _bodies(proto: onnx.NodeProto, node: Node, stored: Mapping[str, int]) -> Bodies:
    """The subgraphs of a node.

    :raises MemoMissError: they have no signature, or a constant in them is not stored.
    """
    bodies = Bodies(_signature_inside)
    try:
        for (_, inner), (attribute, graph) in zip(subgraphs(proto), node.subgraphs, strict=True):
            bodies.add(attribute, inner, graph)
    except NoSignatureError:
        raise MemoMissError from None
    constants = (
        name
        for _, graph in node.subgraphs
        for each in graph.all_nodes()
        if each.onnx_op == "Constant"
        for name in each.outputs
    )
    if not all(name in stored for name in constants):
        raise MemoMissError
    return bodies


def _others(node: onnx.NodeProto) -> tuple[bytes, ...]:
    """The attributes that neither a ``Node`` nor ``Bodies`` has: tensors, serialized.

    :raises MemoMissError: there are large tensors.
    """
    others = [each for each in node.attribute if each.type not in _ELSEWHERE]
    if sum(each.ByteSize() for each in others) > _MAX_ATTRIBUTE_BYTES:
        raise MemoMissError
    return tuple(each.SerializeToString() for each in others)


def _value(weight: Tensor, graph: Graph) -> tuple[int | float, ...] | None:
    """The elements of a weight if they are known and shapes may depend on them."""
    value = graph.values.get(weight.name)
    # Another weight may have the same name.
    if value is None or len(value) != weight.num_elements:
        return None
    return value if _may_hold_dims(weight) or len(value) <= _MAX_SCALES else None


def _may_hold_dims(weight: Tensor) -> bool:
    return weight.dtype is None or not weight.dtype.is_floating


def _is_large(weight: Tensor, graph: Graph) -> bool:
    """Whether a weight is not among the graph's values but small enough for constant folding."""
    return weight.name not in graph.values and _is_readable(weight)


def _is_readable(weight: Tensor) -> bool:
    """Whether the elements of a weight are in the file, and few enough to be read."""
    return not weight.is_external and (weight.num_elements or 0) <= MAX_ELEMENTS


def _arrays(graph: onnx.GraphProto, names: Iterable[str]) -> dict[str, Array]:
    """The elements of constants, as far as the file has them."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        tensor = constant_tensor(node)
        if tensor is not None:
            constants[node.output[0]] = tensor
    read = ((name, constant_value(constants[name])) for name in names if name in constants)
    return {name: value for name, value in read if value is not None and value.dtype.kind in "biuf"}
