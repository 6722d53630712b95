"""The DAG in Graphviz's DOT language.

Source of the quoting: https://graphviz.org/doc/info/lang.html and
https://graphviz.org/docs/attr-types/escString/ : in a quoted string only ``"`` ends it, and in a
label a backslash begins an escape, so that each is written twice.
"""

from collections.abc import Iterator, Mapping

from onnxmem.analysis.analysis import Analysis
from onnxmem.export.sized_graph import sized_graph
from onnxmem.units import format_bytes


def dot(analysis: Analysis) -> Iterator[str]:
    """Write the DAG of ``sized_graph``: its facts are attributes, and labels tell the bytes."""
    graph = sized_graph(analysis)
    yield f"digraph {_quoted(graph.graph['name'])} {{\n"
    yield '  node [shape=box, fontname="sans-serif"];\n  edge [fontname="sans-serif"];\n'
    for node, facts in graph.nodes(data=True):
        yield f"  {node} [{_attributes(facts, _node_label(facts))}];\n"
    for source, target, facts in graph.edges(data=True):
        yield f"  {source} -> {target} [{_attributes(facts, _edge_label(facts))}];\n"
    yield "}\n"


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
