"""Each reader of a DequantizeLinear gets one of its own, so that QDQ units do not overlap.

Source: onnxruntime/core/optimizer/qdq_transformer/ensure_unique_dq_for_node_unit.cc. It runs at
every optimisation level, before all others.
"""

from onnxmem.runtimes.onnxruntime.optimizer.graph import Edge, Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node

_DOMAINS = ("", "com.microsoft")


def separate_units(graph: Graph) -> bool:
    """Duplicate shared DequantizeLinear nodes; true if there were any."""
    changed: list[bool] = []
    for node in walk(graph, separate_units, changed):
        if node.op_type == "DequantizeLinear" and node.domain in _DOMAINS:
            changed.extend(_duplicated(graph, node, edge) for edge in _extra_edges(graph, node))
    return any(changed)


def _extra_edges(graph: Graph, node: Node) -> list[Edge]:
    """The uses that want a duplicate: all but one, or all where the original must stay apart."""
    edges = graph.edges_of(node)
    is_output = graph.is_output(node)
    if not edges or (len(edges) == 1 and not is_output):
        return []
    explicit = [edge for edge in edges if edge.input < len(edge.reader.inputs)]
    stays_apart = is_output or len(explicit) < len(edges)
    return explicit if stays_apart else explicit[1:]


def _duplicated(graph: Graph, node: Node, edge: Edge) -> bool:
    name = graph.fresh_name(f"{node.outputs[0]}/duplicated")
    add_node(
        graph,
        NewNode(
            node.op_type,
            list(node.inputs),
            [name],
            node.domain,
            graph.fresh_node_name(f"{node.name}/duplicated"),
            dict(node.attributes),
        ),
    )
    graph.set_input(edge.reader, edge.input, name)
    return True
