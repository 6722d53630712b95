"""From an inferred ModelProto to records: scoped names, roles, constants, operators.

Weights (definition 1) are initializers and Constant tensors that some node reads or that are graph
outputs, and the outputs of ConstantOfShape with a constant input. An initializer that only sizes a
ConstantOfShape, or that nothing reads, is none. Each storage counts once: tensors that point at the
same place of an external file are one.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from math import prod

import onnx

from onnxmem.errors import GraphError
from onnxmem.model.bounds import BOUNDS, is_past_all, variable
from onnxmem.model.constants import constant_tensor, constant_value
from onnxmem.model.dtypes import dtype_of
from onnxmem.model.graph import Graph, Node, Role, Tensor
from onnxmem.model.traversal import onnx_op, subgraphs
from onnxmem.model.value_types import NOTHING_KNOWN, Known, known_of
from onnxmem.ops import lookup
from onnxmem.ops.spec import Attribute, OpSpec

_MAX_VALUE_ELEMENTS = 64
"""Constants up to this many elements are at hand as values."""

_ATTRIBUTE_VALUES: Mapping[int, Callable[[onnx.AttributeProto], Attribute]] = {
    onnx.AttributeProto.INT: lambda attribute: attribute.i,
    onnx.AttributeProto.FLOAT: lambda attribute: attribute.f,
    onnx.AttributeProto.STRING: lambda attribute: attribute.s.decode("utf-8", "backslashreplace"),
    onnx.AttributeProto.INTS: lambda attribute: tuple(attribute.ints),
    onnx.AttributeProto.FLOATS: lambda attribute: tuple(attribute.floats),
    onnx.AttributeProto.STRINGS: lambda attribute: tuple(
        text.decode("utf-8", "backslashreplace") for text in attribute.strings
    ),
}


def read_graph(model: onnx.ModelProto, assumed: AbstractSet[str] = frozenset()) -> Graph:
    """Read a model whose ``value_info`` holds what is known of its shapes.

    ``assumed`` names the tensors whose shapes nothing derives.

    :raises GraphError: a weight has a negative dim.
    """
    reader = _Reader(opsets={entry.domain: entry.version for entry in model.opset_import})
    graph = reader.graph(model.graph, prefix="", outer={})
    # The subgraphs hold the same mapping, so it is mended in place before anyone else sees it.
    reader.tensors.update(_weight_roles(graph))
    for name in assumed & reader.tensors.keys():
        reader.tensors[name] = replace(reader.tensors[name], is_assumed=True)
    return graph


@dataclass(slots=True)
class _Reader:
    """Collects the tensors of all scopes while the graphs are read."""

    opsets: Mapping[str, int]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, tuple[int | float, ...]] = field(default_factory=dict)
    operators: dict[tuple[str, str], OpSpec] = field(default_factory=dict)

    def graph(self, proto: onnx.GraphProto, prefix: str, outer: Mapping[str, str]) -> Graph:
        """Read one graph; ``outer`` maps a name of an enclosing scope to its scoped name."""
        infos = {
            value.name: known_of(value.type)
            for value in (*proto.value_info, *proto.output, *proto.input)
        }
        scope = {**outer}
        self._add_initializers(proto, prefix, scope)
        inputs = self._add_inputs(proto, prefix, scope)
        for node in proto.node:
            for name in node.output:
                scope[name] = prefix + name
        nodes = self._nodes(proto, prefix, scope, infos)
        outputs = tuple(scope[value.name] for value in proto.output)
        return Graph(proto.name, nodes, inputs, outputs, self.tensors, self.values)

    def _add_initializers(self, proto: onnx.GraphProto, prefix: str, scope: dict[str, str]) -> None:
        for tensor in proto.initializer:
            scope[tensor.name] = prefix + tensor.name
            self._add_constant(prefix + tensor.name, tensor)
        for sparse in proto.sparse_initializer:
            name = scope[sparse.values.name] = prefix + sparse.values.name
            self._add_sparse(name, sparse)

    def _add_inputs(
        self, proto: onnx.GraphProto, prefix: str, scope: dict[str, str]
    ) -> tuple[str, ...]:
        inputs = []
        for value in proto.input:
            name = prefix + value.name
            if name in self.tensors and scope.get(value.name) == name:
                continue
            scope[value.name] = name
            role = Role.BODY_INPUT if prefix else Role.INPUT
            known = known_of(value.type)
            self.tensors[name] = Tensor(name, known.dtype, known.shape, role)
            inputs.append(name)
        return tuple(inputs)

    def _nodes(
        self,
        proto: onnx.GraphProto,
        prefix: str,
        scope: Mapping[str, str],
        infos: Mapping[str, Known],
    ) -> tuple[Node, ...]:
        nodes = []
        taken: dict[str, int] = {}
        has_bodies = any(subgraphs(node) for node in proto.node if node.attribute)
        offered = sorted(set(scope.values())) if has_bodies else None
        for place, node in enumerate(proto.node):
            name = _unique(prefix + (node.name or f"{node.op_type}_{place}"), taken)
            self._add_outputs(node, prefix, infos)
            nodes.append(self._node(node, name, scope, offered))
        return tuple(nodes)

    def _node(
        self,
        proto: onnx.NodeProto,
        name: str,
        scope: Mapping[str, str],
        offered: Sequence[str] | None,
    ) -> Node:
        """Read one node; ``offered``: what bodies may read, sorted; ``None``: no node has one."""
        inner = () if offered is None else self._inner(proto, name, scope, offered)
        return Node(
            name,
            proto.op_type,
            proto.domain,
            tuple([scope[text] if text else "" for text in proto.input]),
            tuple([scope[text] if text else "" for text in proto.output]),
            self._operator(proto.op_type, proto.domain),
            _attributes(proto),
            inner,
            _outer_reads(inner, offered) if inner and offered is not None else (),
        )

    def _inner(
        self, proto: onnx.NodeProto, name: str, scope: Mapping[str, str], offered: Sequence[str]
    ) -> tuple[tuple[str, Graph], ...]:
        return tuple(
            (attribute, self.graph(graph, _free_prefix(f"{name}/{attribute}", offered), scope))
            for attribute, graph in subgraphs(proto)
        )

    def _operator(self, op_type: str, domain: str) -> OpSpec:
        """The record of an operator, looked up once."""
        key = domain, op_type
        if key not in self.operators:
            self.operators[key] = lookup(op_type, domain, self.opsets.get(domain))
        return self.operators[key]

    def _add_outputs(self, node: onnx.NodeProto, prefix: str, infos: Mapping[str, Known]) -> None:
        is_constant = node.op_type == "Constant"
        constant = constant_tensor(node) if is_constant else None
        for text in node.output:
            if not text:
                continue
            name = prefix + text
            if constant is not None:
                self._add_constant(name, constant)
            elif is_constant and (sparse := _sparse_constant(node)):
                self._add_sparse(name, sparse)
            else:
                known = infos.get(text, NOTHING_KNOWN)
                self.tensors[name] = Tensor(name, known.dtype, known.shape, Role.ACTIVATION)

    def _add_constant(self, name: str, proto: onnx.TensorProto) -> None:
        is_external = proto.data_location == onnx.TensorProto.EXTERNAL
        shape = _stored_shape(name, proto.dims)
        self.tensors[name] = Tensor(
            name=name,
            dtype=dtype_of(proto.data_type),
            shape=shape,
            role=Role.WEIGHT,
            storage=_external_place(proto) if is_external else None,
            is_external=is_external,
        )
        if prod(shape) <= _MAX_VALUE_ELEMENTS and not is_external:
            value = constant_value(proto)
            if value is not None and value.dtype.kind in "biuf":
                self.values[name] = tuple(value.ravel().tolist())

    def _add_sparse(self, name: str, proto: onnx.SparseTensorProto) -> None:
        self.tensors[name] = Tensor(
            name=name,
            dtype=dtype_of(proto.values.data_type),
            shape=_stored_shape(name, proto.dims),
            role=Role.WEIGHT,
            num_stored=prod(_stored_shape(name, proto.values.dims)),
        )


def _weight_roles(graph: Graph) -> dict[str, Tensor]:
    """Tell the weights from what only looks like one, by who reads it: the tensors, mended."""
    nodes = list(graph.all_nodes())
    tensors = dict(graph.tensors)
    for node in nodes:
        if node.onnx_op == "ConstantOfShape":
            shape = tensors.get(next(iter(node.inputs), ""))
            if shape is not None and shape.role is Role.WEIGHT:
                for name in node.writes:
                    tensors[name] = replace(tensors[name], role=Role.WEIGHT)
    read = _really_read(graph, nodes)
    for name, tensor in tensors.items():
        if tensor.role is Role.WEIGHT and name not in read:
            tensors[name] = replace(tensor, role=Role.UNREAD)
    return tensors


def _really_read(graph: Graph, nodes: Sequence[Node]) -> set[str]:
    """Names that a node reads for their elements, or that a graph hands out."""
    read = set(graph.outputs)
    for node in nodes:
        if node.onnx_op != "ConstantOfShape":
            read.update(node.inputs)
        for _, inner in node.subgraphs:
            read.update(inner.outputs)
    return read


def _stored_shape(name: str, dims: Sequence[int]) -> tuple[int, ...]:
    """The dims of a tensor that the file holds: numbers, none of them negative."""
    if is_past_all(dims):
        message = f"weight {name!r} has {len(dims):,} dims, over {BOUNDS.rank} ({variable('rank')})"
        message += " or past all sizes; export the model again"
        raise GraphError(message)
    if min(dims, default=0) < 0:
        message = f"weight {name!r} has a negative dim: {list(dims)}; export the model again"
        raise GraphError(message)
    return tuple(dims)


def _attributes(proto: onnx.NodeProto) -> dict[str, Attribute]:
    """The attributes that are plain values; tensors and graphs are left out."""
    found = {}
    for attribute in proto.attribute:
        read = _ATTRIBUTE_VALUES.get(attribute.type)
        if read is not None:
            found[attribute.name] = read(attribute)
    return found


def _outer_reads(inner: Iterable[tuple[str, Graph]], offered: Sequence[str]) -> tuple[str, ...]:
    """Names that the subgraphs read of those that the enclosing graphs offer."""
    names: dict[str, None] = {}
    for _, graph in inner:
        reads = (*(name for node in graph.nodes for name in node.reads), *graph.outputs)
        names.update(dict.fromkeys(name for name in reads if _first_from(name, offered) == name))
    return tuple(names)


def _free_prefix(text: str, offered: Sequence[str]) -> str:
    """The scope of a subgraph, numbered where a tensor outside has a name that begins like it."""
    prefix, number = f"{text}/", 1
    while _first_from(prefix, offered).startswith(prefix):
        number += 1
        prefix = f"{text}#{number}/"
    return prefix


def _first_from(text: str, names: Sequence[str]) -> str:
    """The first of the sorted names that is not before a text; ``""`` where there is none."""
    place = bisect_left(names, text)
    return names[place] if place < len(names) else ""


def _external_place(proto: onnx.TensorProto) -> str | None:
    """Identify the bytes of an external tensor; unknown where the file names no exact place."""
    place = {entry.key: entry.value for entry in proto.external_data}
    if not {"location", "offset", "length"} <= place.keys():
        return None
    return f"external {place['location']} {place['offset']}+{place['length']}"


def _sparse_constant(node: onnx.NodeProto) -> onnx.SparseTensorProto | None:
    if onnx_op(node) != "Constant":
        return None
    return next((a.sparse_tensor for a in node.attribute if a.name == "sparse_value"), None)


def _unique(name: str, taken: dict[str, int]) -> str:
    """A node's name, numbered where another node has it already.

    ``taken`` maps each name that is taken to the last number that was tried with it.
    """
    candidate, number = name, taken.get(name, 1)
    while candidate in taken:
        number += 1
        candidate = f"{name}#{number}"
    taken[name] = number
    taken.setdefault(candidate, 1)
    return candidate
