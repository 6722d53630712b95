"""From an inferred ModelProto to records: scoped names, roles, constants, operators."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

import onnx

from onnxmem.model.columns import Columns, columns_of
from onnxmem.model.constants import constant_tensor, constant_value
from onnxmem.model.graph import Graph, Node, Role, Tensor
from onnxmem.model.roles import weight_roles
from onnxmem.model.scoped_names import free_prefix, outer_reads, unique_name
from onnxmem.model.stored import sparse_constant, stored_sparse, stored_tensor
from onnxmem.model.value_types import NOTHING_KNOWN, Known, known_of, known_types
from onnxmem.ops import lookup
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
    reader.tensors.update(weight_roles(graph))
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
            self.tensors[name] = stored_sparse(name, sparse)

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
        for place, (node, op_type, reads, made) in enumerate(rows):
            name = unique_name(prefix + (node.name or f"{op_type}_{place}"), taken)
            outputs = _scoped(made, prefix, scope)
            if op_type == "Constant":
                self._add_made_constants(node, outputs, types)
            else:
                self._add_outputs(made, outputs, types)
            # A node's own graphs are read before it is.
            bodies = columns.bodies.get(place, ())
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
                    outer_reads(inner, offered) if inner else (),
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
            (attribute, graph, free_prefix(f"{name}/{attribute}", offered))
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
            elif (sparse := sparse_constant(node)) and name:
                self.tensors[name] = stored_sparse(name, sparse)
            elif name:
                known = types.get(text, NOTHING_KNOWN)
                self.tensors[name] = Tensor(name, known.dtype, known.shape, _ACTIVATION)

    def _add_constant(self, name: str, proto: onnx.TensorProto) -> None:
        self.tensors[name] = tensor = stored_tensor(name, proto)
        if not tensor.is_external and (tensor.num_elements or 0) <= _MAX_VALUE_ELEMENTS:
            value = constant_value(proto)
            if value is not None and value.dtype.kind in "biuf":
                self.values[name] = tuple(value.ravel().tolist())


def _scoped(names: Sequence[str], prefix: str, scope: Mapping[str, str]) -> tuple[str, ...]:
    """Names of a graph with their scopes; the main graph's are as they are."""
    if not prefix:
        return tuple(names)
    return tuple([scope[name] if name else "" for name in names])
