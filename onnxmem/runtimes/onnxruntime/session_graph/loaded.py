"""Reads an optimized model as a session's graph.

It has two sets of shapes: those at the binding of the dims, which kernels allocate by, and those
known when the session is created, which the planner decides reuse by (``LoadShapes``).
"""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeVar

import onnx

from onnxmem.errors import Finding, listed
from onnxmem.model.binding import Request, bind, input_dims, required_inputs
from onnxmem.model.building import Prepared, build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph, Node, body_prefix
from onnxmem.model.input_values import input_arrays
from onnxmem.model.observed import NO_RUN, GraphRun
from onnxmem.model.reading import read_graph
from onnxmem.model.shapes.inference import with_shapes
from onnxmem.model.traversal import graphs_in, onnx_op
from onnxmem.runtimes.onnxruntime.allocation.control_flow_trace import EMPTY_TRACE, ControlFlowTrace
from onnxmem.runtimes.onnxruntime.allocation.planning import LoadShape, LoadShapes, in_running_order
from onnxmem.runtimes.onnxruntime.cpu import AVX512, Cpu
from onnxmem.runtimes.onnxruntime.kernels.prepacking import SessionFacts
from onnxmem.runtimes.onnxruntime.session_graph.control_flow import (
    deciding_inputs,
    simulate_control_flow,
)
from onnxmem.runtimes.onnxruntime.session_graph.graph_paths import body_path
from onnxmem.settings import Values

ShapesByPath = Mapping[str, Mapping[str, LoadShape | None]]
"""Shapes at load, by the path of their graph (``graph_paths``), then by name."""
ContentsByPath = Mapping[str, Mapping[str, str]]
"""By path and name: a value that constants of equal bytes share; all others are distinct."""
IndicesByPath = Mapping[str, Mapping[str, int]]
"""onnxruntime's node indices, by the path of their graph and their first output."""
HostByPath = Mapping[str, Mapping[str, bool]]
"""The values in the host's memory, by the path of their graph: empty on the CPU."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class OptimizedModel:
    """A model after graph optimization."""

    proto: onnx.ModelProto
    """Without weights; large ones refer to a missing file."""
    shapes: ShapesByPath
    """As known at load."""
    is_in_running_order: bool
    """False: every graph is in the order of the file."""
    level: str
    """Of graph optimization."""
    graph_optimizer: str
    """What optimized it: ``onnxruntime 1.31.1``, or ``onnxmem`` if that was emulated."""
    cpu: Cpu = AVX512
    """That it was optimized for."""
    findings: tuple[Finding, ...] = ()
    in_file_order: frozenset[str] = frozenset()
    """Paths of the graphs that are in the order of the file although others are not."""
    contents: ContentsByPath = field(default_factory=dict)
    indices: IndicesByPath = field(default_factory=dict)
    host: HostByPath = field(default_factory=dict)
    external: frozenset[str] = frozenset()
    """External weights that the saved model has inline because they are small. A session maps them
    from their own file all the same, and does not copy them to its arena."""
    last_read: "dict[tuple[tuple[str, tuple[int, ...]], ...], SessionGraph]" = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The last graph that was read, by the shapes of inputs: a report asks for one several times,
    and to simulate its loops may take most of the time."""


@dataclass(frozen=True, slots=True)
class SessionGraph:
    """The graph of a session at one binding of the dims."""

    graph: Graph
    """Nodes in the order of execution, shapes as bound."""
    shapes: LoadShapes
    """As known to the planner."""
    optimized: OptimizedModel
    trace: ControlFlowTrace = EMPTY_TRACE
    """The control flow of a run."""
    deciding: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By undecided node: the inputs whose values would decide it."""
    facts: SessionFacts = field(default_factory=SessionFacts)


def session_graph(
    optimized: OptimizedModel,
    inputs: Mapping[str, tuple[int, ...]],
    values: Mapping[str, Values] = MappingProxyType({}),
    observed: GraphRun = NO_RUN,
) -> SessionGraph:
    """Read an optimized model; ``inputs`` are the input shapes, ``values`` known elements of
    inputs, ``observed`` what was seen of the run.

    :raises OnnxmemError: what ``prepare`` and ``build`` raise, or a value does not match its input.
    """
    if values or observed is not NO_RUN:
        return _read(optimized, inputs, values, observed)
    key, last = tuple(sorted(inputs.items())), optimized.last_read
    # Only the last graph is kept: a request reads one several times, a search many, each once.
    if key not in last:
        found = _read(optimized, inputs, values, observed)
        last.clear()
        last[key] = found
    return last[key]


def _read(
    optimized: OptimizedModel,
    inputs: Mapping[str, tuple[int, ...]],
    values: Mapping[str, Values],
    observed: GraphRun,
) -> SessionGraph:
    drop_doubled_constants(optimized.proto)
    prepared = prepare(ModelFile("", optimized.proto, 0))
    binding = bind(prepared.inputs, _request(optimized.proto, inputs))
    shaped = with_shapes(prepared.proto, binding)
    graph = read_graph(shaped.proto, shaped.assumed)
    graph = _with_external(graph, optimized.external)
    graph = sorted_graph(graph, optimized.in_file_order if optimized.is_in_running_order else None)
    shapes = dict(_scoped(graph, optimized.shapes, "", ""))
    graph = with_load_shapes(graph, shapes, binding.dims)
    facts = SessionFacts(
        dict(_scoped(graph, optimized.contents, "", "")),
        dict(_scoped(graph, optimized.indices, "", "")),
        optimized.cpu,
        frozenset(name for name, _ in _scoped(graph, optimized.host, "", "")),
    )
    known = input_arrays(graph, values)
    trace = simulate_control_flow(shaped.proto, graph, known, observed=observed)
    deciding = deciding_inputs(shaped.proto, graph, known, trace)
    return SessionGraph(graph, shapes, optimized, trace, deciding, facts)


@dataclass(slots=True)
class SessionGraphReader:
    """Reads the graph of a session at one binding of the dims after another; mutable.

    Without subgraphs only the types of tensors differ, so all else is read once.
    """

    optimized: OptimizedModel
    values: Mapping[str, Values] = field(default_factory=dict)
    """Known elements of inputs."""
    _prepared: Prepared | None = None
    _first: SessionGraph | None = None

    def at(self, inputs: Mapping[str, tuple[int, ...]]) -> SessionGraph:
        """The graph at these shapes of the inputs.

        :raises OnnxmemError: as ``session_graph``.
        """
        first = self._first
        if first is None or self._prepared is None:
            self._first = session_graph(self.optimized, inputs, self.values)
            self._prepared = prepare(ModelFile("", self.optimized.proto, 0))
            return self._first
        # The trace of control flow may follow from the shapes, so it is simulated again.
        if self._prepared.columns.bodies:
            return session_graph(self.optimized, inputs, self.values)
        bound = build(self._prepared, _request(self.optimized.proto, inputs))
        graph = _with_external(bound.graph, self.optimized.external)
        graph = with_load_shapes(graph, first.shapes, bound.binding.dims)
        graph = replace(first.graph, tensors=graph.tensors, values=graph.values)
        return replace(first, graph=graph)


def _with_external(graph: Graph, names: Container[str]) -> Graph:
    """The graph with some of its weights marked as external."""
    found = {
        name: replace(tensor, is_external=True)
        for name, tensor in graph.tensors.items()
        if name in names and not tensor.is_external
    }
    return graph.with_tensors({**graph.tensors, **found}) if found else graph


def with_load_shapes(graph: Graph, shapes: LoadShapes, dims: Mapping[str, int]) -> Graph:
    """The graph with shapes known at load for tensors of unknown shape.

    onnxruntime infers shapes from constants that the saved graph lacks.
    """
    found = {
        name: replace(tensor, shape=shape)
        for name, tensor in graph.tensors.items()
        if tensor.shape is None or None in tensor.shape
        if (shape := _bound(shapes.get(name), dims)) is not None
    }
    return graph.with_tensors({**graph.tensors, **found}) if found else graph


def _bound(shape: LoadShape | None, dims: Mapping[str, int]) -> tuple[int, ...] | None:
    """A shape at load with numbers for its symbols; ``None``: a dim has none."""
    if shape is None:
        return None
    bound = [dims.get(dim) if isinstance(dim, str) else dim for dim in shape]
    known = tuple(dim for dim in bound if dim is not None)
    return known if len(known) == len(bound) else None


def _request(model: onnx.ModelProto, inputs: Mapping[str, tuple[int, ...]]) -> Request:
    """A request for the inputs' shapes.

    A shape may not be requested with a dim of 0, so these dims are bound by symbol.
    """
    # A symbol may be bound to 0, from which ``bind`` computes the shape.
    declared = {value.name: input_dims(value) or () for value in required_inputs(model.graph)}
    dims = {
        dim: number
        for name, shape in inputs.items()
        if 0 in shape
        for dim, number in zip(declared.get(name, ()), shape, strict=False)
        if isinstance(dim, str)
    }
    shapes = {name: shape for name, shape in inputs.items() if 0 not in shape}
    return Request(dims=dims, shapes=shapes)


def sorted_graph(
    graph: Graph, in_file_order: Container[str] | None = None, path: str = "", prefix: str = ""
) -> Graph:
    """A graph and its subgraphs with the nodes in onnxruntime's order of execution.

    ``in_file_order`` are the paths of the graphs that must be sorted; ``None``: all.
    """

    def sorted_body(node: Node, attribute: str, body: Graph) -> Graph:
        here = body_path(path, prefix, node, attribute)
        return sorted_graph(body, in_file_order, here, body_prefix(node, attribute, body))

    is_sorted = in_file_order is not None and path not in in_file_order
    nodes = (
        replace(
            node, subgraphs=tuple((n, sorted_body(node, n, body)) for n, body in node.subgraphs)
        )
        if node.subgraphs
        else node
        for node in (graph.nodes if is_sorted else in_running_order(graph))
    )
    return replace(graph, nodes=tuple(nodes))


def drop_doubled_constants(model: onnx.ModelProto) -> None:
    """Remove Constant nodes that onnxruntime saved in addition to their initializers."""
    for graph in graphs_in(model.graph):
        stored = {tensor.name for tensor in graph.initializer}
        doubled = [
            node for node in graph.node if onnx_op(node) == "Constant" and node.output[0] in stored
        ]
        for node in doubled:
            graph.node.remove(node)


def _scoped(
    graph: Graph, known: Mapping[str, Mapping[str, _T]], path: str, prefix: str
) -> Iterator[tuple[str, _T]]:
    """Values of all graphs by the scoped names of tensors."""
    for name, each in known.get(path, {}).items():
        yield prefix + name, each
    for node in graph.nodes:
        for attribute, body in node.subgraphs:
            here = body_path(path, prefix, node, attribute)
            yield from _scoped(body, known, here, body_prefix(node, attribute, body))


# --------------------------------------------------------------------------------------------------
# Nodes whose order depends on memory addresses, and so may differ between sessions.
#
# core/optimizer/nchwc_transformer.cc: ``NchwcTransformerImpl::Finalize`` adds the ReorderOutput
# nodes in the order of a hash table by address, so their indices vary. The order of execution
# compares the indices of producers of one node, and of nodes without consumers.


_NCHWC: Final = "com.microsoft.nchwc"


def varying_order(graph: Graph) -> Iterator[Finding]:
    """A finding if the order of execution may vary; ``graph`` is optimized at level ``all``."""
    graphs = (graph, *(body for node in graph.all_nodes() for _, body in node.subgraphs))
    names = list(dict.fromkeys(name for each in graphs for name in _varying(each)))
    if names:
        text = "the order of nodes depends on memory addresses and may differ between sessions"
        yield Finding("order_varies", f"{text}; the figures are for one order: {listed(names)}")


def _varying(graph: Graph) -> Iterator[str]:
    """Names of the nodes whose order varies."""
    # Two that one node reads, or that nobody reads, may have each other's index
    # (``Layout.finish``).
    producers = {node.outputs[0]: node for node in graph.nodes if _is_reordering(node)}
    read = {name for node in graph.nodes for name in node.reads}
    groups = [list(dict.fromkeys(filter(producers.get, node.reads))) for node in graph.nodes]
    groups.append([name for name in producers if name not in read])
    for group in groups:
        if len(group) > 1:
            yield from (producers[name].name for name in group)


def _is_reordering(node: Node) -> bool:
    return (node.domain, node.op_type) == (_NCHWC, "ReorderOutput")
