"""A bias before Gelu becomes part of it: BiasGelu.

Source: onnxruntime/core/optimizer/bias_gelu_fusion.cc.
"""

from onnxmem.runtimes.onnxruntime.optimizer.attributes import text
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import MICROSOFT, has_single_reader, is_op
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node, replace_chain


def fuse_bias_gelu(graph: Graph) -> bool:
    """Replace an Add of a vector and the Gelu that alone reads it."""
    changed: list[bool] = []
    for node in walk(graph, fuse_bias_gelu, changed):
        if is_op(node, "Add", {7, 13, 14}) and has_kernel(graph, node):
            changed.append(_fuse(graph, node))
    return any(changed)


def _fuse(graph: Graph, add: Node) -> bool:
    if not has_single_reader(graph, add):
        return False
    inputs = _data_and_bias(graph, add)
    gelu = graph.children(add)[0]
    op_type = _fused_type(gelu)
    if inputs is None or op_type is None or not has_kernel(graph, gelu):
        return False
    made = add_node(graph, NewNode(op_type, inputs, (), MICROSOFT, op_type))
    replace_chain(graph, [add, gelu], made)
    return True


def _data_and_bias(graph: Graph, add: Node) -> list[str] | None:
    """The operands, the vector last; their last dims must be known and equal."""
    one, other = (graph.dims_of(name) for name in add.inputs)
    if not one or not other or one[-1] != other[-1] or not isinstance(one[-1], int):
        return None
    if len(one) == 1:
        return [add.inputs[1], add.inputs[0]]
    return list(add.inputs) if len(other) == 1 else None


def _fused_type(gelu: Node) -> str | None:
    if is_op(gelu, "Gelu", {20}):
        return "FastGelu" if text(gelu, "approximate", "none") == "tanh" else "BiasGelu"
    if gelu.domain != MICROSOFT:
        return None
    if gelu.op_type == "FastGelu" and len(gelu.inputs) == 1:
        return "FastGelu"
    return "BiasGelu" if gelu.op_type == "Gelu" else None
