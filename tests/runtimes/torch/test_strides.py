"""Strides against numpy, which knows when a reshape is a view."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxmem.runtimes.torch.strides import Dims, contiguous, copied_elements, expanded, reshaped

DIMS = st.lists(st.sampled_from((1, 2, 3, 4)), max_size=4).map(tuple)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple["np.ndarray[Dims, np.dtype[np.int8]]", Dims]:
    """A transposed array, and another shape of as many elements."""
    shape = draw(DIMS)
    array = np.zeros(shape, np.int8).transpose(draw(st.permutations(range(len(shape)))))
    dims = draw(st.permutations((*array.shape, 1)))
    if draw(st.booleans()) and len(dims) > 1:
        dims = [dims[0] * dims[1], *dims[2:]]
    return array, tuple(dims)


@given(reshapes())
def test_a_reshape_is_a_view_where_numpys_is(
    case: tuple["np.ndarray[Dims, np.dtype[np.int8]]", Dims],
) -> None:
    array, to = case
    strides = reshaped(array.shape, array.strides, to)
    assert (strides is not None) == np.shares_memory(array, array.reshape(to))


@given(DIMS)
def test_row_major_strides_are_numpys(shape: Dims) -> None:
    assert contiguous(shape) == np.zeros(shape, np.int8).strides


def test_broadcast_axes_have_stride_zero() -> None:
    assert expanded((1, 3), (3, 1), (5, 2, 3)) == (0, 0, 1)


def test_an_empty_tensor_is_never_copied() -> None:
    assert reshaped((0, 3), (1, 9), (3, 0)) == (0, 1)


@pytest.mark.parametrize(
    ("shape", "strides", "other", "copied"),
    [
        ((6, 8), (1, 6), (8, 4), None),  # a matrix is read by strides
        ((2, 6, 8), (48, 1, 6), (2, 8, 4), None),  # and so is a batch of them
        ((2, 6, 8), (48, 8, 1), (8, 4), None),  # rows fold in row-major order
        ((6, 2, 8), (8, 48, 1), (8, 4), 96),  # and not after a transpose
        ((2, 2, 6, 4), (48, 4, 8, 1), (2, 2, 4, 6), 96),  # an attention head
        ((2, 1, 6, 8), (48, 48, 8, 1), (1, 2, 8, 6), 192),  # broadcast, the copy is as large
    ],
)
def test_matmul_copies_what_it_cannot_fold(
    shape: Dims, strides: Dims, other: Dims, copied: int | None
) -> None:
    assert copied_elements(shape, strides, other) == copied
