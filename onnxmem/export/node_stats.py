"""Predict the per-node statistics that onnxruntime's CUDA partitioning by budget reads.

``session.resource_cuda_partitioning_settings`` names such a file, and
``session.collect_node_memory_stats_to_file`` writes one. Source: onnxruntime 1.31,
``core/framework/resource_accountant.cc`` and ``inference_session.cc``: nodes are assigned to a
device between the basic and the other optimizations, and a node whose key is not in the file counts
as 0 bytes. The reader does not support quotes.
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
from onnxmem.model.graph import Graph, body_prefix
from onnxmem.model.traversal import nodes_in
from onnxmem.runtimes.onnxruntime.allocation.pattern import rounded_up
from onnxmem.runtimes.onnxruntime.allocation.planning import Plan, Step, plan
from onnxmem.runtimes.onnxruntime.kernels.prepacking import prepacked
from onnxmem.runtimes.onnxruntime.memory import SessionGraphs, SessionRequest
from onnxmem.runtimes.onnxruntime.prediction import arena_figures, planning_of
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS, ExecutionProvider
from onnxmem.runtimes.onnxruntime.session_files import name_nodes
from onnxmem.runtimes.onnxruntime.session_graph.graph_paths import body_path, graphs_by_path
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
"""Operators whose subgraphs write directly into the outputs of the node."""
_HEAD: Final = "#name,input_sizes,initializers_sizes,total_dynamic_sizes,total_temp_allocations\n"
_UNREADABLE: Final = frozenset(",\r\n")


@dataclass(frozen=True, slots=True)
class NodeStats:
    """The accounted bytes of a node."""

    key: str
    input_bytes: int
    output_bytes: int
    scratch_bytes: int


def node_stats(analysis: Analysis) -> Iterator[str]:
    """Write a line for each node of onnxruntime's optimized graph, by the key that it looks up.

    The runtime is the first requested one, else ``ort-cuda``; the graph is the requested one, else
    ``ort-basic``. A node with an unknown figure is omitted, and so is one whose name has a comma or
    a line break. Names are keys, so they are not escaped. The workspace of CUDA kernels is unknown
    and not included.

    :raises UsageError: the analysis is of a training step.
    :raises OnnxmemError: the optimized graph cannot be read.
    """
    if analysis.training is not None:
        message = "ort-node-stats: an onnxruntime session does not train; omit --train"
        raise UsageError(message)
    sessions = _sessions(analysis)
    options = sessions.request.session_options()
    provider = PROVIDERS[_runtime_name(analysis)]
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
    """The statistics of the first run of a session, by node, subgraphs included.

    ``names`` maps unique names, which nodes got for the graph optimizer, to those in the file.
    """
    planning = planning_of(session, options, provider)
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
    """The key of a node (``MakeUniqueNodeName``): its name, or its operator, and a hash.

    The hash is that of the names of all inputs, missing ones included, and all outputs; each is
    hashed with the lowest 32 bits of the previous hash as the seed.
    """
    hashed: tuple[int, ...] = (0, 0)
    for tensor in (*node.input, *node.output):
        hashed = murmur3_x86_128(tensor.encode(), hashed[0])
    # The lower 64 of the 128 bits.
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
    """Accounts the tensors of nodes, each tensor once; mutable.

    After a kernel has run, ``ExecuteKernel`` (``core/framework/sequential_executor.cc`` of
    onnxruntime 1.31) accounts for the node

    * ``input_sizes``: explicit inputs that exist and were not accounted before; a weight that all
      of its kernels have prepacked does not exist. ``initializers_sizes`` stays 0;
    * ``total_dynamic_sizes``: outputs with a buffer of their own in this frame, rounded up, that
      were not accounted before;
    * ``total_temp_allocations``: what the kernel allocated itself.

    Tensors are identified by their names in the file, in all graphs together.
    """

    file: onnx.GraphProto
    """The optimized graph, as it was saved."""
    scratch_bytes: Mapping[str, int]
    """Scratch memory by the name of the node."""
    dropped: frozenset[str]
    """Weights that do not exist any more."""
    own_names: Mapping[str, str]
    """The names of nodes in the file, by their unique names."""
    _seen: set[str] = field(default_factory=set)
    _nodes: dict[tuple[str, str], onnx.NodeProto] = field(default_factory=dict)
    """Nodes by the path of their graph and their first output."""

    def of(self, plan: Plan) -> Iterator[NodeStats]:
        """The nodes in the order in which they end, without those of unknown size."""
        # The order matters: a tensor is accounted to the first node that has it.
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
    """Up to four bytes; past the end it is 0, which does not change the hash."""
    first = start + 4 * lane
    return int.from_bytes(data[first : first + 4], "little")


def _mixed(word: int, lane: int) -> int:
    rotated = _rotated(word * _FACTORS[lane] & _MASK, _ROTATIONS[lane])
    return rotated * _FACTORS[(lane + 1) % 4] & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


def _summed(lanes: Sequence[int]) -> tuple[int, ...]:
    """Add all lanes to the first, then the first to all others."""
    first = sum(lanes) & _MASK
    return (first, *((first + lane) & _MASK for lane in lanes[1:]))


def _avalanche(value: int) -> int:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        value ^= value >> shift
        value = value * factor & _MASK
    return value ^ value >> 16


def _runtime_name(analysis: Analysis) -> str:
    return next(iter(analysis.request.settings.runtimes), "ort-cuda")


def _sessions(analysis: Analysis) -> SessionGraphs:
    request, settings = analysis.request, analysis.request.settings
    bound = build(request.prepared, Request(settings.batch, settings.dims, settings.shapes))
    graph = settings.graph or "ort-basic"
    if graph == "ort-all" and not PROVIDERS[_runtime_name(analysis)].is_host:
        graph = "ort-extended"  # the last level is for the nodes of the CPU
    # Nodes are looked up before any is assigned to CUDA, so there are no copies between devices:
    # the graph is that of the CPU.
    session = SessionRequest(
        graph=graph,
        options=SessionOptions(fixed_dims=settings.fixed_dims),
        asks_onnxruntime=settings.asks_onnxruntime,
        cpu=settings.cpu,
        values=settings.values,
    )
    return SessionGraphs(ModelAt(request.source, request.prepared, bound), session)


def _own_names(file: ModelFile, session: SessionGraph) -> Mapping[str, str]:
    """The names of nodes in the file; they get unique ones before onnxruntime optimizes them."""
    if not session.optimized.graph_optimizer.startswith("onnxruntime"):
        return {}
    named = onnx.ModelProto()
    named.CopyFrom(file.proto)
    name_nodes(named)
    pairs = zip(nodes_in(named.graph.node), nodes_in(file.proto.graph.node), strict=True)
    return {unique.name: own.name for unique, own in pairs if unique.name != own.name}


def _dropped(
    session: SessionGraph, options: SessionOptions, provider: ExecutionProvider
) -> frozenset[str]:
    """Weights that are freed before the first run, because all of their readers prepack them."""
    if not provider.is_host or options.disable_prepacking:
        return frozenset()
    graph = session.graph
    packed = Counter(each.weight for each in prepacked(graph, session.facts) if each.drops_original)
    readers = Counter(name for node in graph.all_nodes() for name in node.inputs if name)
    readers.update(graph.outputs)
    return frozenset(name for name, count in packed.items() if count >= readers[name])
