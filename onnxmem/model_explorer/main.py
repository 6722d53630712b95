"""The adapter and the node data provider that Model Explorer finds by importing this module.

The ids of nodes are their names, so that node data fits graphs of other adapters of ONNX as well;
a node that has another id there is found by the names of its outputs. The body of an If, a Loop or
a Scan is a graph of its own.
"""

from argparse import ArgumentTypeError
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from model_explorer import (
    Adapter,
    AdapterMetadata,
    GetConfigEditorsResult,
    ModelExplorerGraphs,
    NodeDataProvider,
    NodeDataProviderFilter,
    NodeDataProviderMetadata,
    NodeDataProviderResult,
)
from model_explorer.config_editor import SlideToggleConfigEditor, TextInputConfigEditor
from model_explorer.graph_builder import (
    Graph as DrawnGraph,
)
from model_explorer.graph_builder import GraphNode, IncomingEdge, KeyValue, MetadataItem
from model_explorer.node_data_builder import GraphNodeData, NodeDataResult

from onnxmem.analysis.analysis import Analysis, analyze
from onnxmem.cli.parsing import dim, named_dim
from onnxmem.errors import OnnxmemError, shortened
from onnxmem.export.figures import assumptions, named_figures
from onnxmem.export.graphs import Facts, node_facts
from onnxmem.export.overlays import Overlay, overlays
from onnxmem.model.graph import Graph, Node, Tensor
from onnxmem.model.module_paths import modules_of
from onnxmem.report.text import shape_text
from onnxmem.units import format_bytes

_ENDING: Final = "onnx"
_MAIN: Final = "graph"
"""The id of a main graph without a name."""
_TENSOR_NAMES: Final = frozenset({"tensor_name", "__tensor_tag"})
"""Keys by which adapters name the outputs of a node."""


class OnnxAdapter(Adapter):
    """Draws an ONNX file: a node for each node, with its figures and those of the model."""

    metadata = AdapterMetadata(
        id="onnxmem",
        name="onnxmem",
        description="ONNX with the memory of each node",
        fileExts=[_ENDING],
    )

    def convert(self, model_path: str, settings: Mapping[str, object]) -> ModelExplorerGraphs:
        """Draw the main graph and all bodies.

        :raises OnnxmemError: the file cannot be analyzed; Model Explorer shows the message.
        """
        del settings
        analysis = analyze(model_path)
        facts = node_facts(analysis)
        main = DrawnGraph(
            id=analysis.graph.name or _MAIN,
            nodes=list(_nodes(analysis.graph, facts)),
            groupNodeAttributes={"": dict(_of_model(analysis))},
        )
        return {"graphs": [main, *_bodies(analysis.graph, facts)]}


class MemoryProvider(NodeDataProvider):
    """Lays the memory of each node over a graph, at a batch, of inference or of a training step."""

    metadata = NodeDataProviderMetadata(
        id="onnxmem_memory",
        name="Memory (onnxmem)",
        description="Live bytes, what is live at the peak, what is saved for backward",
        icon="memory",
        filter=NodeDataProviderFilter(modelFileExts=[_ENDING]),
    )

    def get_config_editors(self, provider_id: str) -> GetConfigEditorsResult:
        """What is asked before a run."""
        del provider_id
        return GetConfigEditorsResult(
            configEditors=[
                TextInputConfigEditor(
                    id="batch", label="Batch", description="Empty: the batch of the file"
                ),
                TextInputConfigEditor(
                    id="dims", label="Dims", description="Dynamic dims, as in seq=128, past=0"
                ),
                SlideToggleConfigEditor(
                    id="train", label="A training step of PyTorch", defaultValue=False
                ),
            ]
        )

    def run(
        self,
        provider_id: str,
        model_path: str,
        graph_id: str,
        config_values: Mapping[str, object],
        graph: DrawnGraph | None,
    ) -> NodeDataProviderResult:
        """The overlays of a file, by the ids that its nodes have in the graph that is shown."""
        del provider_id, graph_id
        try:
            analysis = analyze(model_path, **_settings(config_values))
        except (OnnxmemError, ArgumentTypeError) as fault:
            return NodeDataProviderResult(error=str(fault))
        ids = _ids(analysis.graph, graph)
        if not ids:
            message = "the figures are of nodes of the main graph; a body counts at its node"
            return NodeDataProviderResult(error=message)
        return NodeDataProviderResult(result=[_data(each, ids) for each in overlays(analysis)])


def _settings(values: Mapping[str, object]) -> dict[str, Any]:
    """Keywords of ``analyze`` from what a user typed.

    :raises ArgumentTypeError: it is not a number, or not a list of dims.
    """
    batch, dims = (str(values.get(name) or "").strip() for name in ("batch", "dims"))
    pairs = (part.rpartition("=") for part in dims.split(",") if part.strip())
    return {
        "batch": dim(batch) if batch else None,
        "dims": dict(named_dim("".join(map(str.strip, pair))) for pair in pairs),
        "train": bool(values.get("train")),
    }


def _ids(graph: Graph, drawn: DrawnGraph | None) -> dict[str, str]:
    """The ids of nodes in the graph that is shown, by name, without those that it does not show."""
    if drawn is None:
        return {node.name: node.name for node in graph.nodes}
    known = {node.id for node in drawn.nodes}
    by_output = {
        str(entry.value): node.id
        for node in drawn.nodes
        for output in node.outputsMetadata
        for entry in output.attrs
        if entry.key in _TENSOR_NAMES
    }
    ids = {}
    for node in graph.nodes:
        outputs = (by_output[name] for name in node.writes if name in by_output)
        found = node.name if node.name in known else next(outputs, None)
        if found is not None:
            ids[node.name] = found
    return ids


def _data(overlay: Overlay, ids: Mapping[str, str]) -> GraphNodeData:
    results = {
        ids[node]: NodeDataResult(value=size_bytes, bgColor=color)
        for node, size_bytes, color in overlay.colors()
        if node in ids
    }
    return GraphNodeData(results=results, name=overlay.title)


def _of_model(analysis: Analysis) -> Iterator[tuple[str, str]]:
    """What the side panel says while no node is selected."""
    for name, size_bytes in named_figures(analysis):
        if size_bytes is not None:
            yield name, f"{format_bytes(size_bytes)} ({size_bytes:,} bytes)"
    yield "assumed", ", ".join(assumptions(analysis))


def _bodies(graph: Graph, facts: Mapping[str, Facts]) -> Iterator[DrawnGraph]:
    for node in graph.nodes:
        for name, (_, body) in zip(_body_ids(node), node.subgraphs, strict=True):
            yield DrawnGraph(id=name, nodes=list(_nodes(body, facts)))
            yield from _bodies(body, facts)


def _body_ids(node: Node) -> list[str]:
    return [f"{node.name}/{attribute}" for attribute, _ in node.subgraphs]


def _nodes(graph: Graph, facts: Mapping[str, Facts]) -> Iterator[GraphNode]:
    """Inputs, nodes and outputs of a graph; a tensor from outside of it has no edge."""
    sources: dict[str, tuple[str, str]] = {}
    for name in graph.inputs:
        sources[name] = f"[input]{name}", "0"
        shown = [_metadata("0", graph.tensors[name])]
        yield GraphNode(id=sources[name][0], label=shortened(name), outputsMetadata=shown)
    for node in graph.nodes:
        yield _node(graph, node, facts[node.name], sources)
        sources.update(
            (name, (node.name, str(index))) for index, name in enumerate(node.outputs) if name
        )
    for name in graph.outputs:
        edges = list(_edges([name], sources))
        yield GraphNode(id=f"[output]{name}", label=shortened(name), incomingEdges=edges)


def _node(
    graph: Graph, node: Node, facts: Facts, sources: Mapping[str, tuple[str, str]]
) -> GraphNode:
    return GraphNode(
        id=node.name,
        label=node.op_type,
        namespace="/".join(modules_of(node)),
        subgraphIds=_body_ids(node),
        attrs=[KeyValue(key, _shown(key, value)) for key, value in facts.items()],
        incomingEdges=list(_edges(node.inputs, sources)),
        inputsMetadata=list(_all_metadata(graph, node.inputs)),
        outputsMetadata=list(_all_metadata(graph, node.outputs)),
    )


def _shown(key: str, value: str | int) -> str:
    if isinstance(value, int) and key.endswith("_bytes"):
        return f"{value:,} ({format_bytes(value)})"
    return str(value)


def _edges(names: Iterable[str], sources: Mapping[str, tuple[str, str]]) -> Iterator[IncomingEdge]:
    for index, name in enumerate(names):
        if name in sources:
            node, output = sources[name]
            yield IncomingEdge(node, output, str(index))


def _all_metadata(graph: Graph, names: Iterable[str]) -> Iterator[MetadataItem]:
    for index, name in enumerate(names):
        if name:
            yield _metadata(str(index), graph.tensors[name])


def _metadata(index: str, tensor: Tensor) -> MetadataItem:
    known = {
        "tensor_name": tensor.name,
        "shape": None if tensor.shape is None else shape_text(tensor.shape),
        "dtype": tensor.dtype,
        "bytes": None if tensor.size_bytes is None else f"{tensor.size_bytes:,}",
    }
    return MetadataItem(index, [KeyValue(key, value) for key, value in known.items() if value])
