"""The per-node statistics that onnxruntime's budgeted CUDA partitioning reads, without a run.

``session.resource_cuda_partitioning_settings`` names such a file, and
``session.collect_node_memory_stats_to_file`` writes one. Source: onnxruntime 1.31,
``core/framework/resource_accountant.cc`` and ``inference_session.cc``: nodes are put on a device
behind the basic optimisations and before the others, and one whose key is not in the file costs
nothing. The reader knows no quotes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import onnx

from onnxmem.analysis.analysis import Analysis
from onnxmem.errors import UsageError
from onnxmem.export.node_accounting import Accounting, NodeStats
from onnxmem.model import ModelFile, Request, build
from onnxmem.model.traversal import nodes_in
from onnxmem.runtimes.onnxruntime.allocation.planning import Planning, plan
from onnxmem.runtimes.onnxruntime.kernels.prepacking import prepacked
from onnxmem.runtimes.onnxruntime.memory import RuntimeQuestion, Sessions
from onnxmem.runtimes.onnxruntime.prediction import arena_figures
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS, ExecutionProvider
from onnxmem.runtimes.onnxruntime.session_files import name_nodes
from onnxmem.runtimes.onnxruntime.session_graph.loaded import SessionGraph
from onnxmem.runtimes.onnxruntime.session_graph.opening import ModelAt
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

_HEAD: Final = "#name,input_sizes,initializers_sizes,total_dynamic_sizes,total_temp_allocations\n"
_UNREADABLE: Final = frozenset(",\r\n")


def node_stats(analysis: Analysis) -> Iterator[str]:
    """Write a line for each node of the graph that onnxruntime makes, by the key that it looks up.

    The runtime is the first asked for, else ``ort-cuda``; the graph the one asked for, else
    ``ort-basic``. What is unknown of a node leaves its line out, and so does a name with a comma or
    a line break. Names are written as they are: they are keys. What CUDA's kernels take for
    themselves is in no file, and is not in these.

    :raises UsageError: it is a training step that is asked about.
    :raises OnnxmemError: the optimised graph cannot be read.
    """
    if analysis.training is not None:
        message = "ort-node-stats: it is of a session that runs; leave --train out"
        raise UsageError(message)
    sessions = _sessions(analysis)
    options = sessions.question.session_options()
    provider = PROVIDERS[sessions.question.name]
    yield _HEAD
    session = sessions.graph(options)
    names = _own_names(sessions.model.file, session)
    for stats in collected(session, options, provider, names):
        if _UNREADABLE.isdisjoint(stats.key):
            yield f"{stats.key},{stats.input_bytes},0,{stats.output_bytes},{stats.scratch_bytes}\n"


def collected(
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
    accounting = Accounting(
        file=session.optimised.proto.graph,
        scratch_bytes=scratch_bytes,
        dropped=_dropped(session, options, provider),
        own_names=names,
    )
    return accounting.of(plan(session.graph, planning))


def _sessions(analysis: Analysis) -> Sessions:
    question, settings = analysis.request, analysis.request.settings
    bound = build(question.prepared, Request(settings.batch, settings.dims, settings.shapes))
    session = RuntimeQuestion(
        name=next(iter(settings.runtimes), "ort-cuda"),
        graph=settings.graph or "ort-basic",
        options=SessionOptions(fixed_dims=settings.fixed_dims),
        asks_onnxruntime=settings.asks_onnxruntime,
        cpu=settings.cpu,
        values=settings.values,
    )
    return Sessions(ModelAt(question.source, question.prepared, bound), session)


def _own_names(file: ModelFile, session: SessionGraph) -> Mapping[str, str]:
    """Undo the names that a model's nodes are given where onnxruntime is asked for its graph."""
    if not session.optimised.optimiser.startswith("onnxruntime"):
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
