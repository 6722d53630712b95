"""Ways through a ModelProto: its graphs, nodes and names, however deep they nest."""

from collections.abc import Iterable, Iterator, Sequence

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
            for place, graph in enumerate(attribute.graphs):
                yield f"{attribute.name}{place}", graph


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
    own = given_names(graph)
    read: set[str] = {value.name for value in graph.output}
    for node in graph.node:
        own.update(node.output)
        read.update(node.input)
        for _, inner in subgraphs(node):
            read |= outer_reads(inner)
    return read - own - {""}


def given_names(graph: onnx.GraphProto) -> set[str]:
    """Names that stand before the first node: graph inputs and initializers."""
    return {value.name for value in graph.input} | initializer_names(graph)


def initializer_names(graph: onnx.GraphProto) -> set[str]:
    """Names of the dense and the sparse initializers."""
    dense = {tensor.name for tensor in graph.initializer}
    return dense | {sparse.values.name for sparse in graph.sparse_initializer}
