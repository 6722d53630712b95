"""A product with a constant matrix and a normalisation become a Gemm.

Source: onnxruntime/core/optimizer/matmul_bn_fusion.cc. Reshapes and Transposes in between stay
where they are.
"""

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    has_single_reader,
    is_constant,
    is_op,
    rank_of,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    NewNode,
    add_absent,
    add_node,
    fuse_into_next,
    replace_chain,
)
from onnxmem.runtimes.onnxruntime.optimizer.rules.effect import Effect

_MATRIX = 2


def fuse_matmul_batch_norm(graph: Graph, node: Node) -> Effect:
    """MatMul of matrices, the second one constant, and a BatchNormalization of its columns."""
    if not is_op(node, "MatMul", {1, 9, 13}) or rank_of(graph, node.inputs[0]) != _MATRIX:
        return Effect.NONE
    norm = _norm_behind(graph, node)
    if norm is None or any(norm.outputs[1:]):
        return Effect.NONE
    constants = [node.inputs[1], *norm.inputs[1:]]
    if not all(is_constant(graph, name) for name in constants):
        return Effect.NONE
    weight, scale = (graph.constant(name) for name in constants[:2])
    if weight is None or scale is None or len(weight.dims) != _MATRIX:
        return Effect.NONE
    if list(scale.dims) != [weight.dims[1]]:
        return Effect.NONE
    kind = weight.data_type
    factor = graph.fresh_name(f"MatMulBnFusion_GemmB_{node.inputs[1]}")
    bias = graph.fresh_name("MatMulBnFusion_GemmBias")
    inputs = [
        node.inputs[0],
        add_absent(graph, factor, kind, list(weight.dims)),
        add_absent(graph, bias, kind, list(scale.dims)),
    ]
    made = add_node(graph, NewNode("Gemm", inputs, (), "", "MatMulBnFusion_Gemm"))
    replace_chain(graph, [node], made)
    last = graph.makers[norm.inputs[0]]
    fuse_into_next(graph, last, norm)
    return Effect.REMOVED


def _norm_behind(graph: Graph, matmul: Node) -> Node | None:
    """The normalisation that alone reads a product, Reshapes and Transposes aside."""
    node = matmul
    while has_single_reader(graph, node):
        node = graph.children(node)[0]
        if is_op(node, "BatchNormalization", {1, 6, 7, 9, 14, 15}):
            return node
        is_moved = is_op(node, "Reshape", {1, 5, 13, 14, 19, 21, 23, 24, 25})
        if not is_moved and not is_op(node, "Transpose", {1, 13, 21, 23, 24, 25}):
            return None
    return None
