"""Paths of subgraphs in a model, which identify them in the file and in a ``Graph``."""

from collections.abc import Iterator

import onnx

from onnxmem.model.graph import Node
from onnxmem.model.traversal import subgraphs


def graphs_by_path(graph: onnx.GraphProto, path: str = "") -> Iterator[tuple[str, onnx.GraphProto]]:
    """A graph and all its subgraphs, by path.

    The path of the main graph is empty. A subgraph adds ``OUTPUT/ATTRIBUTE`` to the path of its
    enclosing graph: the first output of its node and the name of the attribute.
    """
    yield path, graph
    for node in graph.node:
        for attribute, body in subgraphs(node):
            yield from graphs_by_path(body, _joined(path, f"{node.output[0]}/{attribute}"))


def body_path(path: str, prefix: str, node: Node, attribute: str) -> str:
    """The path of a subgraph; ``path`` and ``prefix`` are those of the enclosing graph."""
    return _joined(path, f"{node.outputs[0].removeprefix(prefix)}/{attribute}")


def _joined(path: str, here: str) -> str:
    return f"{path}/{here}" if path else here
