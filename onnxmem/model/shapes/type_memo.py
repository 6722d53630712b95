"""The types of a large graph, each distinct node inferred once.

A large graph is few blocks many times over. Two nodes have one signature where their operators and
attributes are the same; where the types of their inputs are the same too, so are those of their
outputs, and one inference serves both. onnx's whole-graph inference applies the same function to
each node; what takes it longer is to write the graph out and to read it back, for every batch.

A graph is served only if all its types follow this way (``TypeMemo.types_at``). ``BatchMemo`` is
the same for another batch of a graph that fixes one, by the rules of ``batch_rewrite`` for a node.
Anything else raises ``MemoMissError`` and is left to the whole inference.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import onnx
import onnx.helper

from onnxmem.model.binding import Binding
from onnxmem.model.constants import Array, constant_tensor, constant_value
from onnxmem.model.graph import DType, Graph, Node, Role, Tensor, dtype_of, record
from onnxmem.model.shapes.batch_axes import (
    BatchAxis,
    indices_of_samples,
    may_be_of_a_sample,
    operands_with_batch,
)
from onnxmem.model.shapes.batch_rewrite import BatchRewrite
from onnxmem.model.shapes.folding import MAX_ELEMENTS, Folder, type_with_value
from onnxmem.model.shapes.inference import agree
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.model.shapes.propagation import is_followed
from onnxmem.model.value_types import Known, dense_type, dims_of, is_complete, known_of, shape_of
from onnxmem.ops.spec import known_dims

MIN_NODES: Final = 200
"""The whole inference of a graph with fewer nodes is faster."""
MIN_REPEATS: Final = 32
"""Memoization pays off only if nodes repeat at least this often on average."""
MIN_REPEATS_OF_FEW: Final = 4
"""The same where few nodes are inferred in all: most such graphs compute dims or fix the batch, and
their whole inference takes longer than that of others."""
FEW_INFERRED: Final = 250
_MAX_CACHED: Final = 5_000
"""Results: a sweep over many batches would keep those of each, some 10 KiB of a small model's."""
_FIRST_STEPS: Final = 1_000
"""Compared by their weights alone before any is inferred: most graphs that repeat nothing do so
from the start."""
_MAX_ATTRIBUTE_BYTES: Final = 4096
"""Of the attributes of a signature that a node's record does not have."""
_MAX_SCALES: Final = 8
"""Fractions that shapes follow from: a Resize has as many scales as an image has dims, twice."""

LEFT_OUT: Final = -1
"""In place of a type id, of an operand that is left out."""

_STORED: Final = frozenset({Role.WEIGHT, Role.UNREAD})
"""Roles of what the file holds."""
_ELEM_TYPES: Final[Mapping[DType | None, int]] = {
    dtype: number for number, dtype in enumerate(DType, start=1)
}
_PLAIN: Final = frozenset(
    {
        *(onnx.AttributeProto.INT, onnx.AttributeProto.INTS, onnx.AttributeProto.FLOAT),
        *(onnx.AttributeProto.FLOATS, onnx.AttributeProto.STRING, onnx.AttributeProto.STRINGS),
    }
)
"""Attributes that the record of a node has."""

Shapes = Mapping[str, Sequence[int]]
TypeIds = dict[str, int]
"""The id of each tensor's type, by name; ``""`` is what is left out."""
_Moved = tuple[int, int, BatchAxis | None]
"""The type ids of a tensor at the old and at the new batch, and the axis of the batch in it."""
_NOT_MOVED: Final[_Moved] = (LEFT_OUT, LEFT_OUT, None)


class MemoMissError(Exception):
    """The types of a graph do not follow from one inference per distinct node."""


@dataclass(frozen=True, slots=True, eq=False)
class InternedType:
    """What is known of the tensors that share a type, and a value where that is known."""

    type: onnx.TypeProto
    known: Known
    value: Array | None = None
    """The elements, where these are known: of a small constant and of what follows from some."""


@dataclass(slots=True)
class TypeInterner:
    """An id for each distinct pair of a type and a value."""

    interned: list[InternedType] = field(default_factory=list)
    """By id."""
    ids: dict[tuple[object, ...], int] = field(default_factory=dict)

    def id_of(self, proto: onnx.TypeProto, value: Array | None = None) -> int:
        """The id of a type and a value."""
        key: tuple[object, ...] = (proto.SerializeToString(),)
        if value is not None:
            key += value.dtype, value.shape, value.tobytes()
        return self._entered(key, proto, value)

    def stored(self, model: onnx.ModelProto, graph: Graph) -> Iterator[tuple[str, int]]:
        """The ids of dense weights and of what Constant nodes make; ``graph`` is the model's."""
        weights = [each for each in graph.tensors.values() if each.role in _STORED]
        large = {each.name for each in weights if _may_hold_dims(each) and _is_large(each, graph)}
        arrays = _arrays(model.graph, large) if large else {}
        for weight in weights:
            if weight.shape is not None and weight.num_stored is None:
                yield weight.name, self._weight(weight, graph, arrays)

    def _weight(self, weight: Tensor, graph: Graph, arrays: Mapping[str, Array]) -> int:
        value = _value(weight, graph)
        # A weight that may hold dims and whose elements are not read shares its id with no other.
        itself = weight.name if value is None and _may_hold_dims(weight) else ""
        key = weight.shape, weight.dtype, value, itself
        if key in self.ids:
            return self.ids[key]
        dims = known_dims(weight.shape) or ()
        proto = dense_type(_ELEM_TYPES.get(weight.dtype, 0), dims)
        if value is None:
            return self._entered(key, proto, arrays.get(weight.name))
        dtype = onnx.helper.tensor_dtype_to_np_dtype(proto.tensor_type.elem_type)
        return self._entered(key, proto, np.array(value, dtype).reshape(dims))

    def _entered(self, key: tuple[object, ...], proto: onnx.TypeProto, value: Array | None) -> int:
        if key not in self.ids:
            self.ids[key] = len(self.interned)
            self.interned.append(InternedType(proto, known_of(proto), value))
        return self.ids[key]


@record
class Step:
    """A node as the walk sees it."""

    index: int
    """Among the nodes of the model."""
    signature: int
    """The same for nodes whose operators, attributes and outputs that are given are the same."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(slots=True)
class TypeMemo:
    """A large graph and what was inferred of its distinct nodes.

    Mutable: results accumulate from batch to batch.

    :raises MemoMissError: its nodes have no signatures, or repeat too rarely.
    """

    model: onnx.ModelProto
    graph: Graph
    """The records of the model; the types that they give of what nodes make are not read."""
    nodes: Sequence[onnx.NodeProto]
    """Those of the model, one for each record."""
    inputs: Sequence[onnx.ValueInfoProto]
    """The inputs that the caller passes."""
    interner: TypeInterner = field(init=False)
    steps: list[Step] = field(init=False)
    stored: TypeIds = field(init=False)
    results: dict[tuple[int, ...], tuple[int, ...]] = field(init=False)
    """The type ids of outputs by signature and by the type ids of inputs."""
    last_shapes: tuple[tuple[str, Sequence[int]], ...] | None = None
    """Of the last walk: a batch that the file fixes is moved from there."""
    last_type_ids: TypeIds = field(default_factory=dict)
    is_disabled: bool = False
    """Nodes turned out to repeat too rarely."""
    inference: NodeInference = field(init=False)
    folder: Folder = field(init=False)

    def __post_init__(self) -> None:
        stored = [each for each in self.graph.tensors.values() if each.role in _STORED]
        # Nodes that read weights of other shapes are distinct, and few read more than two.
        self.refuse_more_than(len({(each.shape, each.dtype) for each in stored}) // 2)
        self._start_anew()
        self.steps = list(_steps(self.nodes, self.graph.nodes, self.stored))
        first = self.steps[:_FIRST_STEPS]
        keys = {(step.signature, *map(self.stored.get, step.inputs)) for step in first}
        self.refuse_more_than(len(keys))

    def _start_anew(self) -> None:
        """Keep only what the file itself says."""
        self.interner, self.results, self.last_shapes = TypeInterner(), {}, None
        self.inference = NodeInference(self.model)
        self.folder = Folder(self.model.opset_import)
        self.stored = {"": LEFT_OUT, **dict(self.interner.stored(self.model, self.graph))}

    def types_at(self, binding: Binding) -> Mapping[str, Known]:
        """The types of inputs and of all that nodes make.

        :raises MemoMissError: they do not follow, or the file declares others.
        """
        ids = self.type_ids_at(binding.shapes)
        known = [interned.known for interned in self.interner.interned]
        types = {name: known[type_id] for name, type_id in ids.items() if type_id != LEFT_OUT}
        if not agree(self.model.graph, binding.dims, types):
            raise MemoMissError
        self.refuse_other_outputs(types)
        return types

    def refuse_other_outputs(self, types: Mapping[str, Known]) -> None:
        """Compare the kinds and elements that the file declares of outputs with their types.

        :raises MemoMissError: they differ, and onnx has rules of its own for that.
        """
        for value in self.model.graph.output:
            elem_type = value.type.tensor_type.elem_type
            is_dense = value.type.WhichOneof("value") in {None, "tensor_type"}
            if not is_dense or (elem_type and types[value.name].dtype is not dtype_of(elem_type)):
                raise MemoMissError

    def type_ids_at(self, shapes: Shapes) -> TypeIds:
        """Walk the nodes in running order, and infer each distinct one once.

        Sound because a node's signature and the type ids of its inputs hold all that an inference
        reads of it; running order has every input's id at hand.

        :raises MemoMissError: the type of a tensor does not follow, or nodes repeat too rarely.
        """
        key_of_shapes = tuple(shapes.items())
        self.inference.refused.clear()
        if len(self.inference.memo) > _MAX_CACHED:
            self._start_anew()
        if key_of_shapes == self.last_shapes:
            return self.last_type_ids
        ids, num_inferred, results = self.stored | self.input_type_ids(shapes), 0, self.results
        for step in self.steps:
            inputs = tuple([ids[name] for name in step.inputs])
            key = (step.signature, *inputs)
            made = results.get(key)
            if made is None:
                num_inferred += 1
                self.refuse_more_than(num_inferred)
                made = results[key] = self._inferred(self.nodes[step.index], inputs)
            if len(made) == 1:
                ids[step.outputs[0]] = made[0]
            else:
                ids.update(zip(step.outputs, made, strict=True))
        self.last_shapes, self.last_type_ids = key_of_shapes, ids
        return ids

    def refuse_more_than(self, num_inferred: int) -> None:
        """Infer no more single nodes than take as long as the whole inference.

        :raises MemoMissError: so many have been inferred; the memo is disabled from then on.
        """
        few = min(MIN_REPEATS_OF_FEW, MIN_REPEATS)
        repeats = few if num_inferred <= FEW_INFERRED else MIN_REPEATS
        self.is_disabled |= num_inferred * repeats > len(self.nodes)
        if self.is_disabled:
            raise MemoMissError

    def input_type_ids(self, shapes: Shapes) -> TypeIds:
        """The type ids of the graph's inputs.

        :raises MemoMissError: a type is not known, or without elements.
        """
        ids = {}
        for value in self.inputs:
            proto = value.type
            if value.name in shapes:
                proto = dense_type(proto.tensor_type.elem_type, shapes[value.name])
            if not is_complete(proto) or 0 in (shape_of(proto) or ()):
                raise MemoMissError
            ids[value.name] = self.interner.id_of(proto)
        return ids

    def _inferred(self, node: onnx.NodeProto, inputs: Sequence[int]) -> tuple[int, ...]:
        """The type ids of a node's outputs."""
        interned = self.interner.interned
        given = {name: interned[i] for name, i in zip(node.input, inputs, strict=True) if name}
        types = {name: each.type for name, each in given.items()}
        values = {name: each.value for name, each in given.items() if each.value is not None}
        types |= self.inference.output_types(node, types, values)
        return self.output_type_ids(node, types, self.folder.values_of(node, values, types))

    def output_type_ids(
        self, node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], values: Mapping[str, Array]
    ) -> tuple[int, ...]:
        """The type ids of a node's outputs by what is known of these.

        :raises MemoMissError: the type of one is not known, or onnx refuses the inputs.
        """
        if self.inference.refused:
            # The walk of the whole graph makes findings of these.
            raise MemoMissError
        made = []
        for name in node.output:
            proto, value = types.get(name), values.get(name)
            if value is not None:
                inferred, proto = proto, type_with_value(proto, value)
                # onnx knows a type and its operators make another: left to the whole inference.
                if is_complete(inferred) and proto is not inferred:
                    raise MemoMissError
            if name and (proto is None or not is_complete(proto)):
                raise MemoMissError
            made.append(self.interner.id_of(proto, value) if name and proto else LEFT_OUT)
        return tuple(made)


def type_memo_of(
    model: onnx.ModelProto,
    graph: Graph,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
) -> TypeMemo | None:
    """A memo for a graph; ``None`` where it is small or its nodes have no signatures."""
    weights = model.graph.initializer
    if len(graph.nodes) < MIN_NODES or model.graph.sparse_initializer:
        return None
    if len({tensor.name for tensor in weights}) < len(weights):
        return None
    try:
        return TypeMemo(model, graph, nodes, inputs)
    except MemoMissError:
        return None


@dataclass(slots=True)
class BatchMemo:
    """A graph at two batches: the one that the file fixes, and another."""

    memo: TypeMemo
    old: int
    new: int
    ids: dict[_Moved, int] = field(default_factory=dict)
    """An id for each distinct way in which a tensor moves from batch to batch."""
    moves: list[_Moved] = field(default_factory=list)
    """The same by id."""

    def types(self, old_shapes: Shapes, new_shapes: Shapes) -> Mapping[str, Known]:
        """The types of all tensors at the new batch.

        Two nodes share a result where they do at either batch and where their inputs have the
        batch in the same axis: the rewrite of a node reads nothing else.

        :raises MemoMissError: they do not follow from distinct nodes, or no reading of the graph
            brings all of it to the new batch.
        """
        memo, graph = self.memo, self.memo.model.graph
        if indices_of_samples(graph, self.old):
            raise MemoMissError
        at_old = memo.type_ids_at(old_shapes)
        ids = self._initial_ids(at_old, memo.stored | memo.input_type_ids(new_shapes))
        results: dict[tuple[int, ...], list[int]] = {}
        for step in memo.steps:
            inputs = [ids[name] for name in step.inputs]
            key = (step.signature, *inputs)
            made = results.get(key)
            if made is None:
                memo.refuse_more_than(len(results))
                olds = [at_old[name] for name in step.outputs]
                made = results[key] = self._inferred(memo.nodes[step.index], inputs, olds)
            if len(made) == 1:
                ids[step.outputs[0]] = made[0]
            else:
                ids.update(zip(step.outputs, made, strict=True))
        self._refuse_left_behind(ids[value.name] for value in graph.output)
        interned = memo.interner.interned
        news = [None if new == LEFT_OUT else interned[new].known for _, new, _ in self.moves]
        types = {name: known for name, i in ids.items() if (known := news[i])}
        memo.refuse_other_outputs(types)
        return types

    def _initial_ids(self, at_old: TypeIds, at_new: TypeIds) -> TypeIds:
        """What stands before the first node; an input has its batch where its dims differ."""
        ids = {}
        for name, new in at_new.items():
            if name in self.memo.stored:
                ids[name] = self._id_of((new, new, None))
            else:
                walk = self._walk({name: at_old[name]})
                walk.types[name] = self.memo.interner.interned[new].type
                walk.find_batch(name, ())
                ids[name] = self._id_of((at_old[name], new, walk.batch_axes.get(name)))
        return ids

    def _id_of(self, moved: _Moved) -> int:
        if moved not in self.ids:
            self.ids[moved] = len(self.moves)
            self.moves.append(moved)
        return self.ids[moved]

    def _walk(self, olds: TypeIds) -> BatchRewrite:
        """The rules of one node, with the types of its tensors at the old batch."""
        memo, interned = self.memo, self.memo.interner.interned
        types = {name: interned[i].type for name, i in olds.items() if i != LEFT_OUT}
        model = onnx.ModelProto(ir_version=memo.model.ir_version)
        return BatchRewrite(model, types, self.old, self.new, (memo.inference, memo.folder))

    def _inferred(
        self, original: onnx.NodeProto, inputs: Sequence[int], olds: Sequence[int]
    ) -> list[int]:
        """How a node's outputs move.

        :raises MemoMissError: it cannot follow, or by more than its own constants alone.
        """
        node = onnx.NodeProto()
        node.CopyFrom(original)
        moved = {n: self.moves[i] for n, i in zip(original.input, inputs, strict=True) if n}
        walk = self._walk(
            {name: old for name, (old, _, _) in moved.items()}
            | dict(zip(original.output, olds, strict=True))
        )
        interned = self.memo.interner.interned
        for name, (_, new, axis) in moved.items():
            walk.types[name] = interned[new].type
            value = interned[new].value
            if value is not None:
                walk.values[name] = value
            if axis is not None:
                walk.batch_axes[name] = axis
        self._refuse_growth_elsewhere(node, walk)
        if not walk.rewrite_node(node):
            raise MemoMissError
        news = self.memo.output_type_ids(node, walk.types, walk.values)
        return [
            self._id_of((old, new, walk.batch_axes.get(name)) if name else _NOT_MOVED)
            for name, old, new in zip(node.output, olds, news, strict=True)
        ]

    def _refuse_growth_elsewhere(self, node: onnx.NodeProto, walk: BatchRewrite) -> None:
        """An operand that must be as long as the batch grows where it comes from.

        :raises MemoMissError: there is one, or one that may have to be.
        """
        old = {name: dims_of(walk.old_types[name]) or () for name in node.input if name}
        for operand in operands_with_batch(node, walk.batch_axes, old, self.old):
            name = node.input[operand.index]
            if operand.is_certain or name not in self.memo.stored:
                raise MemoMissError
            if may_be_of_a_sample(old[name], walk.values.get(name)):
                raise MemoMissError

    def _refuse_left_behind(self, outputs: Iterable[int]) -> None:
        """Outputs that led with the old batch and have not grown in any axis."""
        interned = self.memo.interner.interned
        for old, new, _ in (self.moves[i] for i in outputs):
            before, after = (interned[i].known.shape for i in (old, new))
            if before and before == after and before[0] == self.old:
                raise MemoMissError


def _steps(
    protos: Iterable[onnx.NodeProto], nodes: Iterable[Node], stored: Mapping[str, int]
) -> Iterator[Step]:
    """The nodes but Constants, which have made something before the first node runs."""
    signatures: dict[tuple[object, ...], int] = {}
    for index, (proto, node) in enumerate(zip(protos, nodes, strict=True)):
        if node.onnx_op == "Constant":
            if not stored.keys() >= {*node.outputs}:
                raise MemoMissError
            continue
        attributes = node.attributes
        others = () if len(proto.attribute) == len(attributes) else _others(proto)
        key = (node.op_type, node.domain, id(attributes), others, *map(bool, node.outputs))
        signature = signatures.get(key)
        if signature is None:
            if is_followed(proto) or any(each.ref_attr_name for each in proto.attribute):
                raise MemoMissError
            signature = signatures[key] = len(signatures)
        yield Step(index, signature, node.inputs, node.outputs)


def _others(node: onnx.NodeProto) -> tuple[bytes, ...]:
    """The attributes that the record of a node does not have.

    :raises MemoMissError: graphs, or a tensor that is large.
    """
    others = [attribute for attribute in node.attribute if attribute.type not in _PLAIN]
    if any(each.HasField("g") or each.graphs for each in others):
        raise MemoMissError
    if sum(each.ByteSize() for each in others) > _MAX_ATTRIBUTE_BYTES:
        raise MemoMissError
    return tuple(each.SerializeToString() for each in others)


def _value(weight: Tensor, graph: Graph) -> tuple[int | float, ...] | None:
    """The elements of a weight that are at hand and that shapes may follow from."""
    value = graph.values.get(weight.name)
    # Another weight may have the same name.
    if value is None or len(value) != weight.num_elements:
        return None
    return value if _may_hold_dims(weight) or len(value) <= _MAX_SCALES else None


def _may_hold_dims(weight: Tensor) -> bool:
    return weight.dtype is None or not weight.dtype.is_floating


def _is_large(weight: Tensor, graph: Graph) -> bool:
    """Whether a value is small enough to compute with, and is not among the graph's values."""
    return weight.name not in graph.values and (weight.num_elements or 0) <= MAX_ELEMENTS


def _arrays(graph: onnx.GraphProto, names: Iterable[str]) -> dict[str, Array]:
    """The elements of some constants, as far as the file holds them."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        tensor = constant_tensor(node)
        if tensor is not None:
            constants[node.output[0]] = tensor
    read = ((name, constant_value(constants[name])) for name in names if name in constants)
    return {name: value for name, value in read if value is not None and value.dtype.kind in "biuf"}
