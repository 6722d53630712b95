"""A normalisation by the root mean square becomes SimplifiedLayerNormalization.

Source: onnxruntime/core/optimizer/layer_norm_fusion.cc, ``SimplifiedLayerNormFusion``, as it holds
on the CPU: no casts inside.
"""

from onnxmem.runtimes.onnxruntime.optimizer.attributes import put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    child_of,
    has_single_reader,
    is_number,
)
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.passes.layer_norm import (
    ARITHMETIC,
    MEAN,
    POWER,
    ROOT,
    epsilon_of,
    is_float_op,
    last_axes,
    put_stash_type,
    vector_of,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node, replace_chain

_STEPS = (("ReduceMean", MEAN), ("Add", ARITHMETIC), ("Sqrt", ROOT), ("Div", ARITHMETIC))


def fuse_simplified_layer_norm(graph: Graph) -> bool:
    """Replace square, mean, epsilon, root, quotient and scale."""
    changed: list[bool] = []
    for node in walk(graph, fuse_simplified_layer_norm, changed):
        is_square = is_float_op(graph, node, "Pow", POWER) and has_single_reader(graph, node)
        if is_square and is_number(graph, node.inputs[1], 2.0):
            changed.append(_fuse(graph, node))
    return any(changed)


def _fuse(graph: Graph, power: Node) -> bool:
    nodes = [power]
    for op_type, versions in _STEPS:
        reader = child_of(graph, nodes[-1], op_type)
        count = 1 if op_type == "ReduceMean" else 9
        if reader is None or not is_float_op(graph, reader, op_type, versions, count):
            return False
        if not has_single_reader(graph, reader):
            return False
        nodes.append(reader)
    if nodes[-1].inputs[0] != power.inputs[0]:
        return False
    mul = graph.children(nodes[-1])[0]
    if not is_float_op(graph, mul, "Mul", ARITHMETIC) or last_axes(graph, nodes[1]) != [-1]:
        return False
    scale = vector_of(graph, mul.inputs)
    epsilon = epsilon_of(graph, nodes[2])
    if scale is None or epsilon is None:
        return False
    op_type = "SimplifiedLayerNormalization"
    made = add_node(graph, NewNode(op_type, [power.inputs[0], scale], (), "", op_type))
    put(made, "epsilon", epsilon)
    put_stash_type(graph, made)
    replace_chain(graph, [*nodes, mul], made)
    return True
