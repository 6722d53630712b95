"""The per-node statistics that onnxruntime's budgeted CUDA partitioning reads, without a run.

``session.resource_cuda_partitioning_settings`` names such a file, and
``session.collect_node_memory_stats_to_file`` writes one. Source: onnxruntime 1.31,
``core/framework/resource_accountant.cc`` and ``inference_session.cc``: nodes are assigned to a
device after the basic optimizations and before the others, and one whose key is not in the file
costs nothing. The reader knows no quotes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import onnx

from onnxmem.analysis.analysis import Analysis
from onnxmem.errors import UsageError
from onnxmem.model.binding import Request
from onnxmem.model.building import build
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph
from onnxmem.model.traversal import nodes_in
from onnxmem.runtimes.onnxruntime.allocation.pattern import rounded_up
from onnxmem.runtimes.onnxruntime.allocation.planning import Plan, Planning, Step, plan
from onnxmem.runtimes.onnxruntime.kernels.prepacking import prepacked
from onnxmem.runtimes.onnxruntime.memory import SessionGraphs, SessionRequest
from onnxmem.runtimes.onnxruntime.prediction import arena_figures
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS, ExecutionProvider
from onnxmem.runtimes.onnxruntime.session_files import name_nodes
from onnxmem.runtimes.onnxruntime.session_graph.graph_paths import (
    body_path,
    body_prefix,
    graphs_by_path,
)
from onnxmem.runtimes.onnxruntime.session_graph.loaded import SessionGraph
from onnxmem.runtimes.onnxruntime.session_graph.optimization import ModelAt
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

_MASK: Final = 0xFFFF_FFFF
_BLOCK_BYTES: Final = 16
_FACTORS: Final = (0x239B961B, 0xAB0E9789, 0x38B34AE5, 0xA1E38B93)
_ROTATIONS: Final = (15, 16, 17, 18)
_LANE_ROTATIONS: Final = (19, 17, 15, 13)
_ADDENDS: Final = (0x561CCD1B, 0x0BCAA747, 0x96CD1C35, 0x32AC3B17)
_WRITES_OUTSIDE = frozenset({"If", "Scan"})
"""Operators whose bodies put their outputs into the node's."""
_HEAD: Final = "#name,input_sizes,initializers_sizes,total_dynamic_sizes,total_temp_allocations\n"
_UNREADABLE: Final = frozenset(",\r\n")


@dataclass(frozen=True, slots=True)
class NodeStats:
    """What one node is accounted, in bytes."""

    key: str
    input_bytes: int
    output_bytes: int
    scratch_bytes: int


def node_stats(analysis: Analysis) -> Iterator[str]:
    """Write a line for each node of the graph that onnxruntime makes, by the key that it looks up.

    The runtime is the first requested one, else ``ort-cuda``; the graph the requested one, else
    ``ort-basic``. What is unknown of a node leaves its line out, and so does a name with a comma or
    a line break. Names are written as they are: they are keys. What CUDA's kernels take for
    themselves is in no file, and is not in these.

    :raises UsageError: the analysis is of a training step.
    :raises OnnxmemError: the optimised graph cannot be read.
    """
    if analysis.training is not None:
        message = "ort-node-stats: it is of a session that runs; leave --train out"
        raise UsageError(message)
    sessions = _sessions(analysis)
    options = sessions.request.session_options()
    provider = PROVIDERS[sessions.request.name]
    yield _HEAD
    session = sessions.graph(options)
    names = _own_names(sessions.model.file, session)
    for stats in session_node_stats(session, options, provider, names):
        if _UNREADABLE.isdisjoint(stats.key):
            yield f"{stats.key},{stats.input_bytes},0,{stats.output_bytes},{stats.scratch_bytes}\n"


def session_node_stats(
    session: SessionGraph,
    options: SessionOptions,
    provider: ExecutionProvider,
    names: Mapping[str, str],
) -> Iterator[NodeStats]:
    """The statistics of a session's first run, node by node, those of subgraphs included.

    ``names`` are those of the model's file, by those that nodes were given to be told apart.
    """
    planning = Planning(session.shapes, provider, reuses_memory=options.enable_mem_reuse)
    scratch_bytes: dict[str, int] = {}
    for sample in arena_figures(session, options, provider)[0].nodes:
        name = sample.node.name
        scratch_bytes[name] = max(sample.scratch_bytes, scratch_bytes.get(name, 0))
    accounting = _Accounting(
        file=session.optimized.proto.graph,
        scratch_bytes=scratch_bytes,
        dropped=_dropped(session, options, provider),
        own_names=names,
    )
    return accounting.of(plan(session.graph, planning))


def node_key(node: onnx.NodeProto, name: str) -> str:
    """The name by which a node is found again (``MakeUniqueNodeName``): its name and a hash.

    An unnamed one goes by its operator. The hash is of the names of all inputs, left-out ones too,
    then all outputs, each hashed with the lowest 32 bits of the hash before it as the seed.
    """
    hashed: tuple[int, ...] = (0, 0)
    for tensor in (*node.input, *node.output):
        hashed = murmur3_x86_128(tensor.encode(), hashed[0])
    return f"{name or node.op_type}_{hashed[0] | hashed[1] << 32}"


def murmur3_x86_128(data: bytes, seed: int) -> tuple[int, ...]:
    """MurmurHash3 of 128 bits as 32-bit machines compute it: four numbers, the first the lowest.

    Source: Austin Appleby's MurmurHash3_x86_128, in the public domain; onnxruntime has it in
    ``core/framework/murmurhash3.cc``.
    """
    lanes = [seed] * 4
    body = len(data) // _BLOCK_BYTES * _BLOCK_BYTES
    for start in range(0, body, _BLOCK_BYTES):
        for lane in range(4):
            lanes[lane] ^= _mixed(_word(data, start, lane), lane)
            rotated = _rotated(lanes[lane], _LANE_ROTATIONS[lane])
            lanes[lane] = ((rotated + lanes[(lane + 1) % 4]) * 5 + _ADDENDS[lane]) & _MASK
    for lane in range(4):
        lanes[lane] ^= _mixed(_word(data, body, lane), lane) ^ len(data)
    return _summed([_avalanche(value) for value in _summed(lanes)])


@dataclass(slots=True)
class _Accounting:
    """Mutable: the tensors that have been accounted so far.

    After its kernel has run, ``ExecuteKernel`` (``core/framework/sequential_executor.cc`` of
    onnxruntime 1.31) accounts a node

    * ``input_sizes``: its explicit inputs that are there and that no node was accounted before; a
      weight that its kernels have packed and dropped is not there. ``initializers_sizes`` stays 0;
    * ``total_dynamic_sizes``: its outputs that got a buffer of their own from this frame, rounded
      up, and that no node was accounted before;
    * ``total_temp_allocations``: what its kernel requested itself.

    Tensors are told apart by their names in the file, of all graphs together.
    """

    file: onnx.GraphProto
    """The graph that runs, as its optimiser saved it."""
    scratch_bytes: Mapping[str, int]
    """By the name of the node."""
    dropped: frozenset[str]
    """Weights that are not there."""
    own_names: Mapping[str, str]
    """What the model's file calls the nodes that were named for the optimiser."""
    _seen: set[str] = field(default_factory=set)
    _nodes: dict[tuple[str, str], onnx.NodeProto] = field(default_factory=dict)
    """By the path of their graph and their first output."""

    def of(self, plan: Plan) -> Iterator[NodeStats]:
        """Every node in the order in which they end, one whose bytes are unknown left out."""
        for path, graph in graphs_by_path(self.file):
            self._nodes.update(
                ((path, next(filter(None, node.output))), node)
                for node in graph.node
                if any(node.output)
            )
        yield from self._of(plan, "", "", frozenset())

    def _of(
        self, plan: Plan, path: str, prefix: str, provided: frozenset[str]
    ) -> Iterator[NodeStats]:
        for step in plan.steps:
            node = step.node
            for body, (attribute, graph) in zip(step.bodies, node.subgraphs, strict=True):
                outside = frozenset(graph.outputs) if node.onnx_op in _WRITES_OUTSIDE else ()
                yield from self._of(
                    body,
                    body_path(path, prefix, node, attribute),
                    body_prefix(node, attribute, graph),
                    frozenset(outside),
                )
            in_file = self._nodes.get((path, next(iter(node.writes), "").removeprefix(prefix)))
            if in_file is not None:
                yield from self._accounted(plan.graph, step, in_file, provided)

    def _accounted(
        self, graph: Graph, step: Step, node: onnx.NodeProto, provided: frozenset[str]
    ) -> Iterator[NodeStats]:
        inputs = [
            graph.tensors[name].size_bytes
            for name, own in zip(step.node.inputs, node.input, strict=False)
            if name and name not in self.dropped and self._is_first(own)
        ]
        outputs = [
            graph.tensors[name].size_bytes
            for name, own in zip(step.node.outputs, node.output, strict=False)
            if name in step.allocates and name not in provided and self._is_first(own)
        ]
        if None not in inputs and None not in outputs:
            yield NodeStats(
                node_key(node, self.own_names.get(node.name, node.name)),
                sum(size or 0 for size in inputs),
                sum(rounded_up(size or 0) for size in outputs),
                self.scratch_bytes.get(step.node.name, 0),
            )

    def _is_first(self, name: str) -> bool:
        if name in self._seen:
            return False
        self._seen.add(name)
        return True


def _word(data: bytes, start: int, lane: int) -> int:
    """Four bytes, or what is left of them: none is 0, which changes nothing."""
    first = start + 4 * lane
    return int.from_bytes(data[first : first + 4], "little")


def _mixed(word: int, lane: int) -> int:
    rotated = _rotated(word * _FACTORS[lane] & _MASK, _ROTATIONS[lane])
    return rotated * _FACTORS[(lane + 1) % 4] & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


def _summed(lanes: Sequence[int]) -> tuple[int, ...]:
    """The first lane takes the sum of all, then each other one takes the first."""
    first = sum(lanes) & _MASK
    return (first, *((first + lane) & _MASK for lane in lanes[1:]))


def _avalanche(value: int) -> int:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        value ^= value >> shift
        value = value * factor & _MASK
    return value ^ value >> 16


def _sessions(analysis: Analysis) -> SessionGraphs:
    request, settings = analysis.request, analysis.request.settings
    bound = build(request.prepared, Request(settings.batch, settings.dims, settings.shapes))
    session = SessionRequest(
        name=next(iter(settings.runtimes), "ort-cuda"),
        graph=settings.graph or "ort-basic",
        options=SessionOptions(fixed_dims=settings.fixed_dims),
        asks_onnxruntime=settings.asks_onnxruntime,
        cpu=settings.cpu,
        values=settings.values,
    )
    return SessionGraphs(ModelAt(request.source, request.prepared, bound), session)


def _own_names(file: ModelFile, session: SessionGraph) -> Mapping[str, str]:
    """The model's own names of nodes, which get unique ones before onnxruntime optimizes them."""
    if not session.optimized.graph_optimizer.startswith("onnxruntime"):
        return {}
    named = onnx.ModelProto()
    named.CopyFrom(file.proto)
    name_nodes(named)
    pairs = zip(nodes_in(named.graph.node), nodes_in(file.proto.graph.node), strict=True)
    return {made.name: own.name for made, own in pairs if made.name != own.name}


def _dropped(
    session: SessionGraph, options: SessionOptions, provider: ExecutionProvider
) -> frozenset[str]:
    """Weights that are gone before the first run, for all their readers have packed them."""
    if not provider.is_host or options.disable_prepacking:
        return frozenset()
    graph = session.graph
    packed = Counter(each.weight for each in prepacked(graph, session.facts) if each.drops_original)
    readers = Counter(name for node in graph.all_nodes() for name in node.inputs if name)
    readers.update(graph.outputs)
    return frozenset(name for name, count in packed.items() if count >= readers[name])
