"""From an inferred ModelProto to records: scoped names, roles, constants, operators.

Weights (definition 1) are initializers and Constant tensors that some node reads or that are graph
outputs, and the outputs of ConstantOfShape with a constant input. An initializer that only sizes a
ConstantOfShape, or that nothing reads, is not one. Each storage counts once: tensors that point at
the same range of an external file are one. At other dims the nodes and weights stay as they were
read, and only types are replaced (``retyped``).
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

import onnx

from onnxmem.errors import GraphError
from onnxmem.model.bounds import BOUNDS, is_past_all, variable
from onnxmem.model.constants import constant_tensor, constant_value
from onnxmem.model.graph import Graph, Node, Role, Tensor, dtype_of
from onnxmem.model.traversal import Columns, columns_of, onnx_op
from onnxmem.model.value_types import NOTHING_KNOWN, Known, known_of, known_types
from onnxmem.ops.registry import lookup
from onnxmem.ops.spec import Attribute, OpSpec

_MAX_VALUE_ELEMENTS = 64
"""Constants up to this many elements are at hand as values."""

# An enum's member takes twice as long to look up as a name of the module.
_ACTIVATION: Final = Role.ACTIVATION

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


def read_graph(
    model: onnx.ModelProto,
    assumed: AbstractSet[str] = frozenset(),
    types: Mapping[str, Known] | None = None,
    columns: Columns | None = None,
) -> Graph:
    """Read a model whose ``value_info`` holds what is known of its shapes.

    ``assumed`` names the tensors whose shapes nothing derives; ``types`` are the ``known_types`` of
    the model's graph and ``columns`` its nodes, where they are at hand.

    :raises GraphError: a weight has a negative dim.
    """
    reader = _Reader(opsets={entry.domain: entry.version for entry in model.opset_import})
    types = known_types(model.graph) if types is None else types
    graph = reader.graph(model.graph, "", {}, (columns or columns_of(model.graph), types))
    # The subgraphs hold the same mapping, so it is mended in place before anyone else sees it.
    reader.tensors.update(_weight_roles(graph))
    for name in assumed & reader.tensors.keys():
        reader.tensors[name] = replace(reader.tensors[name], is_assumed=True)
    return replace(graph, metadata=_metadata(model.metadata_props))


def _metadata(entries: Iterable[onnx.StringStringEntryProto]) -> Mapping[str, str]:
    return {entry.key: entry.value for entry in entries}


@dataclass(slots=True)
class _Reader:
    """Collects the tensors of all scopes while the graphs are read."""

    opsets: Mapping[str, int]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, tuple[int | float, ...]] = field(default_factory=dict)
    operators: dict[tuple[str, str], OpSpec] = field(default_factory=dict)
    attributes: dict[tuple[bytes, ...], Mapping[str, Attribute]] = field(default_factory=dict)
    """By what they are in the file: nodes of equal attributes have the same record of them."""

    def graph(
        self,
        proto: onnx.GraphProto,
        prefix: str,
        outer: Mapping[str, str],
        read: tuple[Columns, Mapping[str, Known]],
    ) -> Graph:
        """Read one graph, of whose nodes the columns and types are at hand.

        ``outer`` maps a name of an enclosing scope to its scoped name.
        """
        scope = {**outer}
        self._add_initializers(proto, prefix, scope)
        inputs = self._add_inputs(proto, prefix, scope)
        if prefix or read[0].bodies:
            scope.update((name, prefix + name) for names in read[0].outputs for name in names)
        nodes = self._nodes(*read, prefix, scope)
        outputs = _scoped([value.name for value in proto.output], prefix, scope)
        return Graph(proto.name, nodes, inputs, outputs, self.tensors, self.values)

    def _add_initializers(self, proto: onnx.GraphProto, prefix: str, scope: dict[str, str]) -> None:
        for tensor in proto.initializer:
            scope[tensor.name] = prefix + tensor.name
            self._add_constant(prefix + tensor.name, tensor)
        for sparse in proto.sparse_initializer:
            name = scope[sparse.values.name] = prefix + sparse.values.name
            self.tensors[name] = _stored_sparse(name, sparse)

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
        columns: Columns,
        types: Mapping[str, Known],
        prefix: str,
        scope: Mapping[str, str],
    ) -> tuple[Node, ...]:
        """Read the nodes and what they make."""
        nodes = []
        taken: dict[str, int] = {}
        offered = sorted(set(scope.values())) if columns.bodies else []
        rows = zip(columns.nodes, columns.op_types, columns.inputs, columns.outputs, strict=True)
        for index, (node, op_type, reads, made) in enumerate(rows):
            name = _unique_name(prefix + (node.name or f"{op_type}_{index}"), taken)
            outputs = _scoped(made, prefix, scope)
            if op_type == "Constant":
                self._add_made_constants(node, outputs, types)
            else:
                self._add_outputs(made, outputs, types)
            # A node's own graphs are read before it is.
            bodies = columns.bodies.get(index, ())
            inner = self._inner(bodies, name, scope, offered) if bodies else ()
            domain = node.domain
            nodes.append(
                Node(
                    name,
                    op_type,
                    domain,
                    _scoped(reads, prefix, scope),
                    outputs,
                    self._operator(op_type, domain),
                    self._attributes(node.attribute),
                    inner,
                    _outer_reads(inner, offered) if inner else (),
                    _metadata(node.metadata_props),
                )
            )
        return tuple(nodes)

    def _inner(
        self,
        bodies: Sequence[tuple[str, onnx.GraphProto]],
        name: str,
        scope: Mapping[str, str],
        offered: Sequence[str],
    ) -> tuple[tuple[str, Graph], ...]:
        prefixes = (
            (attribute, graph, _free_prefix(f"{name}/{attribute}", offered))
            for attribute, graph in bodies
        )
        return tuple(
            (attribute, self.graph(graph, prefix, scope, (columns_of(graph), known_types(graph))))
            for attribute, graph, prefix in prefixes
        )

    def _operator(self, op_type: str, domain: str) -> OpSpec:
        """The record of an operator, looked up once."""
        key = domain, op_type
        if key not in self.operators:
            self.operators[key] = lookup(op_type, domain, self.opsets.get(domain))
        return self.operators[key]

    def _attributes(self, given: Collection[onnx.AttributeProto]) -> Mapping[str, Attribute]:
        """The attributes that are plain values; tensors and graphs are left out."""
        if not given:
            return self.attributes.setdefault((), {})
        plain = [attribute for attribute in given if attribute.type in _ATTRIBUTE_VALUES]
        key = tuple([attribute.SerializeToString() for attribute in plain])
        if key not in self.attributes:
            self.attributes[key] = {
                attribute.name: _ATTRIBUTE_VALUES[attribute.type](attribute) for attribute in plain
            }
        return self.attributes[key]

    def _add_outputs(
        self, texts: Iterable[str], outputs: Iterable[str], types: Mapping[str, Known]
    ) -> None:
        for text, name in zip(texts, outputs, strict=True):
            if name:
                known = types.get(text, NOTHING_KNOWN)
                self.tensors[name] = Tensor(name, known.dtype, known.shape, _ACTIVATION)

    def _add_made_constants(
        self, node: onnx.NodeProto, outputs: Iterable[str], types: Mapping[str, Known]
    ) -> None:
        constant = constant_tensor(node)
        for text, name in zip(node.output, outputs, strict=True):
            if constant is not None and name:
                self._add_constant(name, constant)
            elif (sparse := _sparse_constant(node)) and name:
                self.tensors[name] = _stored_sparse(name, sparse)
            elif name:
                known = types.get(text, NOTHING_KNOWN)
                self.tensors[name] = Tensor(name, known.dtype, known.shape, _ACTIVATION)

    def _add_constant(self, name: str, proto: onnx.TensorProto) -> None:
        self.tensors[name] = tensor = _stored_tensor(name, proto)
        if not tensor.is_external and (tensor.num_elements or 0) <= _MAX_VALUE_ELEMENTS:
            value = constant_value(proto)
            if value is not None and value.dtype.kind in "biuf":
                self.values[name] = tuple(value.ravel().tolist())


def _scoped(names: Sequence[str], prefix: str, scope: Mapping[str, str]) -> tuple[str, ...]:
    """Names of a graph with their scopes; the main graph's are as they are."""
    if not prefix:
        return tuple(names)
    return tuple([scope[name] if name else "" for name in names])


_GIVEN = frozenset({Role.INPUT, Role.ACTIVATION})
_FILLS = "ConstantOfShape"
"""What it makes is a weight at times, as long as the dims say."""


def retyped(graph: Graph, types: Mapping[str, Known], assumed: AbstractSet[str]) -> Graph:
    """A graph that was read, with other types of inputs and of what nodes make.

    ``assumed`` names the tensors whose shapes nothing derives.
    """
    tensors = {**graph.tensors}
    filled = {name for node in graph.nodes if node.op_type == _FILLS for name in node.writes}
    for name, tensor in graph.tensors.items():
        if tensor.role not in _GIVEN and name not in filled:
            continue
        kind, is_assumed = types.get(name, NOTHING_KNOWN), name in assumed
        if (
            tensor.shape != kind.shape
            or tensor.dtype is not kind.dtype
            or tensor.is_assumed is not is_assumed
        ):
            tensors[name] = Tensor(name, kind.dtype, kind.shape, tensor.role, is_assumed=is_assumed)
    return replace(graph, tensors=tensors)


def _stored_tensor(name: str, proto: onnx.TensorProto) -> Tensor:
    """An initializer, or the tensor of a Constant.

    :raises GraphError: it has a negative dim, or more of them than are read.
    """
    is_external = proto.data_location == onnx.TensorProto.EXTERNAL
    return Tensor(
        name=name,
        dtype=dtype_of(proto.data_type),
        shape=_stored_shape(name, proto.dims),
        role=Role.WEIGHT,
        storage=_external_place(proto) if is_external else None,
        is_external=is_external,
    )


def _stored_sparse(name: str, proto: onnx.SparseTensorProto) -> Tensor:
    """A sparse one, of which the elements that are stored count.

    :raises GraphError: as ``_stored_tensor`` does.
    """
    return Tensor(
        name=name,
        dtype=dtype_of(proto.values.data_type),
        shape=_stored_shape(name, proto.dims),
        role=Role.WEIGHT,
        num_stored=prod(_stored_shape(name, proto.values.dims)),
    )


def _sparse_constant(node: onnx.NodeProto) -> onnx.SparseTensorProto | None:
    """The sparse tensor of a Constant that has one."""
    if onnx_op(node) != "Constant":
        return None
    return next((a.sparse_tensor for a in node.attribute if a.name == "sparse_value"), None)


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


def _external_place(proto: onnx.TensorProto) -> str | None:
    """Identify the bytes of an external tensor; unknown where the file names no exact range."""
    entry_of = {entry.key: entry.value for entry in proto.external_data}
    if not {"location", "offset", "length"} <= entry_of.keys():
        return None
    return f"external {entry_of['location']} {entry_of['offset']}+{entry_of['length']}"


def _weight_roles(graph: Graph) -> dict[str, Tensor]:
    """Tell the weights from what only looks like one, by who reads it: the tensors that change."""
    nodes = list(graph.all_nodes())
    tensors = graph.tensors
    changed: dict[str, Tensor] = {}
    for node in [node for node in nodes if node.op_type == "ConstantOfShape" and not node.domain]:
        sizes = next(iter(node.inputs), "")
        shape = changed.get(sizes) or tensors.get(sizes)
        if shape is not None and shape.role is Role.WEIGHT:
            for name in node.writes:
                changed[name] = replace(tensors[name], role=Role.WEIGHT)
    read = _really_read(graph, nodes)
    weights = {name: tensor for name, tensor in tensors.items() if tensor.role is Role.WEIGHT}
    for name, tensor in (weights | changed).items():
        if name not in read:
            changed[name] = replace(tensor, role=Role.UNREAD)
    return changed


def _really_read(graph: Graph, nodes: Sequence[Node]) -> set[str]:
    """Names that a node reads for their elements, or that a graph hands out."""
    read = set(graph.outputs)
    for node in nodes:
        if node.op_type != "ConstantOfShape" or node.domain:
            read.update(node.inputs)
        for _, inner in node.subgraphs:
            read.update(inner.outputs)
    return read


def _unique_name(name: str, taken: dict[str, int]) -> str:
    """A node's name, numbered where another node has it already.

    ``taken`` maps each name that is taken to the last number that was tried with it.
    """
    if name not in taken:
        taken[name] = 1
        return name
    candidate, number = name, taken[name]
    while candidate in taken:
        number += 1
        candidate = f"{name}#{number}"
    taken[name] = number
    taken.setdefault(candidate, 1)
    return candidate


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
    index = bisect_left(names, text)
    return names[index] if index < len(names) else ""
