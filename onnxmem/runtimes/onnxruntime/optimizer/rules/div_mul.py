"""A reciprocal and a product become a quotient: 1/a * b = b/a.

Source: onnxruntime/core/optimizer/div_mul_fusion.cc.
"""

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import has_single_reader, is_op
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import fuse_into_next
from onnxmem.runtimes.onnxruntime.optimizer.rules.effect import Effect


def fuse_div_mul(graph: Graph, node: Node) -> Effect:
    """Let a Div with a numerator of 1 divide the other factor of the Mul that reads it."""
    if not is_op(node, "Div", {7, 13, 14}) or not has_single_reader(graph, node):
        return Effect.NONE
    mul = graph.children(node)[0]
    one = graph.array(node.inputs[0])
    if not is_op(mul, "Mul", {7, 13, 14}) or one is None or one.size != 1:
        return Effect.NONE
    if float(one.ravel()[0]) != 1.0:
        return Effect.NONE
    factor = mul.inputs[1 if mul.inputs[0] == node.outputs[0] else 0]
    graph.set_input(node, 0, factor)
    fuse_into_next(graph, node, mul)
    return Effect.CHANGED
