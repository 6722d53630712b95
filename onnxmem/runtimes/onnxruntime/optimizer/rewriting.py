"""Adding, removing and replacing nodes of a graph.

Source: onnxruntime/core/graph/graph_utils.cc (``CanRemoveNode``, ``RemoveNode``,
``FinalizeNodeFusion``, ``ReplaceDownstreamNodeInput``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.numpy_helper

from onnxmem.model.constants import Array
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import MICROSOFT, num_input_edges
from onnxmem.runtimes.onnxruntime.optimizer.reading import since_version


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node that a pass adds; the graph gives it an index and a version."""

    op_type: str
    inputs: Sequence[str]
    outputs: Sequence[str] = ()
    domain: str = ""
    name: str = ""
    attributes: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)


def add_node(graph: Graph, new: NewNode) -> Node:
    """Add a node to a graph; its index is higher than those of all nodes before it."""
    return graph.insert(
        Node(
            index=-1,
            op_type=new.op_type,
            domain=new.domain,
            since_version=since_version(new.op_type, new.domain, graph.opsets),
            name=new.name,
            inputs=list(new.inputs),
            outputs=list(new.outputs),
            attributes=dict(new.attributes),
        )
    )


def swap_operator(graph: Graph, node: Node, op_type: str) -> Node:
    """Replace a node by one of com.microsoft with the same inputs, outputs and attributes.

    Source: ``SwapNodeOpTypeDomainAndSinceVersion`` in ort_transpose_optimization.cc.
    """
    name = graph.fresh_node_name(node.name)
    added = add_node(
        graph, NewNode(op_type, list(node.inputs), (), MICROSOFT, name, dict(node.attributes))
    )
    outputs = list(node.outputs)
    graph.remove(node)
    graph.set_outputs(added, outputs)
    return added


def fuse_into_next(graph: Graph, first: Node, second: Node) -> None:
    """Remove the second node and give its outputs to the first.

    Source: ``FinalizeNodeFusion`` of two nodes.
    """
    # A value has one producer, so the second node goes before the first writes its outputs.
    outputs = list(second.outputs)
    graph.remove(second)
    graph.set_outputs(first, outputs)


def replace_chain(graph: Graph, nodes: Sequence[Node], replacement: Node) -> None:
    """Remove several nodes and give the outputs of the last one to a new node.

    Source: ``FinalizeNodeFusion`` with a replacement node.
    """
    outputs = list(nodes[-1].outputs)
    for node in dict.fromkeys(nodes):
        graph.remove(node)
    graph.set_outputs(replacement, outputs)


def redirect(graph: Graph, old: str, new: str) -> None:
    """Make every node that reads one value read another, also in subgraphs."""
    for reader in graph.readers(old):
        if old in reader.inputs:
            graph.set_inputs(reader, [new if name == old else name for name in reader.inputs])
        if old in reader.implicit:
            for body in reader.bodies.values():
                _redirect_outer(body, old, new)
            graph.set_implicit(reader, [new if name == old else name for name in reader.implicit])


def _redirect_outer(body: Graph, old: str, new: str) -> None:
    # A value of the body with the same name hides the outer one.
    if body.has_value(old):
        return
    body.outputs = [new if name == old else name for name in body.outputs]
    redirect(body, old, new)


def can_remove(graph: Graph, node: Node) -> bool:
    """Whether a node can be bypassed (``CanRemoveNode``).

    It must have one input to forward, at most one output that is read, and no graph output; and no
    subgraph that reads the output may have a value of its own with the input's name.
    """
    used = {edge.output for edge in graph.edges_of(node)}
    if len(used) > 1 or graph.is_output(node):
        return False
    source = _forwarded_input(graph, node)
    if source is None:
        return False
    return not any(_is_shadowed(graph, node.outputs[index], source) for index in used)


def bypass(graph: Graph, node: Node) -> bool:
    """Remove a node that ``can_remove`` accepts; its readers read its input (``RemoveNode``)."""
    source = _forwarded_input(graph, node)
    if source is None:
        return False
    for name in node.outputs:
        if name:
            redirect(graph, name, source)
    graph.remove(node)
    return True


def _forwarded_input(graph: Graph, node: Node) -> str | None:
    """The only input that a node produces, or the only input if no node produces one."""
    if num_input_edges(graph, node) == 1:
        return next(name for name in node.inputs if name in graph.producers)
    if num_input_edges(graph, node) == 0 and len(node.inputs) == 1:
        return node.inputs[0]
    return None


def _is_shadowed(graph: Graph, name: str, source: str) -> bool:
    """Whether a subgraph that reads a value would read its own value under the new name."""
    return any(
        inner.has_value(source)
        for reader in graph.readers(name)
        if name in reader.implicit
        for body in reader.bodies.values()
        for inner in body.graphs()
    )


def remove_upwards(graph: Graph, start: Node) -> None:
    """Remove a node that is read at most once, and the ancestors that only it reads.

    Source: ``RemoveNodesWithOneOutputBottomUp``.
    """
    # Edges are counted before the reader is removed: a producer with one edge has no other reader.
    queue = [start]
    while queue:
        node = queue.pop(0)
        is_here = graph.nodes.get(node.index) is node
        if not is_here or graph.is_output(node) or graph.num_edges(node) > 1:
            continue
        above = [graph.producers[name] for name in node.inputs if name in graph.producers]
        queue.extend(producer for producer in above if graph.num_edges(producer) == 1)
        graph.remove(node)


def add_array(graph: Graph, name: str, values: Array) -> str:
    """Add a constant with known elements."""
    return graph.add_initializer(onnx.numpy_helper.from_array(np.asarray(values), name))


def add_absent(graph: Graph, name: str, elem_type: int, dims: Sequence[int]) -> str:
    """Add a constant whose elements are unknown: it has a type and dims, and no data."""
    return graph.add_initializer(onnx.TensorProto(name=name, data_type=elem_type, dims=dims))


def replace_by_constant(graph: Graph, node: Node, name: str) -> bool:
    """Make the readers of a node's output read a constant, and remove the node.

    Source: ``CanReplaceNodeWithInitializer`` and ``ReplaceNodeWithInitializer``.
    """
    used = {edge.output for edge in graph.edges_of(node)}
    if len(used) > 1 or graph.is_output(node):
        return False
    read = [node.outputs[index] for index in used]
    if any(_is_shadowed(graph, old, name) for old in read):
        return False
    for old in read:
        redirect(graph, old, name)
    graph.remove(node)
    return True
