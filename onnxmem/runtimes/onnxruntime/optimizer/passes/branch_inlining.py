"""An If with a constant condition gives way to the branch that runs.

Source: onnxruntime/core/optimizer/constant_folding.cc, ``ConstantFoldIfNode``, and
``Graph::InlineIfSubgraph`` in graph.cc: the branch's values get new names, its nodes are added in
its order, and its outputs take the If's names.
"""

import onnx

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.order import execution_order


def inline_branch(graph: Graph, node: Node) -> bool:
    """Replace an If by its branch; false where the condition is not constant."""
    condition = graph.array(node.inputs[0])
    if condition is None or condition.size != 1:
        return False
    branch_name = "then_branch" if condition.ravel()[0] else "else_branch"
    branch = node.bodies[branch_name]
    prefix = graph.fresh_node_name(f"_if_{branch_name}")
    names = _new_names(node, branch, prefix)
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
    """Names of the branch's own values in the graph around it."""
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
    """Move one node of the branch, its subgraphs included."""
    inner.inputs = [names.get(name, name) for name in inner.inputs]
    inner.outputs = [names.get(name, name) for name in inner.outputs]
    inner.implicit = [names.get(name, name) for name in inner.implicit]
    inner.seen = None
    for body in inner.bodies.values():
        body.outer = graph
        _rename_outer(body, names)
    graph.insert(inner)


def _rename_outer(body: Graph, names: dict[str, str]) -> None:
    """Make a subgraph read outer values by their new names."""
    outer = {old: new for old, new in names.items() if not body.has_value(old)}
    body.outputs = [outer.get(name, name) for name in body.outputs]
    for inner in body.nodes.values():
        body.set_inputs(inner, [outer.get(name, name) for name in inner.inputs])
        body.set_implicit(inner, [outer.get(name, name) for name in inner.implicit])
        for deeper in inner.bodies.values():
            _rename_outer(deeper, outer)
