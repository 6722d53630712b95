"""Where the subgraphs of a model are, in its file and in the records read of it."""

import re
from collections.abc import Iterator

import onnx

from onnxmem.model.graph import Graph, Node
from onnxmem.model.traversal import subgraphs


def graphs_by_path(
    graph: onnx.GraphProto, place: str = ""
) -> Iterator[tuple[str, onnx.GraphProto]]:
    """A graph and all inside it, by their places.

    The main graph's place is empty; that of a subgraph is the first output of its node and the name
    of the attribute, ``OUTPUT/ATTRIBUTE``, behind the place of the graph that the node is in.
    """
    yield place, graph
    for node in graph.node:
        for attribute, body in subgraphs(node):
            yield from graphs_by_path(body, _joined(place, f"{node.output[0]}/{attribute}"))


def body_path(place: str, prefix: str, node: Node, attribute: str) -> str:
    """The place of a subgraph; ``place`` and ``prefix`` are of the graph that its node is in."""
    return _joined(place, f"{node.outputs[0].removeprefix(prefix)}/{attribute}")


def body_prefix(node: Node, attribute: str, body: Graph) -> str:
    """What the records put before a subgraph's names, numbered where the plain one was taken."""
    head = f"{node.name}/{attribute}"
    pattern = re.compile(rf"{re.escape(head)}(#\d+)?/")
    names = (name for inner in body.nodes for name in inner.outputs)
    found = (match[0] for match in map(pattern.match, names) if match)
    return next(found, f"{head}/")


def _joined(place: str, here: str) -> str:
    return f"{place}/{here}" if place else here
