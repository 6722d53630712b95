"""Inlining of functions without a kernel, and of the branch of an If with a constant condition."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, cast

import onnx
import onnx.defs

from onnxmem.model.constants import constant_tensor
from onnxmem.model.traversal import input_and_initializer_names, subgraphs
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node, execution_order, write_type
from onnxmem.runtimes.onnxruntime.optimizer.matching import has_kernel, stated
from onnxmem.runtimes.onnxruntime.optimizer.reading import read_node, write_node
from onnxmem.runtimes.onnxruntime.optimizer.shape_inference import resolve

# --------------------------------------------------------------------------------------------------
# Nodes without a kernel are replaced by the nodes of their function body.
#
# onnxruntime/core/framework/graph_partitioner.cc (``InlineNodes``, ``InlineFunctionsAOT``) and
# ``Graph::InlineFunctionProto`` in graph.cc. It happens at every level: between the basic and the
# extended one, when nodes are assigned to providers, and before the basic level too if the model
# has local functions.


Functions = Mapping[tuple[str, str], onnx.FunctionProto]
"""Local functions by domain and name."""
_MAX_DEPTH = 10
"""A function's body may call functions again."""


class _Bodies(Protocol):
    """Members of a schema that onnx's stubs lack."""

    function_opset_versions: Sequence[int]
    context_dependent_function_opset_versions: Sequence[int]

    def get_function_with_opset_version(self, version: int, /) -> bytes: ...

    def get_context_dependent_function_with_opset_version(
        self, version: int, call: bytes, types: list[bytes], /
    ) -> bytes: ...


def inline_functions(graph: Graph) -> bool:
    """Inline nodes without a kernel until all that remain have one or no function body."""
    changed = False
    for inner in list(graph.graphs())[1:]:
        changed |= _inline_all(inner)
    for _ in range(_MAX_DEPTH):
        if not _inline_all(graph):
            break
        changed = True
        resolve(graph)
    return changed


def inline_ahead(graph: Graph, functions: Functions) -> None:
    """Inline the calls of local functions before any pass, and other nodes without a kernel."""
    # Each round inlines the calls of all graphs, breadth first: indices decide the order of
    # execution, and the nodes of a body get higher ones than all nodes that were there before.
    while functions:
        changed = [_inline_all(inner, functions) for inner in list(graph.graphs())]
        if not any(changed):
            break
        resolve(graph)


def _inline_all(graph: Graph, functions: Functions = MappingProxyType({})) -> bool:
    bodies = [
        (node, functions.get((node.domain, node.op_type)) or _body(graph, node))
        for node in graph.nodes.values()
        if (node.domain, node.op_type) in functions or not has_kernel(graph, node)
    ]
    for node, body in bodies:
        if body is not None:
            _inline(graph, node, body)
    return any(body is not None for _, body in bodies)


def _body(graph: Graph, node: Node) -> onnx.FunctionProto | None:
    """The body that ONNX defines for a node; ``None`` if it is not a function."""
    try:
        schema = onnx.defs.get_schema(node.op_type, node.since_version, node.domain)
        serialized = _serialized_body(graph, node, schema)
    except (onnx.defs.SchemaError, ValueError, RuntimeError):
        return None
    return None if serialized is None else onnx.FunctionProto.FromString(serialized)


def _serialized_body(graph: Graph, node: Node, schema: onnx.defs.OpSchema) -> bytes | None:
    """The newest body that the model's operator set allows; it may depend on the input types."""
    bodies = cast("_Bodies", schema)
    opset = graph.opsets.get(node.domain, 1)
    usable = [v for v in bodies.function_opset_versions if v <= opset]
    if usable:
        return bodies.get_function_with_opset_version(max(usable))
    usable = [v for v in bodies.context_dependent_function_opset_versions if v <= opset]
    if not usable:
        return None
    types = [
        b"" if known is None else write_type(known).SerializeToString()
        for known in (graph.type_of(name) for name in node.inputs)
    ]
    call = write_node(node).SerializeToString()
    return bodies.get_context_dependent_function_with_opset_version(max(usable), call, types)


def _inline(graph: Graph, node: Node, body: onnx.FunctionProto) -> None:
    prefix = graph.fresh_node_name(f"_inlfunc_{node.op_type}")
    names = dict.fromkeys(body.input, "")
    names.update(zip(body.input, node.inputs, strict=False))
    names.update(zip(body.output, node.outputs, strict=False))
    protos = [_bound(inner, node) for inner in body.node]
    _rename_all(protos, names, prefix)
    graph.remove(node)
    for proto in protos:
        constant = constant_tensor(proto)
        if constant is None:
            graph.insert(read_node(proto, graph))
        else:
            tensor = onnx.TensorProto()
            tensor.CopyFrom(constant)
            tensor.name = proto.output[0]
            graph.add_initializer(tensor)


def _rename_all(nodes: Iterable[onnx.NodeProto], names: dict[str, str], prefix: str) -> None:
    """Rename the values of one scope to their names in the graph; outer values keep their names."""
    for node in nodes:
        for name in node.output:
            names.setdefault(name, f"{prefix}_{name}" if name else "")
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names[name] for name in node.output]
        for _, body in subgraphs(node):
            _rename_body(body, dict(names), prefix)


def _rename_body(body: onnx.GraphProto, names: dict[str, str], prefix: str) -> None:
    own = input_and_initializer_names(body) | {name for node in body.node for name in node.output}
    names.update({name: f"{prefix}_{name}" for name in own if name})
    _rename_all(body.node, names, prefix)
    for tensor in body.initializer:
        tensor.name = names[tensor.name]
    for value in (*body.input, *body.output, *body.value_info):
        value.name = names.get(value.name, value.name)


def _bound(inner: onnx.NodeProto, call: Node) -> onnx.NodeProto:
    """A body's node, with references to attributes replaced by the attributes of the call."""
    proto = onnx.NodeProto()
    proto.CopyFrom(inner)
    del proto.attribute[:]
    for attribute in inner.attribute:
        reference = attribute.ref_attr_name
        value = stated(call, reference) if reference else attribute
        if value is not None:
            bound = proto.attribute.add()
            bound.CopyFrom(value)
            bound.name = attribute.name
    for _, body in subgraphs(proto):
        nodes = [_bound(node, call) for node in body.node]
        del body.node[:]
        body.node.extend(nodes)
    return proto


# --------------------------------------------------------------------------------------------------
# An If with a constant condition is replaced by the branch that runs.
#
# onnxruntime/core/optimizer/constant_folding.cc, ``ConstantFoldIfNode``, and
# ``Graph::InlineIfSubgraph`` in graph.cc: the branch's values get new names, its nodes are added
# in its order of execution, and its outputs get the names of the If's outputs.


def inline_branch(graph: Graph, node: Node) -> bool:
    """Replace an If by its branch; false if the condition is not constant."""
    condition = graph.array(node.inputs[0])
    if condition is None or condition.size != 1:
        return False
    branch_name = "then_branch" if condition.ravel()[0] else "else_branch"
    branch = node.bodies[branch_name]
    prefix = graph.fresh_node_name(f"_if_{branch_name}")
    names = _new_names(node, branch, prefix)
    # The If goes first: its outputs are those of the branch's nodes from here on, and a value has
    # one producer.
    graph.remove(node)
    for name, tensor in branch.initializers.items():
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.name = names[name]
        graph.add_initializer(copy)
    for inner in execution_order(branch):
        _adopt(graph, inner, names)
    for name, known in branch.types.items():
        if names.get(name, name) not in graph.types:
            graph.types[names.get(name, name)] = known
    return True


def _new_names(node: Node, branch: Graph, prefix: str) -> dict[str, str]:
    """Names of the branch's own values in the outer graph."""
    names = dict(zip(branch.outputs, node.outputs, strict=False))
    own = [
        *branch.initializers,
        *(n for inner in branch.nodes.values() for n in inner.outputs if n),
    ]
    for name in own:
        if name not in names:
            names[name] = f"{prefix}_{name}"
    return names


def _adopt(graph: Graph, inner: Node, names: dict[str, str]) -> None:
    """Move one node of the branch and its subgraphs into the outer graph."""
    inner.inputs = [names.get(name, name) for name in inner.inputs]
    inner.outputs = [names.get(name, name) for name in inner.outputs]
    inner.implicit = [names.get(name, name) for name in inner.implicit]
    inner.inferred_from = None
    for body in inner.bodies.values():
        body.outer = graph
        _rename_outer(body, names)
    graph.insert(inner)


def _rename_outer(body: Graph, names: dict[str, str]) -> None:
    """Make a subgraph read outer values under their new names."""
    outer = {old: new for old, new in names.items() if not body.has_value(old)}
    body.outputs = [outer.get(name, name) for name in body.outputs]
    for inner in body.nodes.values():
        body.set_inputs(inner, [outer.get(name, name) for name in inner.inputs])
        body.set_implicit(inner, [outer.get(name, name) for name in inner.implicit])
        for deeper in inner.bodies.values():
            _rename_outer(deeper, outer)
