"""Nodes in an order that can run.

The file's order stays where it can run. Otherwise networkx sorts the nodes, keeping to the file's
order as far as the edges allow, and names a cycle where there is one.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx

from onnxmem.errors import GraphError
from onnxmem.model.columns import Columns, columns_of
from onnxmem.model.traversal import given_names, node_label, outer_reads

if TYPE_CHECKING:
    import networkx as nx

_NEXT_STEP = "; export the model again"
_LONGEST_CYCLE = 8
"""Nodes of a cycle that its message names."""


def sort_nodes(graph: onnx.GraphProto, outer: Collection[str] = frozenset()) -> bool:
    """Put the nodes of a graph and its subgraphs into an order that can run, in place.

    ``outer`` holds the names that an enclosing graph offers. True if any node had to move.

    :raises GraphError: a cycle, or a tensor that is defined twice or not at all; it names both the
        tensor and the node.
    """
    return sort_columns(graph, columns_of(graph), outer)


def sort_columns(
    graph: onnx.GraphProto, columns: Columns, outer: Collection[str] = frozenset()
) -> bool:
    """The same of a graph whose columns are at hand: they are of the order before."""
    steps = _steps(columns)
    given = given_names(graph)
    producer = _producers(steps, given)
    _refuse_undefined(graph, steps, (producer, given, outer))
    order = _running_order(steps, producer)
    moved = order != list(range(len(order)))
    if moved:
        nodes = [steps.nodes[place] for place in order]
        del graph.node[:]
        graph.node.extend(nodes)
    bodies = columns_of(graph).bodies if moved else columns.bodies
    offered = {*outer, *given, *producer} if bodies else ()
    for _, inner in (body for place in sorted(bodies) for body in bodies[place]):
        moved |= sort_nodes(inner, offered)
    return moved


def _steps(columns: Columns) -> Columns:
    """The columns with what is read inside a node among what it reads."""
    if not columns.bodies:
        return columns
    reads = list(columns.inputs)
    for place, bodies in columns.bodies.items():
        inside = (name for _, inner in bodies for name in sorted(outer_reads(inner)))
        reads[place] = [*reads[place], *inside]
    return replace(columns, inputs=reads)


def _producers(steps: Columns, given: set[str]) -> dict[str, int]:
    """Map each tensor to the node that makes it; one that is made twice is refused."""
    producer: dict[str, int] = {}
    for place, names in enumerate(steps.outputs):
        for name in names:
            if name and (name in producer or name in given):
                before = name in producer
                first = (
                    f"node {node_label(steps.nodes[producer[name]])}"
                    if before
                    else "an input or initializer"
                )
                node = node_label(steps.nodes[place])
                message = f"tensor {name!r} is defined twice: by {first} and by node {node}"
                raise GraphError(message + _NEXT_STEP)
            if name:
                producer[name] = place
    return producer


def _refuse_undefined(
    graph: onnx.GraphProto, steps: Columns, known: Sequence[Collection[str]]
) -> None:
    undefined = {name for names in steps.inputs for name in names}.difference({""}, *known)
    if undefined:
        reads = ((place, name) for place, names in enumerate(steps.inputs) for name in names)
        place, name = next(read for read in reads if read[1] in undefined)
        message = (
            f"node {node_label(steps.nodes[place])} reads tensor {name!r}, which nothing defines"
        )
        raise GraphError(message + _NEXT_STEP)
    for value in graph.output:
        if not any(value.name in names for names in known):
            message = f"graph output {value.name!r} is a tensor that no node defines"
            raise GraphError(message + _NEXT_STEP)


def _running_order(steps: Columns, producer: dict[str, int]) -> list[int]:
    """Order the nodes so that each follows what it reads; the file's order where that runs."""
    if _runs_in_file_order(steps, producer):
        return list(range(len(steps.nodes)))
    # networkx takes as long to import as numpy, and most files stand in an order that runs.
    import networkx as nx

    edges: nx.DiGraph[int] = nx.DiGraph()
    edges.add_nodes_from(range(len(steps.nodes)))
    edges.add_edges_from(
        (producer[name], place)
        for place, names in enumerate(steps.inputs)
        for name in names
        if name in producer
    )
    try:
        return list(nx.lexicographical_topological_sort(edges))
    except nx.NetworkXUnfeasible:
        raise GraphError(_cycle_text(edges, steps)) from None


def _runs_in_file_order(steps: Columns, producer: dict[str, int]) -> bool:
    for place, names in enumerate(steps.inputs):
        for name in names:
            if producer.get(name, -1) >= place:
                return False
    return True


def _cycle_text(edges: "nx.DiGraph[int]", steps: Columns) -> str:
    """Name the nodes of one cycle and the tensor that closes it."""
    import networkx as nx

    cycle = [edge[0] for edge in nx.find_cycle(edges)]
    written = {*steps.outputs[cycle[-1]]} - {""}
    closing = next(name for name in steps.inputs[cycle[0]] if name in written)
    labels = [node_label(steps.nodes[place]) for place in cycle]
    if len(labels) > _LONGEST_CYCLE:
        labels[_LONGEST_CYCLE - 1 : -1] = [f"... ({len(labels) - _LONGEST_CYCLE} more)"]
    path = " -> ".join((*labels, labels[0]))
    return f"the graph has a cycle, closed by tensor {closing!r}: {path}{_NEXT_STEP}"
