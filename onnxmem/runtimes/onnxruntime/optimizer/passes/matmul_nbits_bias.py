"""A row that is added to a product with a matrix of few bits becomes its bias.

Source: onnxruntime/core/optimizer/matmul_nbits_fusion.cc (``BiasFusion``).
"""

from typing import Final

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import MICROSOFT, has_single_reader, is_op
from onnxmem.runtimes.onnxruntime.optimizer.order import walk

_BIAS: Final = 5


def fuse_matmul_nbits_bias(graph: Graph) -> bool:
    """Take an Add into the MatMulNBits before it."""
    changed: list[bool] = []
    for node in walk(graph, fuse_matmul_nbits_bias, changed):
        if is_op(node, "MatMulNBits", {1}, MICROSOFT) and has_kernel(graph, node):
            changed.append(_fuse(graph, node))
    return any(changed)


def _fuse(graph: Graph, product: Node) -> bool:
    is_taken = product.input_at(_BIAS) or integer(product, "weight_prepacked")
    if is_taken or not has_single_reader(graph, product):
        return False
    (edge,) = graph.edges_of(product)
    add = edge.reader
    if not is_op(add, "Add", {7, 13, 14}) or not has_kernel(graph, add):
        return False
    bias = add.inputs[1 - edge.input]
    if graph.dims_of(bias) != (integer(product, "N"),):
        return False
    outputs = list(add.outputs)
    graph.remove(add)
    graph.set_input(product, _BIAS, bias)
    graph.set_outputs(product, outputs)
    return True
