"""From a ModelProto to a graph that passes can change, and back.

Source: onnxruntime/core/graph/graph.cc, the constructor that takes a GraphProto: Constant nodes
become initializers and get no index, and the types in ``value_info`` stay. Default attributes are
not stored here; ``matching.stated`` looks them up.
"""

import json
from collections.abc import Iterable, Mapping

import onnx
import onnx.defs

from onnxmem.model.constants import constant_tensor
from onnxmem.model.traversal import opset_versions, outer_reads
from onnxmem.runtimes.onnxruntime.optimizer.graph import (
    Graph,
    Node,
    TensorType,
    execution_order,
    read_type,
    write_type,
)


def read_model(model: onnx.ModelProto) -> Graph:
    """Read a model whose nodes are in topological order."""
    graph = Graph(model.graph.name, opset_versions(model), model.ir_version)
    return read_graph(model.graph, graph)


def read_graph(proto: onnx.GraphProto, graph: Graph) -> Graph:
    """Fill an empty graph from a GraphProto."""
    graph.inputs = [value.name for value in proto.input]
    graph.outputs = [value.name for value in proto.output]
    # Inputs last: one that is listed elsewhere too has the type that it is declared with.
    for value in (*proto.value_info, *proto.output, *proto.input):
        known = read_type(value.type)
        if known is not None:
            graph.types[value.name] = known
    for tensor in proto.initializer:
        _add_stored(graph, tensor)
    # A Constant becomes an initializer when the graph is loaded (``Graph::Graph`` in
    # core/graph/graph.cc), so it is never a node.
    nodes = []
    for node in proto.node:
        constant = constant_tensor(node)
        if constant is None:
            nodes.append(node)
        else:
            tensor = onnx.TensorProto()
            tensor.CopyFrom(constant)
            tensor.name = node.output[0]
            _add_stored(graph, tensor)
    for node in nodes:
        graph.insert(read_node(node, graph))
    return graph


def _add_stored(graph: Graph, tensor: onnx.TensorProto) -> None:
    """Add an initializer; if it is a graph input too, the declared type of the input stays."""
    known = graph.types.get(tensor.name)
    graph.add_initializer(tensor)
    if isinstance(known, TensorType) and tensor.name in graph.inputs:
        graph.types[tensor.name] = known


def read_node(node: onnx.NodeProto, graph: Graph) -> Node:
    """Read a node of a graph; it gets its index when it is inserted."""
    read = Node(
        index=-1,
        op_type=node.op_type,
        domain=node.domain,
        since_version=since_version(node.op_type, node.domain, graph.opsets),
        name=node.name,
        inputs=list(node.input),
        outputs=list(node.output),
    )
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            inner = Graph(
                attribute.g.name,
                graph.opsets,
                graph.ir_version,
                graph,
                graph.cpu,
                graph.provider,
            )
            read.bodies[attribute.name] = read_graph(attribute.g, inner)
            # A set has no order; names are sorted so that a graph is read the same way in every
            # process.
            read.implicit.extend(
                name for name in sorted(outer_reads(attribute.g)) if name not in read.implicit
            )
        else:
            read.attributes[attribute.name] = attribute
    return read


def since_version(op_type: str, domain: str, opsets: Mapping[str, int]) -> int:
    """The version of an operator in a model's operator sets; 0 if ONNX has no such operator."""
    try:
        schema = onnx.defs.get_schema(op_type, opsets.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return 1 if domain or op_type in _OWN_OPERATORS else 0
    return int(schema.since_version)


_OWN_OPERATORS = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})
"""Operators that onnxruntime adds to ONNX's domain in every version."""


def write_model(graph: Graph, model: onnx.ModelProto) -> onnx.ModelProto:
    """Write a graph in execution order; the fields around it come from ``model``."""
    written = onnx.ModelProto(ir_version=model.ir_version, producer_name=model.producer_name)
    written.opset_import.extend(model.opset_import)
    known = {entry.domain for entry in written.opset_import}
    used = {node.domain for inner in graph.graphs() for node in inner.nodes.values()}
    for domain in sorted(used - known):
        written.opset_import.add(domain=domain, version=1)
    written.graph.CopyFrom(write_graph(graph))
    return written


INDEX = "onnxmem.index"
"""Key of a node's index in its ``metadata_props``: kernels pack weights in the order of indices."""
HOST = "onnxmem.host"
"""Key of the values in the host's memory in a graph's ``metadata_props``: a list in JSON."""


def write_graph(graph: Graph) -> onnx.GraphProto:
    """Write one graph with the known types of its values."""
    proto = onnx.GraphProto(name=graph.name)
    proto.input.extend(_values(graph, graph.inputs))
    proto.output.extend(_values(graph, graph.outputs))
    proto.initializer.extend(graph.initializers.values())
    order = execution_order(graph)
    for node in order:
        proto.node.append(write_node(node))
        proto.node[-1].metadata_props.add(key=INDEX, value=str(node.index))
    if graph.host:
        proto.metadata_props.add(key=HOST, value=json.dumps(sorted(graph.host)))
    ends = {*graph.inputs, *graph.outputs}
    inner = [name for node in order for name in node.outputs if name and name not in ends]
    proto.value_info.extend(_values(graph, [name for name in inner if name in graph.types]))
    return proto


def _values(graph: Graph, names: Iterable[str]) -> list[onnx.ValueInfoProto]:
    values = []
    for name in names:
        value = onnx.ValueInfoProto(name=name)
        known = graph.type_of(name)
        if known is not None:
            value.type.CopyFrom(write_type(known))
        values.append(value)
    return values


def write_node(node: Node) -> onnx.NodeProto:
    """Write one node with its subgraphs."""
    proto = onnx.NodeProto(
        op_type=node.op_type,
        domain=node.domain,
        name=node.name,
        input=node.inputs,
        output=node.outputs,
    )
    proto.attribute.extend(node.attributes.values())
    for name, body in node.bodies.items():
        attribute = proto.attribute.add(name=name, type=onnx.AttributeProto.GRAPH)
        attribute.g.CopyFrom(write_graph(body))
    return proto
