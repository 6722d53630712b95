"""The order in which onnxruntime runs the nodes of a graph.

Source: ``core/graph/graph_viewer.cc`` (the constructor) and ``Graph::ReverseDFSFrom`` of
``core/graph/graph.cc``: a depth-first walk from the leaves up to the producers, a node after all
that it reads. Leaves are taken last index first, and at each node the producer with the highest
index first.
"""

from onnxmem.model import Graph, Node
from onnxmem.runtimes.ideal.schedule.walks import reverse_dfs
from onnxmem.runtimes.onnxruntime.allocation.planning import runs, uses


def in_running_order(graph: Graph) -> tuple[Node, ...]:
    """The nodes of a graph, whose present order gives their indices, as onnxruntime runs them."""
    nodes = [node for node in graph.nodes if runs(node)]
    maker = {name: place for place, node in enumerate(nodes) for name in node.writes}
    producers = [sorted({maker[name] for name in uses(node) if name in maker}) for node in nodes]
    read = {place for places in producers for place in places}
    leaves = [place for place in range(len(nodes)) if place not in read]
    return tuple(nodes[place] for place in reverse_dfs(leaves, producers))
