"""Nodes that onnxruntime orders in another way in every session, as addresses fall.

core/optimizer/nchwc_transformer.cc: ``NchwcTransformerImpl::Finalize`` adds the ReorderOutput nodes
in the order of a table by address, so which of them has the higher index is chance. The order of
execution (``optimiser.order``) asks for that among the parents of one node, and among the nodes
that nobody reads.
"""

from collections.abc import Iterator
from typing import Final

from onnxmem.errors import Finding, listed
from onnxmem.model.graph import Graph, Node

_NCHWC: Final = "com.microsoft.nchwc"


def varying_order(graph: Graph) -> Iterator[Finding]:
    """A finding where the order of execution is one of several; ``graph`` has level ``all``."""
    graphs = (graph, *(body for node in graph.all_nodes() for _, body in node.subgraphs))
    names = list(dict.fromkeys(name for each in graphs for name in _varying(each)))
    if names:
        text = "onnxruntime runs nodes in another order in every session, as addresses fall, and"
        yield Finding("order_varies", f"{text} the figures are of one of them: {listed(names)}")


def _varying(graph: Graph) -> Iterator[str]:
    """Names of the nodes that change places."""
    makers = {node.outputs[0]: node for node in graph.nodes if _is_reordering(node)}
    read = {name for node in graph.nodes for name in node.reads}
    groups = [list(dict.fromkeys(filter(makers.get, node.reads))) for node in graph.nodes]
    groups.append([name for name in makers if name not in read])
    for group in groups:
        if len(group) > 1:
            yield from (makers[name].name for name in group)


def _is_reordering(node: Node) -> bool:
    return (node.domain, node.op_type) == (_NCHWC, "ReorderOutput")
