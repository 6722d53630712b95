"""Strides of tensors in an eager framework: what is a view of a storage and what must be a copy.

A stride is the distance in elements between neighbours along an axis. Transposing, slicing and
expanding only change strides; a reshape does too where it can, and otherwise copies.
"""

from functools import lru_cache

Dims = tuple[int, ...]
Strides = tuple[int, ...]

# A large graph has few shapes, each of many tensors: what follows from one is worked out once.
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
    added = len(to) - len(shape)
    kept = (
        0 if dim == 1 and wide != 1 else stride
        for dim, stride, wide in zip(shape, strides, to[added:], strict=True)
    )
    return (0,) * added + tuple(kept)


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
    if 0 in to or not shape:
        return contiguous(to)
    runs = _runs(shape, strides)
    result: list[int] = []
    place = len(to) - 1
    for count, stride in reversed(runs):
        covered = 1
        while place >= 0 and (covered < count or to[place] == 1):
            result.append(covered * stride)
            covered *= to[place]
            place -= 1
        if covered != count:
            return None
    return tuple(reversed(result)) if place < 0 else None


def _runs(shape: Dims, strides: Strides) -> list[tuple[int, int]]:
    """Join neighbouring axes that one stride walks through: (elements, stride) of each run."""
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
    """Strides of a new tensor that is laid out as another: its own if that is dense."""
    if strides is not None and is_dense(dims, strides):
        return strides
    return contiguous(dims)


@_once
def is_row_major(dims: Dims, strides: Strides | None) -> bool:
    """Whether elements lie in row-major order without gaps; axes of one element don't matter.

    >>> is_row_major((2, 1, 3), (3, 7, 1)), is_row_major((2, 3), (1, 2))
    (True, False)
    """
    if strides is None:
        return False
    wanted = zip(dims, strides, contiguous(dims), strict=True)
    return all(stride == other for dim, stride, other in wanted if dim != 1)
