"""The order in which onnxruntime runs a graph's nodes, and in which its passes walk them.

Source: onnxruntime/core/graph/graph_viewer.cc, constructor, and ``Graph::ReverseDFSFrom`` in
graph.cc: a depth-first walk from the nodes that nobody reads, the last of them first; at each node
the parent with the highest index is visited first, and a node comes after its parents.
"""

from collections.abc import Callable, Iterator

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node


def execution_order(graph: Graph) -> list[Node]:
    """All nodes of one graph in the order of execution."""
    stack = [(node, False) for node in graph.nodes.values() if not _is_read(graph, node)]
    visited: set[int] = set()
    order: list[Node] = []
    while stack:
        node, is_done = stack.pop()
        if is_done:
            order.append(node)
            continue
        if node.index in visited:
            continue
        visited.add(node.index)
        stack.append((node, True))
        stack.extend((maker, False) for maker in graph.parents(node) if maker.index not in visited)
    return order


def _is_read(graph: Graph, node: Node) -> bool:
    return any(name and graph.readers(name) for name in node.outputs)


def walk(graph: Graph, apply: Callable[[Graph], bool], changed: list[bool]) -> Iterator[Node]:
    """The nodes in order, those aside that a pass removed meanwhile; subgraphs are passed first.

    ``apply`` is the pass itself, and what it says of a subgraph goes into ``changed``. Source:
    ``GraphTransformer::Recurse``.
    """
    for node in execution_order(graph):
        if graph.nodes.get(node.index) is not node:
            continue
        for body in node.bodies.values():
            changed.append(apply(body))
        if graph.nodes.get(node.index) is node:
            yield node
