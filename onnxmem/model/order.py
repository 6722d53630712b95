"""Nodes in an order that can run.

The file's order stays where it can run. Otherwise networkx sorts the nodes, keeping to the file's
order as far as the edges allow, and names a cycle where there is one.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import onnx

from onnxmem.errors import GraphError
from onnxmem.model.traversal import given_names, node_label, outer_reads, subgraphs

if TYPE_CHECKING:
    import networkx as nx

_NEXT_STEP = "; export the model again"
_LONGEST_CYCLE = 8
"""Nodes of a cycle that its message names."""


class _Step(NamedTuple):
    """One node as the order sees it."""

    node: onnx.NodeProto
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @property
    def label(self) -> str:
        """The node's name in a message."""
        return node_label(self.node)


def sort_nodes(graph: onnx.GraphProto, outer: Collection[str] = frozenset()) -> bool:
    """Put the nodes of a graph and its subgraphs into an order that can run, in place.

    ``outer`` holds the names that an enclosing graph offers. True if any node had to move.

    :raises GraphError: a cycle, or a tensor that is defined twice or not at all; it names both the
        tensor and the node.
    """
    steps = [_step(node) for node in graph.node]
    given = given_names(graph)
    producer = _producers(steps, given)
    _refuse_undefined(graph, steps, (producer, given, outer))
    order = _running_order(steps, producer)
    moved = order != list(range(len(steps)))
    if moved:
        nodes = [graph.node[place] for place in order]
        del graph.node[:]
        graph.node.extend(nodes)
    bodies = [inner for node in graph.node if node.attribute for _, inner in subgraphs(node)]
    offered = {*outer, *given, *producer} if bodies else ()
    for inner in bodies:
        moved |= sort_nodes(inner, offered)
    return moved


def _step(node: onnx.NodeProto) -> _Step:
    reads = [*filter(None, node.input)]
    for _, inner in subgraphs(node) if node.attribute else ():
        reads.extend(sorted(outer_reads(inner)))
    return _Step(node, tuple(reads), tuple(filter(None, node.output)))


def _producers(steps: Sequence[_Step], given: set[str]) -> dict[str, int]:
    """Map each tensor to the node that makes it; one that is made twice is refused."""
    producer: dict[str, int] = {}
    for place, step in enumerate(steps):
        for name in step.writes:
            if name in producer or name in given:
                before = name in producer
                first = (
                    f"node {steps[producer[name]].label}" if before else "an input or initializer"
                )
                message = f"tensor {name!r} is defined twice: by {first} and by node {step.label}"
                raise GraphError(message + _NEXT_STEP)
            producer[name] = place
    return producer


def _refuse_undefined(
    graph: onnx.GraphProto, steps: Sequence[_Step], known: Sequence[Collection[str]]
) -> None:
    made, *others = known
    for step in steps:
        for name in step.reads:
            if name not in made and not any(name in names for names in others):
                message = f"node {step.label} reads tensor {name!r}, which nothing defines"
                raise GraphError(message + _NEXT_STEP)
    for value in graph.output:
        if not any(value.name in names for names in known):
            message = f"graph output {value.name!r} is a tensor that no node defines"
            raise GraphError(message + _NEXT_STEP)


def _running_order(steps: Sequence[_Step], producer: dict[str, int]) -> list[int]:
    """Order the nodes so that each follows what it reads; the file's order where that runs."""
    in_file_order = all(
        producer.get(name, -1) < place for place, step in enumerate(steps) for name in step.reads
    )
    if in_file_order:
        return list(range(len(steps)))
    # networkx takes as long to import as numpy, and most files stand in an order that runs.
    import networkx as nx  # noqa: PLC0415

    edges: nx.DiGraph[int] = nx.DiGraph()
    edges.add_nodes_from(range(len(steps)))
    edges.add_edges_from(
        (producer[name], place)
        for place, step in enumerate(steps)
        for name in step.reads
        if name in producer
    )
    try:
        return list(nx.lexicographical_topological_sort(edges))
    except nx.NetworkXUnfeasible:
        raise GraphError(_cycle_text(edges, steps)) from None


def _cycle_text(edges: "nx.DiGraph[int]", steps: Sequence[_Step]) -> str:
    """Name the nodes of one cycle and the tensor that closes it."""
    import networkx as nx  # noqa: PLC0415 - as above

    cycle = [edge[0] for edge in nx.find_cycle(edges)]
    closing = next(name for name in steps[cycle[0]].reads if name in steps[cycle[-1]].writes)
    labels = [steps[place].label for place in cycle]
    if len(labels) > _LONGEST_CYCLE:
        labels[_LONGEST_CYCLE - 1 : -1] = [f"... ({len(labels) - _LONGEST_CYCLE} more)"]
    path = " -> ".join((*labels, labels[0]))
    return f"the graph has a cycle, closed by tensor {closing!r}: {path}{_NEXT_STEP}"
