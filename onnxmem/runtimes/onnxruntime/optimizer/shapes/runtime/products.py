"""Shapes of the matrix products of onnxruntime's own.

Source: onnxruntime/core/graph/contrib_ops/contrib_defs.cc (``FusedMatMulShapeInference``,
``matmulShapeInference``) and the schemas of the operators.
"""

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.shapes.runtime.broadcasting import broadcast
from onnxmem.runtimes.onnxruntime.optimizer.value_types import Dims

_MATRIX = 2


def matmul(left: Dims | None, right: Dims | None) -> Dims | None:
    """Dims of numpy's product."""
    if left is None or right is None or not left or not right:
        return None
    rows = left[-2:-1] if len(left) >= _MATRIX else ()
    columns = right[-1:] if len(right) >= _MATRIX else ()
    leading = broadcast(left[:-2], right[:-2])
    return None if leading is None else (*leading, *rows, *columns)


def matmul_of(graph: Graph, node: Node, left: int, right: int) -> Dims | None:
    """Dims of the product of two inputs."""
    return matmul(graph.dims_of(node.input_at(left)), graph.dims_of(node.input_at(right)))


def fused_matmul(graph: Graph, node: Node) -> Dims | None:
    """Dims of FusedMatMul, which may transpose either side."""
    left, right = (graph.dims_of(node.input_at(place)) for place in (0, 1))
    if left is None or right is None:
        return None
    return matmul(_turned(node, left, "A"), _turned(node, right, "B"))


def _turned(node: Node, dims: Dims, side: str) -> Dims:
    if len(dims) < _MATRIX:
        return dims
    if integer(node, f"transBatch{side}"):
        dims = (*dims[1:-1], dims[0], dims[-1])
    if integer(node, f"trans{side}"):
        dims = (*dims[:-2], dims[-1], dims[-2])
    return dims


def gemm(graph: Graph, node: Node, right: int = 1) -> Dims | None:
    """Dims of a Gemm whose right side is at a place."""
    left, other = graph.dims_of(node.input_at(0)), graph.dims_of(node.input_at(right))
    if left is None or other is None or len(left) != _MATRIX or len(other) != _MATRIX:
        return None
    return (left[integer(node, "transA")], other[1 - integer(node, "transB")])


def blocked(graph: Graph, node: Node) -> Dims | None:
    """Dims of MatMulNBits, whose right side is packed."""
    left = graph.dims_of(node.input_at(0))
    return None if left is None else (*left[:-1], integer(node, "N"))
