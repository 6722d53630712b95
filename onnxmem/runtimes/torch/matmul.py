"""The copies that a batched MatMul makes of its operands, and keeps for the backward pass.

A framework runs a MatMul of more than two dims on operands of two or three: it folds the leading
dims into one. Where an operand's strides do not allow that, as after the Transpose of an attention
head, it multiplies a copy in row-major order, and the copy is what is saved.
"""

from math import prod

from onnxmem.model.graph import Node
from onnxmem.runtimes.torch.composites.framework import FRAMEWORK, LINEAR
from onnxmem.runtimes.torch.strides import Dims, Strides, expanded, reshaped

MATRIX_RANK = 2

_OF_MATRICES = ("Einsum", "Gemm", "MatMul", "linear")
PRODUCTS = (
    *("Attention", "Conv", "ConvTranspose", "scaled_dot_product_attention"),
    *_OF_MATRICES,
)
"""Operators whose arithmetic is multiply-adds of two operands, recurrent layers apart."""


def is_product(node: Node) -> bool:
    """Whether a node multiplies matrices, in any number of dims, or does so for a linear layer."""
    return (node.op_type == "MatMul" and not node.domain) or node.operator is LINEAR


def multiplies_matrices(node: Node) -> bool:
    """Whether a node is one call of cuBLAS, or several: recurrent layers run in cuDNN."""
    return node.op_type in _OF_MATRICES and node.domain in {"", FRAMEWORK}


def copied_elements(shape: Dims, strides: Strides, other: Dims) -> int | None:
    """Elements of the copy of an operand, by the dims of the other one; ``None``: no copy is made.

    After torch.matmul: against a matrix the leading dims are folded into the rows; otherwise the
    leading dims of both are broadcast and folded into one.
    """
    if len(shape) <= MATRIX_RANK:
        return None
    if len(other) <= MATRIX_RANK:
        rows = (prod(shape[:-1]), shape[-1])
        return None if reshaped(shape, strides, rows) is not None else prod(shape)
    leading = broadcast_dims(shape[:-2], other[:-2])
    wide = leading + shape[-2:]
    matrices = (prod(leading), *shape[-2:])
    is_view = reshaped(wide, expanded(shape, strides, wide), matrices) is not None
    return None if is_view else prod(wide)


def broadcast_dims(left: Dims, right: Dims) -> Dims:
    """The dims that two shapes are broadcast to."""
    rank = max(len(left), len(right))
    left, right = (1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right
    return tuple(b if a == 1 else a for a, b in zip(left, right, strict=True))
