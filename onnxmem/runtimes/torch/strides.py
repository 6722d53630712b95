"""How PyTorch lays tensors out: what is a view of a storage, and what must be a copy.

A stride is the distance in elements between neighbors along an axis. Transposing, slicing and
expanding only change strides; a reshape does too where it can, and otherwise copies. A MatMul of
more than two dims folds its leading dims into one and copies operands whose strides do not allow
that (``copied_elements``).
"""

from collections.abc import Mapping
from functools import lru_cache
from math import prod

from onnxmem.model.graph import Graph, Node
from onnxmem.ops.spec import Attribute
from onnxmem.runtimes.torch.framework import FRAMEWORK, LINEAR

Dims = tuple[int, ...]
Strides = tuple[int, ...]

# A large graph has few shapes, each of many tensors: what follows from one is computed once.
_once = lru_cache(maxsize=4096)


@_once
def contiguous(shape: Dims) -> Strides:
    """Strides of elements in row-major order.

    >>> contiguous((2, 3, 4))
    (12, 4, 1)
    """
    strides: list[int] = []
    stride = 1
    for dim in reversed(shape):
        strides.append(stride)
        stride *= dim
    return tuple(reversed(strides))


def expanded(shape: Dims, strides: Strides, to: Dims) -> Strides:
    """Strides after broadcasting: 0 along every axis that is repeated."""
    # inferExpandGeometry of aten/src/ATen/ExpandUtils.cpp: shapes are aligned at the last axis.
    added = len(to) - len(shape)
    broadcast = (
        0 if dim == 1 and wide != 1 else stride
        for dim, stride, wide in zip(shape, strides, to[added:], strict=True)
    )
    return (0,) * added + tuple(broadcast)


def permuted(strides: Strides, order: tuple[int, ...]) -> Strides:
    """Strides with the axes in another order."""
    return tuple(strides[axis] for axis in order)


@_once
def reshaped(shape: Dims, strides: Strides, to: Dims) -> Strides | None:
    """Strides after a reshape that needs no copy; ``None`` where it needs one.

    >>> reshaped((2, 3, 4), (12, 4, 1), (6, 4))
    (4, 1)
    >>> reshaped((3, 2), (1, 3), (6,)) is None
    True
    """
    # computeStride_impl of aten/src/ATen/TensorUtils.cpp: a view exists if and only if each run of
    # old axes that one stride walks through has as many elements as some consecutive new axes.
    # From the last axis on, each run is used up by new axes before the next run begins.
    if 0 in to or not shape:
        return contiguous(to)
    runs = _runs(shape, strides)
    result: list[int] = []
    index = len(to) - 1
    for count, stride in reversed(runs):
        covered = 1
        while index >= 0 and (covered < count or to[index] == 1):
            result.append(covered * stride)
            covered *= to[index]
            index -= 1
        if covered != count:
            return None
    return tuple(reversed(result)) if index < 0 else None


def _runs(shape: Dims, strides: Strides) -> list[tuple[int, int]]:
    """Join neighboring axes that one stride walks through: (elements, stride) of each run."""
    # Axes of one element have no neighbors, so that their stride means nothing.
    runs: list[tuple[int, int]] = []
    for dim, stride in zip(shape, strides, strict=True):
        if dim == 1:
            continue
        if runs and runs[-1][1] == dim * stride:
            runs[-1] = (runs[-1][0] * dim, stride)
        else:
            runs.append((dim, stride))
    return runs or [(1, 1)]


@_once
def is_dense(dims: Dims, strides: Strides | None) -> bool:
    """Whether elements fill their storage once, in whatever order of the axes.

    >>> is_dense((2, 3), (1, 2)), is_dense((2, 3), (6, 1)), is_dense((2, 3), (0, 1))
    (True, False, False)
    """
    # _compute_non_overlapping_and_dense of c10/core/Contiguity.h: from the smallest stride on, each
    # must be the number of elements that the axes before it cover.
    if strides is None:
        return False
    covered = 1
    for stride, dim in sorted(zip(strides, dims, strict=True)):
        if dim == 1:
            continue
        if stride != covered:
            return False
        covered *= dim
    return True


@_once
def like(dims: Dims, strides: Strides | None) -> Strides:
    """Strides of a new tensor that is laid out like another: dense, its axes in the other's order.

    >>> like((2, 3), (1, 2)), like((2, 3), (3, 6)), like((2, 3), (9, 1))
    ((1, 2), (1, 2), (3, 1))
    """
    # empty_like of aten/src/ATen/native/TensorFactories.cpp with MemoryFormat::Preserve.
    if strides is None:
        return contiguous(dims)
    if is_dense(dims, strides):
        return strides
    result = [0] * len(dims)
    stride = 1
    for axis in _from_innermost(dims, strides):
        result[axis] = stride
        stride *= dims[axis]
    return tuple(result)


def _from_innermost(dims: Dims, strides: Strides) -> list[int]:
    """The axes by stride; repeated ones, of stride 0, stay where they are."""
    # infer_dense_strides of aten/src/ATen/ExpandUtils.cpp: an insertion sort in which a stride of 0
    # is neither above nor below another.
    order = list(reversed(range(len(dims))))
    for start in range(1, len(order)):
        place = start
        for before in reversed(range(start)):
            inner, outer = order[before], order[place]
            if 0 in {strides[inner], strides[outer]}:
                continue
            if (strides[inner], dims[inner]) <= (strides[outer], dims[outer]):
                break
            order[before], order[place] = outer, inner
            place = before
    return order


@_once
def is_row_major(dims: Dims, strides: Strides | None) -> bool:
    """Whether elements lie in row-major order without gaps; axes of one element don't matter.

    >>> is_row_major((2, 1, 3), (3, 7, 1)), is_row_major((2, 3), (1, 2))
    (True, False)
    """
    # is_contiguous: _compute_contiguous of c10/core/Contiguity.h.
    if strides is None:
        return False
    wanted = zip(dims, strides, contiguous(dims), strict=True)
    return all(stride == other for dim, stride, other in wanted if dim != 1)


def axes_order(attributes: Mapping[str, Attribute], rank: int) -> tuple[int, ...]:
    """The order in which a Transpose takes its input's axes; without a valid one, the reverse."""
    perm = attributes.get("perm")
    axes = range(rank)
    if isinstance(perm, tuple) and sorted(perm, key=str) == sorted(axes, key=str):
        return tuple(int(axis) for axis in perm)
    return tuple(reversed(axes))


def reduced_axes(graph: Graph, node: Node) -> tuple[int, ...] | None:
    """The axes that a reduction removes; ``None`` where the file does not name them."""
    axes = node.attributes.get("axes")
    if axes is None and len(node.inputs) > 1:
        axes = graph.values.get(node.inputs[1])
    return tuple(int(axis) for axis in axes) if isinstance(axes, tuple) else None


MATRIX_RANK = 2

CONVOLUTIONS = ("Conv", "ConvTranspose")
_MATMULS = ("Einsum", "Gemm", "MatMul", "linear")
MATMUL_LIKE = (
    *("Attention", *CONVOLUTIONS, "scaled_dot_product_attention"),
    *_MATMULS,
)
"""Operators that multiply and add two operands; recurrent layers are not listed."""


def is_matmul(node: Node) -> bool:
    """Whether a node is torch.matmul, or the linear layer that calls it."""
    return (node.op_type == "MatMul" and not node.domain) or node.operator is LINEAR


def multiplies_matrices(node: Node) -> bool:
    """Whether a node is one call of cuBLAS, or several: recurrent layers run in cuDNN."""
    return node.op_type in _MATMULS and node.domain in {"", FRAMEWORK}


def copied_elements(shape: Dims, strides: Strides, other: Dims) -> int | None:
    """Elements of the copy that a MatMul makes of an operand; ``None``: it makes none.

    ``other`` are the dims of the other operand.
    """
    # _matmul_impl of aten/src/ATen/native/LinearAlgebra.cpp. Against a matrix the leading dims are
    # folded into the rows, for one mm (should_fold); otherwise the leading dims of both operands
    # are broadcast and folded into one, for bmm. Either is a reshape, which copies where the
    # strides do not allow a view; a broadcast operand is copied in full.
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
