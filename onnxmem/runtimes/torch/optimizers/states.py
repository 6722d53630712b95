"""Bytes of state that an optimizer keeps for one parameter, by its dims and element bytes."""

from collections.abc import Callable
from math import prod

from onnxmem.runtimes.torch.optimizers.scripts import Dims

StateOf = Callable[[Dims, int], int]

COUNTER_BYTES = 4
"""PyTorch counts the steps of each parameter in a float32 tensor, whatever the parameter's type."""

_FLOAT_BYTES = 4
_MATRIX_DIMS = 2
_MIN_8BIT_ELEMENTS = 4096
"""Smaller tensors keep float32 state."""
_BLOCK_ELEMENTS = 256
"""Elements that share one float32 scale; 2048 before bitsandbytes 0.44."""
CODE_BYTES = 256 * _FLOAT_BYTES
"""The table of the 256 values that a byte of state stands for."""


def moments(count: int, *, counters: int = 0) -> StateOf:
    """``count`` tensors as large as the parameter, and ``counters`` float32 scalars."""
    return lambda shape, element_bytes: (
        count * prod(shape) * element_bytes + counters * COUNTER_BYTES
    )


def factors(shape: Dims, element_bytes: int) -> int:
    """Row and column means over the last two dims, for a vector all of it; and a step counter."""
    if len(shape) < _MATRIX_DIMS:
        return prod(shape) * element_bytes + COUNTER_BYTES
    rows, columns = prod(shape[:-1]), prod((*shape[:-2], shape[-1]))
    return (rows + columns) * element_bytes + COUNTER_BYTES


def bytewise_moments(shape: Dims, element_bytes: int) -> int:  # noqa: ARG001 - of its own size
    """Two bytes an element and a float32 scale for each block of either moment."""
    count = prod(shape)
    if count < _MIN_8BIT_ELEMENTS:
        return 2 * count * _FLOAT_BYTES
    blocks = -(-count // _BLOCK_ELEMENTS)
    return 2 * (count + blocks * _FLOAT_BYTES)


def by_matrix(of_matrices: StateOf, of_others: StateOf) -> StateOf:
    """One rule for parameters of exactly two dims, another for the rest."""
    return lambda shape, element_bytes: (of_matrices if len(shape) == _MATRIX_DIMS else of_others)(
        shape, element_bytes
    )
