"""A model file with its nodes in another order, every other byte where it was."""

from collections.abc import Iterator, Sequence
from typing import Final

import onnx

from onnxmem.errors import GraphError
from onnxmem.export.wire_fields import Piece, fields
from onnxmem.model import Graph
from onnxmem.model.wire import ByteSource

_GRAPH: Final = 7
"""Field of ModelProto (onnx.proto3)."""
_NODE: Final = 1
"""Field of GraphProto."""


def file_places(proto: onnx.ModelProto, graph: Graph) -> list[int]:
    """The place in the file of each node of a graph that was read from it.

    :raises GraphError: the graph's nodes are not the file's: local functions were written out.
    """
    outputs = {name: place for place, node in enumerate(proto.graph.node) for name in node.output}
    outputs.pop("", None)
    places = [outputs.get(next(iter(node.writes), ""), -1) for node in graph.nodes]
    if sorted(places) != list(range(len(proto.graph.node))):
        message = (
            "its nodes cannot be told apart by what they write, or local functions hold them; "
            "inline the functions first (onnx.inliner) and reorder that"
        )
        raise GraphError(message)
    return places


def reordered(data: ByteSource, order: Sequence[int]) -> Iterator[Piece]:
    """The pieces of a model file with its graph's nodes in another order of their places.

    The graph takes as many bytes as before, so that nothing else changes.

    :raises GraphError: the file holds its graph in several parts.
    """
    parts = [field for field in fields(data, 0, len(data)) if field.number == _GRAPH]
    if len(parts) != 1:
        message = "the file holds its graph in several parts; save it again with onnx.save"
        raise GraphError(message)
    graph = parts[0].content
    nodes = [
        field.whole for field in fields(data, graph.start, graph.stop) if field.number == _NODE
    ]
    start = 0
    for place, source in zip(nodes, order, strict=True):
        yield slice(start, place.start)
        yield nodes[source]
        start = place.stop
    yield slice(start, len(data))
