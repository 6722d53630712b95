"""Copy a model file with figures as metadata, or with its nodes in another order.

Everything else is copied byte for byte from file to file, so payloads are never in memory. Metadata
are ``metadata_props`` of the model, of nodes and of declared tensors (onnx.proto: ModelProto 14,
NodeProto 9 and ValueInfoProto 4; Netron shows the first two, and those of inputs and outputs).
Entries of an earlier annotation are replaced.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import onnx

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.compute import Layer, layers
from onnxmem.errors import GraphError, ModelFileError
from onnxmem.export.figures import assumptions, live_bytes, to_metrics
from onnxmem.model.graph import Graph, Role
from onnxmem.model.wire import ByteSource, Field, Piece, bytes_field, fields, num_bytes
from onnxmem.version import __version__

PREFIX: Final = "onnxmem."
"""The prefix of all keys."""
MOST_BYTES: Final = 2**31 - 1
"""Protobuf's limit of the size of a file."""
_OF_THE_FILE: Final = ("file_bytes", "rules_of_thumb.")
"""Metrics that are omitted because the metadata change them: the file becomes longer."""
_GRAPH, _MODEL_METADATA = 7, 14
_NODE, _VALUES = 1, frozenset({11, 12, 13})
_NODE_OUTPUT, _NODE_OP_TYPE, _NODE_METADATA = 2, 4, 9
_VALUE_NAME, _VALUE_METADATA = 1, 4
_KEY, _VALUE = 1, 2
"""Field numbers of onnx.proto3."""
_Figures = Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True)
class AnnotatedModel:
    """A file to be written."""

    pieces: tuple[Piece, ...]
    """New bytes, and ranges of the old file."""
    num_nodes: int
    """Nodes that have figures; those of subgraphs have none."""


def annotated(data: ByteSource, analysis: Analysis) -> AnnotatedModel:
    """The file of a model with the figures of its analysis as metadata.

    ``data`` is the file that was analyzed.

    :raises ModelFileError: the new file would be over 2 GiB, or the old one has changed.
    """
    writing = _Writing(data, dict(_node_figures(analysis)), dict(_tensor_figures(analysis)))
    try:
        pieces = tuple(writing.model(_model_figures(analysis)))
    except (IndexError, ModelFileError):
        message = "the file changed while it was read; wait and try again"
        raise ModelFileError(message) from None
    if num_bytes(pieces) > MOST_BYTES:
        message = "the annotated file would be over 2 GiB; save the model with external data"
        raise ModelFileError(message)
    return AnnotatedModel(pieces, writing.num_nodes)


def reordered(data: ByteSource, order: Sequence[int]) -> Iterator[Piece]:
    """A model file with its nodes in another order; ``order`` has indices of the present one.

    :raises GraphError: the graph is in several parts of the file.
    """
    # Nodes are exchanged as whole fields, so the graph keeps its size and its length field is right
    # without a change; what lies between nodes stays at its index.
    parts = [field for field in fields(data, 0, len(data)) if field.number == _GRAPH]
    if len(parts) != 1:
        message = "the graph is in several parts of the file; save it again with onnx.save"
        raise GraphError(message)
    graph = parts[0].content
    nodes = [
        field.whole for field in fields(data, graph.start, graph.stop) if field.number == _NODE
    ]
    start = 0
    for old, source in zip(nodes, order, strict=True):
        yield slice(start, old.start)
        yield nodes[source]
        start = old.stop
    yield slice(start, len(data))


def file_indices(proto: onnx.ModelProto, graph: Graph) -> list[int]:
    """The index in the file of each node of a graph.

    :raises GraphError: the graph has other nodes than the file, because of local functions.
    """
    outputs = {name: index for index, node in enumerate(proto.graph.node) for name in node.output}
    outputs.pop("", None)
    indices = [outputs.get(next(iter(node.writes), ""), -1) for node in graph.nodes]
    if sorted(indices) != list(range(len(proto.graph.node))):
        message = (
            "the nodes are inside local functions, or have no unique outputs; inline the functions "
            "first (onnx.inliner)"
        )
        raise GraphError(message)
    return indices


def _model_figures(analysis: Analysis) -> _Figures:
    origin = {"version": __version__, "assumes": ", ".join(assumptions(analysis))}
    figures = to_metrics(analysis).items()
    lasting = {name: figure for name, figure in figures if not name.startswith(_OF_THE_FILE)}
    return {**origin, "status": analysis.status, **lasting}


def _node_figures(analysis: Analysis) -> Iterator[tuple[str, tuple[str, _Figures]]]:
    """The operator and the figures of nodes, by their first output."""
    graph = analysis.graph
    live = live_bytes(analysis)
    steps = {node.name: (step, node) for step, node in enumerate(graph.nodes)}
    for layer in layers(graph, analysis.parameters, analysis.compute):
        if layer.node not in steps:
            continue
        step, node = steps[layer.node]
        if any(graph.tensors[name].role is Role.ACTIVATION for name in node.writes):
            found = _known(layer, step, live[step])
            yield node.writes[0], (node.op_type, found)


def _known(layer: Layer, step: int, live: int | None) -> _Figures:
    figures = {
        "step": step,
        "output_bytes": layer.output_bytes,
        "live_bytes": live,
        "weight_bytes": layer.weight_bytes or None,
        "macs": layer.macs,
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def _tensor_figures(analysis: Analysis) -> Iterator[tuple[str, _Figures]]:
    for name, tensor in analysis.graph.tensors.items():
        if tensor.size_bytes is not None:
            yield name, {"bytes": tensor.size_bytes}


@dataclass(slots=True)
class _Writing:
    """Copies the fields of a file; mutable, because it counts nodes."""

    data: ByteSource
    nodes: Mapping[str, tuple[str, _Figures]]
    tensors: Mapping[str, _Figures]
    num_nodes: int = 0

    def model(self, figures: _Figures) -> Iterator[Piece]:
        for field in fields(self.data, 0, len(self.data)):
            if field.number == _GRAPH:
                yield from bytes_field(_GRAPH, list(self._graph(field)))
            elif not self._is_own(field, _MODEL_METADATA):
                yield field.whole
        yield from _entries(_MODEL_METADATA, figures)

    def _graph(self, graph: Field) -> Iterator[Piece]:
        for field in self._inside(graph):
            if field.number == _NODE:
                yield from self._with_metadata(field, self._of_node(field), _NODE_METADATA)
            elif field.number in _VALUES:
                yield from self._with_metadata(field, self._of_value(field), _VALUE_METADATA)
            else:
                yield field.whole

    def _of_node(self, node: Field) -> _Figures:
        """The figures of a node, found by its first output; its operator must be the same."""
        output = op_type = ""
        for field in self._inside(node):
            if field.number == _NODE_OUTPUT:
                output = output or self._text(field)
            elif field.number == _NODE_OP_TYPE:
                op_type = self._text(field)
        known_type, figures = self.nodes.get(output, ("", {}))
        if not figures or known_type != op_type:
            return {}
        self.num_nodes += 1
        return figures

    def _of_value(self, value: Field) -> _Figures:
        names = (self._text(field) for field in self._inside(value) if field.number == _VALUE_NAME)
        return self.tensors.get(next(names, ""), {})

    def _with_metadata(self, message: Field, figures: _Figures, number: int) -> Iterator[Piece]:
        unchanged = [
            field.whole for field in self._inside(message) if not self._is_own(field, number)
        ]
        yield from bytes_field(message.number, [*_joined(unchanged), *_entries(number, figures)])

    def _is_own(self, field: Field, number: int) -> bool:
        """Whether a field is an entry of an earlier annotation."""
        if field.number != number:
            return False
        keys = (self._text(inner) for inner in self._inside(field) if inner.number == _KEY)
        return next(keys, "").startswith(PREFIX)

    def _inside(self, field: Field) -> Iterator[Field]:
        return fields(self.data, field.content.start, field.content.stop)

    def _text(self, field: Field) -> str:
        return bytes(self.data[field.content]).decode("utf-8", "replace")


def _entries(number: int, figures: _Figures) -> Iterator[Piece]:
    for name, figure in figures.items():
        key = bytes_field(_KEY, [f"{PREFIX}{name}".encode()])
        value = bytes_field(_VALUE, [str(figure).encode()])
        yield from bytes_field(number, [*key, *value])


def _joined(ranges: Iterable[slice]) -> list[slice]:
    """Ranges of a file, with adjacent ones joined."""
    found: list[slice] = []
    for each in ranges:
        if found and found[-1].stop == each.start:
            found[-1] = slice(found[-1].start, each.stop)
        else:
            found.append(each)
    return found
