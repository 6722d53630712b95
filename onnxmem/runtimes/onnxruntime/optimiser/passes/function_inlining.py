"""Operators without a kernel give way to the nodes of their function body.

Source: onnxruntime/core/framework/graph_partitioner.cc (``InlineNodes``) and
``Graph::InlineFunctionProto`` in graph.cc. It happens at every level, between the basic and the
extended one, when nodes are given to providers.
"""

import onnx
import onnx.defs

from onnxmem.model.constants import constant_tensor
from onnxmem.runtimes.onnxruntime.optimiser.attributes import stated
from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimiser.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimiser.reading import read_node, write_node
from onnxmem.runtimes.onnxruntime.optimiser.shapes import resolve
from onnxmem.runtimes.onnxruntime.optimiser.value_types import write_type

_MAX_DEPTH = 10
"""A function's body may hold functions again."""


def inline_functions(graph: Graph) -> bool:
    """Write out what no kernel runs, again and again; true if anything was."""
    changed = False
    for inner in list(graph.graphs())[1:]:
        changed |= _inline_all(inner)
    for _ in range(_MAX_DEPTH):
        if not _inline_all(graph):
            break
        changed = True
        resolve(graph)
    return changed


def _inline_all(graph: Graph) -> bool:
    wanted = [node for node in graph.nodes.values() if not has_kernel(graph, node)]
    bodies = [(node, _body(graph, node)) for node in wanted]
    for node, body in bodies:
        if body is not None:
            _inline(graph, node, body)
    return any(body is not None for _, body in bodies)


def _body(graph: Graph, node: Node) -> onnx.FunctionProto | None:
    """The function body that ONNX gives a node for the types of its inputs."""
    try:
        schema = onnx.defs.get_schema(node.op_type, node.since_version, node.domain)
        text = _written_body(graph, node, schema)
    except (onnx.defs.SchemaError, ValueError, RuntimeError):
        return None
    return None if text is None else onnx.FunctionProto.FromString(text)


def _written_body(graph: Graph, node: Node, schema: onnx.defs.OpSchema) -> bytes | None:
    """The newest body that the model's operator set allows, which may depend on types."""
    opset = graph.opsets.get(node.domain, 1)
    usable = [v for v in schema.function_opset_versions if v <= opset]  # type: ignore[attr-defined]
    if usable:
        return bytes(schema.get_function_with_opset_version(max(usable)))  # type: ignore[attr-defined]
    usable = [v for v in schema.context_dependent_function_opset_versions if v <= opset]  # type: ignore[attr-defined]
    if not usable:
        return None
    types = [
        b"" if known is None else write_type(known).SerializeToString()
        for known in (graph.type_of(name) for name in node.inputs)
    ]
    call = write_node(node).SerializeToString()
    return bytes(schema.get_context_dependent_function_with_opset_version(max(usable), call, types))  # type: ignore[attr-defined]


def _inline(graph: Graph, node: Node, body: onnx.FunctionProto) -> None:
    prefix = graph.fresh_node_name(f"_inlfunc_{node.op_type}")
    names = dict(zip(body.input, node.inputs, strict=False))
    names.update(zip(body.output, node.outputs, strict=False))
    graph.remove(node)
    for inner in body.node:
        proto = _bound(inner, node)
        for name in (*proto.input, *proto.output):
            if name and name not in names:
                names[name] = f"{prefix}_{name}"
        for place, name in enumerate(proto.input):
            proto.input[place] = names.get(name, "")
        for place, name in enumerate(proto.output):
            proto.output[place] = names.get(name, "")
        constant = constant_tensor(proto)
        if constant is None:
            graph.insert(read_node(proto, graph))
        else:
            tensor = onnx.TensorProto()
            tensor.CopyFrom(constant)
            tensor.name = proto.output[0]
            graph.add_initializer(tensor)


def _bound(inner: onnx.NodeProto, call: Node) -> onnx.NodeProto:
    """A body's node with the attributes of the call in the place of references to them."""
    proto = onnx.NodeProto()
    proto.CopyFrom(inner)
    kept = []
    for attribute in proto.attribute:
        if not attribute.ref_attr_name:
            kept.append(attribute)
            continue
        known = stated(call, attribute.ref_attr_name)
        if known is not None:
            given = onnx.AttributeProto()
            given.CopyFrom(known)
            given.name = attribute.name
            kept.append(given)
    made = [onnx.AttributeProto.FromString(attribute.SerializeToString()) for attribute in kept]
    del proto.attribute[:]
    proto.attribute.extend(made)
    return proto
