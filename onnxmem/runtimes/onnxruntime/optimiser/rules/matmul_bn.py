"""A product with a constant matrix and a normalisation become a Gemm.

Source: onnxruntime/core/optimizer/matmul_bn_fusion.cc.
"""

from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimiser.matching import has_single_reader, is_constant, is_op
from onnxmem.runtimes.onnxruntime.optimiser.rewriting import (
    NewNode,
    add_absent,
    add_node,
    replace_chain,
)
from onnxmem.runtimes.onnxruntime.optimiser.rules.effect import Effect

_MATRIX = 2


def fuse_matmul_batch_norm(graph: Graph, node: Node) -> Effect:
    """MatMul with constant weights, and a BatchNormalization of its columns."""
    if not is_op(node, "MatMul", {1, 9, 13}) or not has_single_reader(graph, node):
        return Effect.NONE
    norm = graph.children(node)[0]
    if not is_op(norm, "BatchNormalization", {1, 6, 7, 9, 14, 15}) or any(norm.outputs[1:]):
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
    replace_chain(graph, [node, norm], made)
    return Effect.REMOVED
