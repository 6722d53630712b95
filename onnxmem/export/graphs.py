"""The DAG of a model's nodes with their bytes, as DOT and as GraphML.

Quoting in DOT: https://graphviz.org/doc/info/lang.html and
https://graphviz.org/docs/attr-types/escString/ : only ``"`` ends a quoted string, and a backslash
in a label starts an escape, so it is doubled. GraphML, which yEd, Gephi, Cytoscape and graph
libraries read, is written by networkx: http://graphml.graphdrawing.org/specification.html .
"""

from collections.abc import Iterator, Mapping
from typing import Final

import networkx as nx

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.compute import Layer, layers
from onnxmem.errors import shortened
from onnxmem.export.figures import live_bytes
from onnxmem.units import format_bytes, sum_if_known

_MOST_NAMED: Final = 8
"""How many tensors of an edge are listed; an If may read hundreds of outputs of one node."""
_LARGEST_LONG: Final = 2**63 - 1
Facts = dict[str, str | int]
"""The attributes of a node or an edge, without unknown ones."""


def sized_graph(analysis: Analysis) -> "nx.DiGraph[str]":
    """The main graph as a DAG of ``n0``, ``n1`` and so on, in order of execution.

    Attributes of a node are ``node`` (its name), ``op_type``, ``step``, ``output_bytes``,
    ``live_bytes`` (at its step), ``weight_bytes`` and ``macs``; those of an edge are the names of
    its ``tensors`` and their sum, ``tensor_bytes``. Unknown attributes are omitted.
    """
    graph = analysis.graph
    facts = node_facts(analysis)
    ids = {node.name: f"n{step}" for step, node in enumerate(graph.nodes)}
    sized: nx.DiGraph[str] = nx.DiGraph(name=shortened(graph.name))
    for node in graph.nodes:
        sized.add_node(ids[node.name], **facts[node.name])
    for source, target, edge in graph.to_networkx().edges(data=True):
        sized.add_edge(ids[source], ids[target], **_edge_facts(analysis, edge["tensors"]))
    return sized


def node_facts(analysis: Analysis) -> dict[str, Facts]:
    """The attributes of every node by its name; a node of a subgraph has no step of its own."""
    steps = {node.name: step for step, node in enumerate(analysis.graph.nodes)}
    live = dict(zip(steps, live_bytes(analysis), strict=True))
    return {
        layer.node: dict(_node_facts(layer, steps.get(layer.node), live.get(layer.node)))
        for layer in layers(analysis.graph, analysis.parameters, analysis.compute)
    }


def dot(analysis: Analysis) -> Iterator[str]:
    """Write the DAG of ``sized_graph`` with its attributes; labels have the bytes."""
    graph = sized_graph(analysis)
    yield f"digraph {_quoted(graph.graph['name'])} {{\n"
    yield '  node [shape=box, fontname="sans-serif"];\n  edge [fontname="sans-serif"];\n'
    for node, facts in graph.nodes(data=True):
        yield f"  {node} [{_attributes(facts, _node_label(facts))}];\n"
    for source, target, facts in graph.edges(data=True):
        yield f"  {source} -> {target} [{_attributes(facts, _edge_label(facts))}];\n"
    yield "}\n"


def graphml(analysis: Analysis) -> Iterator[str]:
    """Write the DAG of ``sized_graph`` with typed attributes; numbers are ``long``.

    If a number exceeds the 64 bits of a ``long``, all values of its key are strings, which are
    exact.
    """
    graph = sized_graph(analysis)
    nodes = [facts for _, facts in graph.nodes(data=True)]
    edges = [facts for *_, facts in graph.edges(data=True)]
    for all_facts in (nodes, edges):
        # GraphML declares one type for an attribute of all nodes, so one number that is too large
        # makes all of them strings.
        wide = {name for facts in all_facts for name, value in facts.items() if _is_wide(value)}
        for facts in all_facts:
            facts.update({name: str(facts[name]) for name in wide & facts.keys()})
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    for line in nx.generate_graphml(graph, named_key_ids=True):
        yield f"{line}\n"


def _is_wide(value: str | int) -> bool:
    return isinstance(value, int) and value > _LARGEST_LONG


def _node_facts(
    layer: Layer, step: int | None, live: int | None
) -> Iterator[tuple[str, str | int]]:
    yield "node", shortened(layer.node)
    yield "op_type", shortened(layer.op_type)
    for name, figure in (
        ("step", step),
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


def _node_label(facts: Mapping[str, object]) -> tuple[str, ...]:
    return (str(facts["op_type"]), str(facts["node"]), *_size(facts.get("output_bytes")))


def _edge_label(facts: Mapping[str, object]) -> tuple[str, ...]:
    return _size(facts.get("tensor_bytes"))


def _size(size_bytes: object) -> tuple[str, ...]:
    return (format_bytes(size_bytes),) if isinstance(size_bytes, int) else ()


def _attributes(facts: Mapping[str, object], label: tuple[str, ...]) -> str:
    lines = r"\n".join(map(_escaped, label))
    named = {name: _quoted(str(value)) for name, value in facts.items()}
    return ", ".join([f'label="{lines}"', *(f"{name}={value}" for name, value in named.items())])


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"")
