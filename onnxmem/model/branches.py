"""The graph without the branches of If that do not run."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from onnxmem.model.constants import Array
from onnxmem.model.graph import Graph, Node, Role, Tensor

_MADE = frozenset({Role.ACTIVATION, Role.BODY_INPUT})


def without_idle_branches(graph: Graph, values: Mapping[str, Array]) -> Graph:
    """Leave out what a branch makes that a known condition rules out.

    ``values`` are elements of the top-level graph's tensors. The branch's weights stay, as a
    session loads them, and so do the tensors that it would have read: the runtime's plan keeps them
    up to the If (``allocation_planner.cc`` counts a node's implicit inputs, of whichever branch).
    """
    idle: set[str] = set()
    nodes = _running(graph, values, idle)
    if not idle:
        return graph
    tensors = {
        name: tensor
        for name, tensor in graph.tensors.items()
        if name not in idle or tensor.role not in _MADE
    }
    return _with_tensors(replace(graph, nodes=nodes), tensors)


def _running(graph: Graph, values: Mapping[str, Array], idle: set[str]) -> tuple[Node, ...]:
    """The nodes with the branches that may run; enters what the others make."""
    nodes = []
    for node in graph.nodes:
        if not node.subgraphs:
            nodes.append(node)
            continue
        branch = _branch(node, values)
        kept = []
        for attribute, inner in node.subgraphs:
            if branch in {None, attribute}:
                body = replace(inner, nodes=_running(inner, values, idle))
                kept.append((attribute, body))
            else:
                idle.update(_made(inner))
        nodes.append(replace(node, subgraphs=tuple(kept)))
    return tuple(nodes)


def _branch(node: Node, values: Mapping[str, Array]) -> str | None:
    """The attribute of the branch that runs, where the condition is known."""
    if node.onnx_op != "If" or node.inputs[0] not in values:
        return None
    condition = values[node.inputs[0]]
    if condition.size != 1:
        return None
    return "then_branch" if condition.item() else "else_branch"


def _made(graph: Graph) -> Iterator[str]:
    """All that the nodes of a graph and of those inside make, and what these are handed."""
    for node in graph.all_nodes():
        yield from node.writes
        for _, inner in node.subgraphs:
            yield from inner.inputs


def _with_tensors(graph: Graph, tensors: Mapping[str, Tensor]) -> Graph:
    nodes = tuple(
        replace(
            node, subgraphs=tuple((name, _with_tensors(g, tensors)) for name, g in node.subgraphs)
        )
        if node.subgraphs
        else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes, tensors=tensors)
