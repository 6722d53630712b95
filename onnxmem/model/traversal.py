"""Ways through a ModelProto: its graphs, nodes and names, however deep they nest.

protobuf makes an object of whatever is read, each time that it is. The names of a large graph are
therefore read once, into ``Columns``, and a slice of names at once, far quicker than one name after
another.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import onnx

_HOLD_GRAPHS = frozenset({onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS})


def onnx_op(node: onnx.NodeProto) -> str:
    """The operator, if it is ONNX's own; ``""`` if it only has the name of one."""
    return "" if node.domain else node.op_type


def node_label(node: onnx.NodeProto) -> str:
    """Name a node for a message: its name, or its operator and first output."""
    return repr(node.name) if node.name else f"{node.op_type} -> {next(iter(node.output), '')!r}"


def subgraphs(node: onnx.NodeProto) -> Sequence[tuple[str, onnx.GraphProto]]:
    """Each graph attribute of a node, with its name (``then_branch``, ``body``)."""
    # Most nodes of a large graph have none: no generator is made for them.
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
    """A graph and every graph inside it."""
    stack = [graph]
    while stack:
        current = stack.pop()
        yield current
        # A comprehension over nodes that have attributes at all: large graphs are walked so often.
        for node in [node for node in current.node if node.attribute]:
            stack.extend(inner for _, inner in subgraphs(node))


def nodes_in(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Each node and every node of the graphs inside it."""
    for node in nodes:
        yield node
        for _, inner in subgraphs(node) if node.attribute else ():
            for graph in graphs_in(inner):
                yield from graph.node


def outer_reads(graph: onnx.GraphProto) -> set[str]:
    """Names that a subgraph reads from outside: neither made in it nor given to it."""
    own = input_and_initializer_names(graph)
    read: set[str] = {value.name for value in graph.output}
    for node in graph.node:
        own.update(node.output)
        read.update(node.input)
        for _, inner in subgraphs(node):
            read |= outer_reads(inner)
    return read - own - {""}


def input_and_initializer_names(graph: onnx.GraphProto) -> set[str]:
    """Names that stand before the first node: graph inputs and initializers."""
    return {value.name for value in graph.input} | initializer_names(graph)


def initializer_names(graph: onnx.GraphProto) -> set[str]:
    """Names of the dense and the sparse initializers."""
    dense = {tensor.name for tensor in graph.initializer}
    return dense | {sparse.values.name for sparse in graph.sparse_initializer}


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Nodes in the order of the file; every column is as long."""

    nodes: Sequence[onnx.NodeProto]
    op_types: Sequence[str]
    inputs: Sequence[Sequence[str]]
    """Of each node what it reads itself; ``""`` for what is left out."""
    outputs: Sequence[Sequence[str]]
    bodies: Mapping[int, Sequence[tuple[str, onnx.GraphProto]]]
    """By a node's index, the graphs inside it and the attributes that hold them."""

    def of_types(self, op_types: Collection[str]) -> list[onnx.NodeProto]:
        """The nodes of some operators, those of subgraphs included, in order."""
        if self.bodies:
            return [node for node in nodes_in(self.nodes) if node.op_type in op_types]
        pairs = zip(self.nodes, self.op_types, strict=True)
        return [node for node, op_type in pairs if op_type in op_types]

    def all_inputs(self) -> set[str]:
        """What nodes read, those of subgraphs included."""
        if self.bodies:
            return {name for node in nodes_in(self.nodes) for name in node.input}
        return {*chain.from_iterable(self.inputs)}


def columns_of(graph: onnx.GraphProto) -> Columns:
    """Read the nodes of a graph, those of its subgraphs left out."""
    nodes = list(graph.node)
    bodies = ((index, subgraphs(node)) for index, node in enumerate(nodes) if node.attribute)
    return Columns(
        nodes=nodes,
        op_types=[node.op_type for node in nodes],
        inputs=[node.input[:] for node in nodes],
        outputs=[node.output[:] for node in nodes],
        bodies={index: inner for index, inner in bodies if inner},
    )
