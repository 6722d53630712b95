"""Iterate over a ModelProto: its graphs, nodes and names, at any depth.

Protobuf creates a Python object at each access. So the names of a large graph are read once, into
``Columns``, and as slices, which is much faster than one by one.
"""

from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeVar, overload

import onnx

_Fact = TypeVar("_Fact")
_Other = TypeVar("_Other")

_HOLD_GRAPHS = frozenset({onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS})


class NestedNames(ChainMap[str, _Fact]):
    """What is known by name in a graph; the maps of enclosing graphs come after its own."""

    # A graph is walked again for each iteration of a loop, and mappings of the standard library
    # look a name up by a generator, which takes three times as long.

    @overload
    def get(self, key: str, default: None = None) -> _Fact | None: ...
    @overload
    def get(self, key: str, default: _Fact) -> _Fact: ...
    @overload
    def get(self, key: str, default: _Other) -> _Fact | _Other: ...
    def get(self, key: str, default: object = None) -> object:
        """The fact of the innermost graph that has the name."""
        for names in self.maps:
            if key in names:
                return names[key]
        return default

    def __contains__(self, key: object) -> bool:
        """Whether any of the graphs has the name."""
        for names in self.maps:  # noqa: SIM110 - any() of a generator is what this class replaces
            if key in names:
                return True
        return False


def onnx_op(node: onnx.NodeProto) -> str:
    """The operator if it is in the default domain, else ``""``."""
    return "" if node.domain else node.op_type


def node_label(node: onnx.NodeProto) -> str:
    """A node in messages: its name, or its operator and first output."""
    return repr(node.name) if node.name else f"{node.op_type} -> {next(iter(node.output), '')!r}"


def subgraphs(node: onnx.NodeProto) -> Sequence[tuple[str, onnx.GraphProto]]:
    """The subgraphs of a node with their attribute names (``then_branch``, ``body``)."""
    # Most nodes of a large graph have none, and creating a generator for each is slow.
    found = [attribute for attribute in node.attribute if attribute.type in _HOLD_GRAPHS]
    return tuple(_graphs(found)) if found else ()


def _graphs(attributes: Iterable[onnx.AttributeProto]) -> Iterator[tuple[str, onnx.GraphProto]]:
    for attribute in attributes:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.name, attribute.g
        else:
            for index, graph in enumerate(attribute.graphs):
                yield f"{attribute.name}{index}", graph


def graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all of its subgraphs."""
    stack = [graph]
    while stack:
        current = stack.pop()
        yield current
        # Without a call for each node: large graphs are walked often, and few nodes have subgraphs.
        for node in current.node:
            for attribute in node.attribute:
                if attribute.type in _HOLD_GRAPHS:
                    stack.extend(inner for _, inner in _graphs((attribute,)))


def nodes_in(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, each followed by the nodes of its subgraphs."""
    for node in nodes:
        yield node
        # As in ``graphs_in``: without a call for each node.
        for attribute in node.attribute:
            if attribute.type in _HOLD_GRAPHS:
                for _, inner in _graphs((attribute,)):
                    for graph in graphs_in(inner):
                        yield from graph.node


def model_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of a model, of its local functions too, each followed by those inside it."""
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        yield from nodes_in(nodes)


def opset_versions(model: onnx.ModelProto) -> dict[str, int]:
    """The versions of operators that the main graph imports, by domain."""
    return {entry.domain: entry.version for entry in model.opset_import}


def outer_reads(graph: onnx.GraphProto, columns: "Columns | None" = None) -> set[str]:
    """Names that a subgraph reads but does not define; ``columns`` are its nodes, if known."""
    known = columns or columns_of(graph)
    read = {value.name for value in graph.output}.union(*known.inputs)
    for body in chain.from_iterable(known.bodies.values()):
        read |= outer_reads(body.graph, body.columns)
    # Only at the end: the nodes may not be sorted yet, so a name may be read before it is defined.
    return read.difference({""}, input_and_initializer_names(graph), *known.outputs)


def input_and_initializer_names(graph: onnx.GraphProto) -> set[str]:
    """Names that are defined before the first node: graph inputs and initializers."""
    return {value.name for value in graph.input} | initializer_names(graph)


def initializer_names(graph: onnx.GraphProto) -> set[str]:
    """Names of the dense and the sparse initializers."""
    dense = {tensor.name for tensor in graph.initializer}
    return dense | {sparse.values.name for sparse in graph.sparse_initializer}


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The nodes of a graph by column, in the order of the file; all columns have equal length."""

    nodes: Sequence[onnx.NodeProto]
    op_types: Sequence[str]
    inputs: Sequence[tuple[str, ...]]
    """The inputs of each node, without what its subgraphs read; ``""`` is a missing input."""
    outputs: Sequence[tuple[str, ...]]
    bodies: Mapping[int, Sequence["Body"]]
    """The subgraphs of nodes, by the index of the node."""

    def of_types(self, op_types: Collection[str]) -> list[onnx.NodeProto]:
        """The nodes with one of the operators, in order, subgraphs included."""
        if self.bodies:
            return [node for node in nodes_in(self.nodes) if node.op_type in op_types]
        pairs = zip(self.nodes, self.op_types, strict=True)
        return [node for node, op_type in pairs if op_type in op_types]

    def all_inputs(self) -> set[str]:
        """The inputs of all nodes, subgraphs included."""
        if self.bodies:
            return {name for node in nodes_in(self.nodes) for name in node.input}
        return {*chain.from_iterable(self.inputs)}


class Body(NamedTuple):
    """A subgraph of a node."""

    attribute: str
    """The name of the attribute, as in ``subgraphs``."""
    graph: onnx.GraphProto
    columns: Columns


def columns_of(graph: onnx.GraphProto) -> Columns:
    """Read the nodes of a graph, and those of its subgraphs into columns of their own."""
    nodes = list(graph.node)
    bodies = ((index, subgraphs(node)) for index, node in enumerate(nodes) if node.attribute)
    return Columns(
        nodes=nodes,
        op_types=[node.op_type for node in nodes],
        inputs=[tuple(node.input[:]) for node in nodes],
        outputs=[tuple(node.output[:]) for node in nodes],
        bodies={
            index: [Body(attribute, body, columns_of(body)) for attribute, body in inner]
            for index, inner in bodies
            if inner
        },
    )
