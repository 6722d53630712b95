"""Types of a graph's values, inferred node by node and merged with what was known before.

Source: onnxruntime/core/graph/graph.cc, ``Graph::Resolve``, ``InferAndVerifyTypeMatch`` and
``SaveShapeValuesFromDataPropagation``.
"""

from collections.abc import Mapping

import onnx

from onnxmem.runtimes.onnxruntime.optimizer.graph import INPUTS_MAY_OVERRIDE, Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.order import execution_order
from onnxmem.runtimes.onnxruntime.optimizer.reading import write_node
from onnxmem.runtimes.onnxruntime.optimizer.shapes.asking import onnx_types
from onnxmem.runtimes.onnxruntime.optimizer.shapes.control_flow import control_flow_types
from onnxmem.runtimes.onnxruntime.optimizer.shapes.propagation import propagate
from onnxmem.runtimes.onnxruntime.optimizer.shapes.runtime.operators import runtime_types
from onnxmem.runtimes.onnxruntime.optimizer.value_types import (
    ValueType,
    merged_type,
    write_type,
)


def resolve(graph: Graph) -> None:
    """Drop constants that nothing reads, and infer what changed since the last time."""
    _drop_unused_initializers(graph)
    for node in execution_order(graph):
        infer_node(graph, node)


def _drop_unused_initializers(graph: Graph) -> None:
    """Source: ``Graph::CleanUnusedInitializersAndNodeArgs``; one that is an input too may stay."""
    used = _used_names(graph)
    unused = {name for name in graph.initializers if name not in used}
    if graph.ir_version >= INPUTS_MAY_OVERRIDE:
        unused.difference_update(graph.inputs)
    for name in unused:
        graph.drop_initializer(name)
    graph.inputs = [name for name in graph.inputs if name not in unused]


def _used_names(graph: Graph) -> set[str]:
    used = {*graph.outputs}
    for node in graph.nodes.values():
        if node.bodies:
            graph.set_implicit(node, _outer_reads(node))
        used.update(node.inputs, node.implicit)
    return used


def _outer_reads(node: Node) -> list[str]:
    """Values from around that a node's subgraphs read, in a stable order."""
    read: dict[str, None] = {}
    for body in node.bodies.values():
        for inner in body.nodes.values():
            if inner.bodies:
                body.set_implicit(inner, _outer_reads(inner))
            read.update(dict.fromkeys(n for n in (*inner.inputs, *inner.implicit) if n))
        read.update(dict.fromkeys(body.outputs))
        for name in [name for name in read if body.has_value(name)]:
            del read[name]
    return list(read)


def infer_node(graph: Graph, node: Node) -> None:
    """Merge what inference says of a node's outputs into what is known of them."""
    types = {name: graph.type_of(name) for name in node.inputs if name}
    told = _told(graph, node, types)
    if node.bodies:
        found = control_flow_types(graph, node, resolve)
    elif told == node.seen:
        return
    else:
        node.seen = told
        found = _inferred(graph, node, types)
    for name, inferred in found.items():
        known = merged_type(inferred, graph.types.get(name))
        if known is not None:
            graph.types[name] = known
    propagate(graph, node)


def _told(graph: Graph, node: Node, types: Mapping[str, ValueType | None]) -> object:
    constants = tuple(id(graph.array(name)) for name in node.inputs if name)
    values = tuple(graph.shape_values.get(name) for name in node.inputs)
    known = tuple(
        t.SerializeToString() if isinstance(t, onnx.TypeProto) else t for t in types.values()
    )
    attributes = tuple((name, id(value)) for name, value in node.attributes.items())
    return (tuple(node.inputs), tuple(node.outputs), known, constants, values, attributes)


def _inferred(
    graph: Graph, node: Node, types: Mapping[str, ValueType | None]
) -> dict[str, ValueType]:
    found = runtime_types(graph, node)
    if found is not None:
        return found
    proto = write_node(node)
    return onnx_types(graph, proto, {n: write_type(t) for n, t in types.items() if t is not None})
