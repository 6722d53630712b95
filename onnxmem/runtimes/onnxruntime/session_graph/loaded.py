"""A session's graph as typed records, whoever optimised it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import onnx

from onnxmem.findings import Finding
from onnxmem.model import Graph, ModelFile, Request, build, prepare
from onnxmem.model.binding import given_inputs, input_dims
from onnxmem.model.traversal import graphs_in, onnx_op
from onnxmem.runtimes.onnxruntime.allocation.order import in_running_order
from onnxmem.runtimes.onnxruntime.allocation.planning import LoadShape, LoadShapes

PlacedShapes = Mapping[str, Mapping[str, LoadShape | None]]
"""Shapes at load by the place of their graph, then by name.

The main graph's place is empty; that of a subgraph is the first output of its node and the name of
the attribute, ``OUTPUT/ATTRIBUTE``, behind the place of the graph that the node is in.
"""


@dataclass(frozen=True, slots=True)
class OptimisedModel:
    """A model as its optimiser left it."""

    proto: onnx.ModelProto
    """Without weights; large ones refer to a file that is not there."""
    shapes: PlacedShapes
    """As known at load."""
    is_in_running_order: bool
    level: str
    """Of graph optimisation."""
    optimiser: str
    """Who optimised it: ``onnxruntime 1.31.1``, or ``onnxmem`` where that was emulated."""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionGraph:
    """What a session runs, at one binding of the dims."""

    graph: Graph
    """Nodes in running order, sizes as bound."""
    shapes: LoadShapes
    """As the planner sees them."""
    optimised: OptimisedModel


def session_graph(optimised: OptimisedModel, inputs: Mapping[str, tuple[int, ...]]) -> SessionGraph:
    """Read an optimised model; ``inputs`` are the shapes that it is fed.

    :raises OnnxmemError: what ``prepare`` and ``build`` raise.
    """
    drop_doubled_constants(optimised.proto)
    file = ModelFile("", optimised.proto, 0)
    graph = build(prepare(file), _request(optimised.proto, inputs)).graph
    if not optimised.is_in_running_order:
        graph = sorted_graph(graph)
    return SessionGraph(graph, dict(_scoped(graph, optimised.shapes, "", "")), optimised)


def _request(model: onnx.ModelProto, inputs: Mapping[str, tuple[int, ...]]) -> Request:
    """Bind the inputs' shapes; those with a length of 0, which no one may ask for, by symbols."""
    declared = {value.name: input_dims(value) or () for value in given_inputs(model.graph)}
    dims = {
        dim: number
        for name, shape in inputs.items()
        if 0 in shape
        for dim, number in zip(declared.get(name, ()), shape, strict=False)
        if isinstance(dim, str)
    }
    shapes = {name: shape for name, shape in inputs.items() if 0 not in shape}
    return Request(dims=dims, shapes=shapes)


def sorted_graph(graph: Graph) -> Graph:
    """A graph and its subgraphs, the nodes in the order in which onnxruntime runs them."""
    nodes = tuple(
        replace(node, subgraphs=tuple((name, sorted_graph(body)) for name, body in node.subgraphs))
        if node.subgraphs
        else node
        for node in in_running_order(graph)
    )
    return replace(graph, nodes=nodes)


def drop_doubled_constants(model: onnx.ModelProto) -> None:
    """Remove the Constant nodes that onnxruntime saves beside the initializers made of them."""
    for graph in graphs_in(model.graph):
        stored = {tensor.name for tensor in graph.initializer}
        doubled = [
            node for node in graph.node if onnx_op(node) == "Constant" and node.output[0] in stored
        ]
        for node in doubled:
            graph.node.remove(node)


def _scoped(
    graph: Graph, shapes: PlacedShapes, place: str, prefix: str
) -> Iterator[tuple[str, LoadShape | None]]:
    """Shapes by the names that the records give to tensors."""
    for name, shape in shapes.get(place, {}).items():
        yield prefix + name, shape
    for node in graph.nodes:
        for attribute, body in node.subgraphs:
            here = f"{node.outputs[0].removeprefix(prefix)}/{attribute}"
            inner = _prefix(f"{node.name}/{attribute}", body)
            yield from _scoped(body, shapes, f"{place}/{here}" if place else here, inner)


def _prefix(head: str, body: Graph) -> str:
    """The scope of a body's tensors, which is numbered where the plain one was taken."""
    pattern = re.compile(rf"{re.escape(head)}(#\d+)?/")
    names = (name for node in body.nodes for name in node.outputs)
    found = (match[0] for match in map(pattern.match, names) if match)
    return next(found, f"{head}/")
