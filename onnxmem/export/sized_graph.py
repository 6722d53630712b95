"""The DAG of a model's nodes with what each takes, as the graph formats write it."""

from collections.abc import Iterator
from typing import Final

import networkx as nx

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.compute import Layer, layers
from onnxmem.errors import shortened
from onnxmem.export.steps import live_bytes
from onnxmem.units import sum_if_known

_MOST_NAMED: Final = 8
"""Tensors of an edge that are named; an If may read hundreds of one node's."""

Facts = dict[str, str | int]
"""Of a node or an edge: what is unknown is absent."""


def sized_graph(analysis: Analysis) -> "nx.DiGraph[str]":
    """The main graph as a DAG of ``n0``, ``n1`` and so on in running order.

    A node has ``node`` (its name), ``op_type``, ``step``, and in bytes ``output_bytes``,
    ``live_bytes`` (at its step) and ``weight_bytes``; ``macs`` are multiply-adds. An edge has the
    names of its ``tensors`` and their sum, ``tensor_bytes``. What is unknown is absent.
    """
    graph = analysis.graph
    by_name = {layer.node: layer for layer in layers(graph, analysis.parameters, analysis.compute)}
    ids = {node.name: f"n{step}" for step, node in enumerate(graph.nodes)}
    sized: nx.DiGraph[str] = nx.DiGraph(name=shortened(graph.name))
    for step, (node, live) in enumerate(zip(graph.nodes, live_bytes(analysis), strict=True)):
        sized.add_node(ids[node.name], **dict(_node_facts(by_name[node.name], step, live)))
    for source, target, edge in graph.to_networkx().edges(data=True):
        sized.add_edge(ids[source], ids[target], **_edge_facts(analysis, edge["tensors"]))
    return sized


def _node_facts(layer: Layer, step: int, live: int | None) -> Iterator[tuple[str, str | int]]:
    yield "node", shortened(layer.node)
    yield "op_type", shortened(layer.op_type)
    yield "step", step
    for name, figure in (
        ("output_bytes", layer.output_bytes),
        ("live_bytes", live),
        ("weight_bytes", layer.weight_bytes),
        ("macs", layer.macs),
    ):
        if figure is not None:
            yield name, figure


def _edge_facts(analysis: Analysis, tensors: tuple[str, ...]) -> Facts:
    named = [shortened(name) for name in tensors[:_MOST_NAMED]]
    if len(tensors) > _MOST_NAMED:
        named.append(f"... {len(tensors) - _MOST_NAMED} more")
    size_bytes = sum_if_known(analysis.graph.tensors[name].size_bytes for name in tensors)
    facts: Facts = {"tensors": ", ".join(named)}
    return facts if size_bytes is None else {**facts, "tensor_bytes": size_bytes}
