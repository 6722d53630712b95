"""Make a ``Graph`` of a ModelProto with inferred shapes.

Weights (definition 1) are initializers and Constant tensors that a node reads or that are graph
outputs, and the outputs of ConstantOfShape with a constant input. An initializer that only sizes a
ConstantOfShape, or that nothing reads, is not a weight. Each storage counts once: tensors that
refer to the same range of an external file share it. For other dims the nodes and weights are
reused, and only the types of tensors are replaced (``retyped``).
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod
from types import MappingProxyType
from typing import Final

import onnx

from onnxmem.errors import GraphError
from onnxmem.model.bounds import BOUNDS, is_past_all, variable
from onnxmem.model.constants import (
    constant_tensor,
    constant_value,
    is_mask_shape,
    masking_of,
)
from onnxmem.model.graph import Graph, Node, Role, Tensor, dtype_of
from onnxmem.model.traversal import Body, Columns, NestedNames, columns_of, onnx_op, opset_versions
from onnxmem.model.value_types import NOTHING_KNOWN, Known, known_of, known_types
from onnxmem.ops.registry import lookup
from onnxmem.ops.spec import Attribute, OpSpec

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_PARAMETER = re.compile(r": PARAMETER target='([^']+)'")
_FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
_QUOTED = re.compile(r"'([^']+)'")

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
    """Read a model with inferred shapes in ``value_info``.

    ``assumed`` are tensors whose shapes are only declared; ``types`` and ``columns`` are the
    ``known_types`` and the nodes of the model's graph, if they are known already.

    :raises GraphError: a weight has a negative dim.
    """
    reader = _Reader(opsets=opset_versions(model))
    types = known_types(model.graph) if types is None else types
    read = (columns or columns_of(model.graph), types)
    graph = reader.graph(model.graph, "", _Outside(NestedNames()), read)
    # Subgraphs refer to the same mapping, so it is changed in place, before anyone else sees it.
    reader.tensors.update(_weight_roles(graph))
    for name in assumed & reader.tensors.keys():
        reader.tensors[name] = replace(reader.tensors[name], is_assumed=True)
    return replace(graph, metadata=_metadata(model.metadata_props))


def named_parameters(graph: onnx.GraphProto) -> frozenset[str]:
    """The parameters that torch.export lists in a file, and the constants that it made of others.

    The optimizer of onnxscript computes once what depends on no input, as the view of a scale, and
    writes the names that it was computed of.
    """
    signature = _metadata(graph.metadata_props).get(_SIGNATURE, "")
    names = frozenset(_PARAMETER.findall(signature))
    sources = {
        value.name: frozenset(_QUOTED.findall(entry.value))
        for value in (graph.value_info if names else ())
        for entry in value.metadata_props
        if entry.key == _FOLDED_FROM
    }
    # What only a constant was computed of has no tensor in the file.
    gone = frozenset[str]().union(*sources.values()) - {each.name for each in graph.initializer}
    folded = (name for name, origin in sources.items() if not names.isdisjoint(origin))
    return (names - gone).union(folded)


def _metadata(entries: Iterable[onnx.StringStringEntryProto]) -> Mapping[str, str]:
    return {entry.key: entry.value for entry in entries}


@dataclass(frozen=True, slots=True)
class _Outside:
    """What a graph sees of the graphs around it."""

    # A graph may have a subgraph in every block, so none of them copies what it sees.
    scope: "NestedNames[str]"
    """Names in the file to scoped names; the first map is that of the nearest graph."""
    visible: tuple[Sequence[str], ...] = ()
    """The scoped names of each of these graphs, sorted."""

    def free_prefix(self, text: str) -> str:
        """The scope of a subgraph, with a number if the name of a tensor outside starts with it."""
        prefix, number = f"{text}/", 1
        while any(_first_from(prefix, names).startswith(prefix) for names in self.visible):
            number += 1
            prefix = f"{text}#{number}/"
        return prefix


@dataclass(slots=True)
class _Reader:
    """Collects the tensors of all scopes while the graphs are read."""

    opsets: Mapping[str, int]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, tuple[int | float, ...]] = field(default_factory=dict)
    operators: dict[tuple[str, str], OpSpec] = field(default_factory=dict)
    attributes: dict[tuple[bytes, ...], Mapping[str, Attribute]] = field(default_factory=dict)
    """Attributes by their serialized form: nodes with equal attributes share one mapping, by whose
    id other modules recognize them."""

    def graph(
        self,
        proto: onnx.GraphProto,
        prefix: str,
        outer: _Outside,
        read: tuple[Columns, Mapping[str, Known]],
    ) -> Graph:
        """Read one graph from its columns and types."""
        own: dict[str, str] = {}
        self._add_initializers(proto, prefix, own)
        inputs = self._add_inputs(proto, prefix, own)
        # Names of the main graph stay as they are: only subgraphs look them up in the scope.
        if prefix or read[0].bodies:
            own.update((name, prefix + name) for names in read[0].outputs for name in names)
        scope = outer.scope.new_child(own)
        visible = outer.visible
        if read[0].bodies:
            # Sorted, so that ``_first_from`` finds a name, or the first one with a prefix, by
            # bisection.
            visible = (*visible, sorted({*own.values()}))
        nodes = self._nodes(*read, prefix, _Outside(scope, visible))
        outputs = _scoped(tuple([value.name for value in proto.output]), prefix, scope)
        return Graph(proto.name, nodes, inputs, outputs, self.tensors, self.values)

    def _add_initializers(
        self, proto: onnx.GraphProto, prefix: str, own: MutableMapping[str, str]
    ) -> None:
        for tensor in proto.initializer:
            name = own[tensor.name] = prefix + tensor.name
            self._add_constant(name, tensor)
        for sparse in proto.sparse_initializer:
            name = own[sparse.values.name] = prefix + sparse.values.name
            self.tensors[name] = _stored_sparse(name, sparse)

    def _add_inputs(
        self, proto: onnx.GraphProto, prefix: str, own: MutableMapping[str, str]
    ) -> tuple[str, ...]:
        inputs = []
        for value in proto.input:
            name = prefix + value.name
            # An initializer of that name is the default of the input, which makes it a weight:
            # before version 4 of the IR, every initializer had to be an input too.
            if name in self.tensors and own.get(value.name) == name:
                continue
            own[value.name] = name
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
        seen: _Outside,
    ) -> tuple[Node, ...]:
        """Read the nodes and their outputs; ``seen`` includes the graph of the nodes."""
        nodes = []
        taken: dict[str, int] = {}
        scope = seen.scope
        rows = zip(columns.nodes, columns.op_types, columns.inputs, columns.outputs, strict=True)
        for index, (node, op_type, reads, writes) in enumerate(rows):
            name = _unique_name(prefix + (node.name or f"{op_type}_{index}"), taken)
            outputs = _scoped(writes, prefix, scope)
            # The output of a Constant is a weight (definition 1), and no activation of the node.
            if op_type == "Constant":
                self._add_node_constants(node, outputs, types)
            else:
                self._add_outputs(writes, outputs, types)
            bodies = columns.bodies.get(index, ())
            inner, outside = self._inner(bodies, name, seen) if bodies else ((), ())
            domain = node.domain
            nodes.append(
                Node(
                    name,
                    op_type,
                    domain,
                    _scoped(reads, prefix, scope),
                    outputs,
                    self._operator(op_type, domain),
                    self._attributes(node.attribute, fills=op_type == _FILLS),
                    inner,
                    outside,
                    _metadata(props) if (props := node.metadata_props) else _NO_METADATA,
                )
            )
        return tuple(nodes)

    def _inner(
        self,
        bodies: Sequence[Body],
        name: str,
        seen: _Outside,
    ) -> tuple[tuple[tuple[str, Graph], ...], tuple[str, ...]]:
        """The subgraphs of a node, and the tensors of enclosing graphs that they read."""
        inner: list[tuple[str, Graph]] = []
        outside: dict[str, None] = {}
        for attribute, proto, columns in bodies:
            prefix = seen.free_prefix(f"{name}/{attribute}")
            graph = self.graph(proto, prefix, seen, (columns, known_types(proto)))
            inner.append((attribute, graph))
            # No name outside starts with the prefix, and every name inside does.
            reads = chain(*[node.reads for node in graph.nodes], graph.outputs)
            outside.update((read, None) for read in reads if read and not read.startswith(prefix))
        return tuple(inner), tuple(outside)

    def _operator(self, op_type: str, domain: str) -> OpSpec:
        """The record of an operator, looked up once."""
        key = domain, op_type
        if key not in self.operators:
            self.operators[key] = lookup(op_type, domain, self.opsets.get(domain))
        return self.operators[key]

    def _attributes(
        self, protos: Collection[onnx.AttributeProto], *, fills: bool
    ) -> Mapping[str, Attribute]:
        """The attributes that are numbers or strings, without tensors and graphs.

        The element with which a node fills its output, ``value``, is a number too.
        """
        if fills:
            return _filling(protos)
        if not protos:
            return self.attributes.setdefault((), {})
        plain = [attribute for attribute in protos if attribute.type in _ATTRIBUTE_VALUES]
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

    def _add_node_constants(
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
        if is_mask_shape(proto.dims) and (masking := masking_of(proto)) is not None:
            self.tensors[name] = replace(tensor, masking=masking)
        if not tensor.is_external and (tensor.num_elements or 0) <= _MAX_VALUE_ELEMENTS:
            value = constant_value(proto)
            if value is not None and value.dtype.kind in "biuf":
                self.values[name] = tuple(value.ravel().tolist())


def _scoped(names: tuple[str, ...], prefix: str, scope: Mapping[str, str]) -> tuple[str, ...]:
    """Names of a graph with their scopes; names of the main graph have no prefix."""
    if not prefix:
        return names
    return tuple([scope[name] if name else "" for name in names])


_NO_METADATA: Final[Mapping[str, str]] = MappingProxyType({})
"""That of most nodes."""
_TYPED_BY_DIMS = frozenset({Role.INPUT, Role.ACTIVATION, Role.BODY_INPUT})
_FILLS = "ConstantOfShape"
"""The operator whose output may be a weight although its size depends on dims."""


def retyped(graph: Graph, types: Mapping[str, Known], assumed: AbstractSet[str]) -> Graph:
    """The graph with other types of inputs and activations, for other dims.

    ``assumed`` are tensors whose shapes are only declared.
    """
    # Tensors whose type is unchanged are shared with the other graph: most weights and many
    # constants of a large model.
    tensors = {**graph.tensors}
    nodes = graph.all_nodes() if any(node.subgraphs for node in graph.nodes) else graph.nodes
    filled = {name for node in nodes if node.op_type == _FILLS for name in node.writes}
    for name, tensor in graph.tensors.items():
        if tensor.role not in _TYPED_BY_DIMS and name not in filled:
            continue
        kind, is_assumed = types.get(name, NOTHING_KNOWN), name in assumed
        if (
            tensor.shape != kind.shape
            or tensor.dtype is not kind.dtype
            or tensor.is_assumed is not is_assumed
        ):
            tensors[name] = Tensor(name, kind.dtype, kind.shape, tensor.role, is_assumed=is_assumed)
    return graph.with_tensors(tensors)


def _filling(protos: Collection[onnx.AttributeProto]) -> Mapping[str, Attribute]:
    """The element of the output of a ConstantOfShape, 0 if none is given."""
    proto = next((each.t for each in protos if each.name == "value"), None)
    if proto is None:
        return {"value": 0}
    is_external = proto.data_location == onnx.TensorProto.EXTERNAL
    value = None if is_external or prod(proto.dims) != 1 else constant_value(proto)
    is_number = value is not None and value.dtype.kind in "biuf"
    return {"value": value.item()} if value is not None and is_number else {}


def _stored_tensor(name: str, proto: onnx.TensorProto) -> Tensor:
    """An initializer, or the tensor of a Constant.

    :raises GraphError: it has a negative dim, or too many dims.
    """
    is_external = proto.data_location == onnx.TensorProto.EXTERNAL
    return Tensor(
        name=name,
        dtype=dtype_of(proto.data_type),
        shape=_stored_shape(name, proto.dims),
        role=Role.WEIGHT,
        storage=_external_range(proto) if is_external else None,
        is_external=is_external,
    )


def _stored_sparse(name: str, proto: onnx.SparseTensorProto) -> Tensor:
    """A sparse initializer or Constant.

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
    """The sparse tensor of a Constant; ``None`` if it has none."""
    if onnx_op(node) != "Constant":
        return None
    return next((a.sparse_tensor for a in node.attribute if a.name == "sparse_value"), None)


def _stored_shape(name: str, dims: Sequence[int]) -> tuple[int, ...]:
    """The dims of a stored tensor, which must be numbers from 0 on."""
    if is_past_all(dims):
        message = f"weight {name!r} has {len(dims):,} dims, over {BOUNDS.rank} ({variable('rank')})"
        message += " or too large ones; export the model again"
        raise GraphError(message)
    if min(dims, default=0) < 0:
        message = f"weight {name!r} has a negative dim: {list(dims)}; export the model again"
        raise GraphError(message)
    return tuple(dims)


def _external_range(proto: onnx.TensorProto) -> str | None:
    """The identity of an external tensor's bytes; ``None`` if the file names no exact range."""
    entry_of = {entry.key: entry.value for entry in proto.external_data}
    # Without a range nothing shows that two tensors are the same bytes: each is its own storage.
    if not {"location", "offset", "length"} <= entry_of.keys():
        return None
    return f"external {entry_of['location']} {entry_of['offset']}+{entry_of['length']}"


def _weight_roles(graph: Graph) -> dict[str, Tensor]:
    """The tensors whose role follows from their readers: filled weights, unread initializers."""
    # Nodes are in topological order: the size of a ConstantOfShape may be the output of another
    # one, which is in ``changed`` by then.
    nodes = list(graph.all_nodes())
    tensors = graph.tensors
    changed: dict[str, Tensor] = {}
    for node in [node for node in nodes if node.op_type == "ConstantOfShape" and not node.domain]:
        sizes = next(iter(node.inputs), "")
        shape = changed.get(sizes) or tensors.get(sizes)
        if shape is not None and shape.role is Role.WEIGHT:
            for name in node.writes:
                changed[name] = replace(tensors[name], role=Role.WEIGHT)
    read = _read_names(graph, nodes)
    weights = {name: tensor for name, tensor in tensors.items() if tensor.role is Role.WEIGHT}
    for name, tensor in (weights | changed).items():
        if name not in read:
            changed[name] = replace(tensor, role=Role.UNREAD)
    return changed


def _read_names(graph: Graph, nodes: Sequence[Node]) -> set[str]:
    """Tensors whose elements a node reads, or that are outputs of a graph."""
    read = set(graph.outputs)
    for node in nodes:
        if node.op_type != "ConstantOfShape" or node.domain:
            read.update(node.inputs)
        for _, inner in node.subgraphs:
            read.update(inner.outputs)
    return read


def _unique_name(name: str, taken: dict[str, int]) -> str:
    """The name of a node, with a number if another node has it already.

    ``taken`` maps each name in use to the last number that was tried with it.
    """
    # Without the last number, a file whose nodes all have one name would take quadratic time.
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


def _first_from(text: str, names: Sequence[str]) -> str:
    """The first of the sorted names that is not before a text; ``""`` if there is none."""
    index = bisect_left(names, text)
    return names[index] if index < len(names) else ""
