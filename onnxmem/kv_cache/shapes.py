"""Whether the shapes of an input and its output are a cache's, and which axis is what.

1. Elements are floats, or integers of at most 8 bits: ids, masks and lengths are no cache.
2. Input and output have the same rank and differ along one axis at most, that of tokens. Symbols of
   two names may still be one number, so two numbers that differ count, and of symbols those
   that occur in each other: ``past`` and ``past + sequence``.
3. The axis of tokens is the operator's; else the one whose symbol differs; else the input's one
   symbol that is not the batch; else the one whose number differs; else, of four numbers, the third
   by convention, and that is said.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from onnxmem.kv_cache.holds import Holds
from onnxmem.model import DType
from onnxmem.model.binding import Dims, names_in

_RANKS: Final = range(3, 6)
_STATE_RANKS: Final = range(2, 6)
_BYTE: Final = 8
_CONVENTION: Final = 2
"""The axis of tokens in ``[batch, kv_heads, tokens, head_size]``."""


@dataclass(frozen=True, slots=True)
class Shaped:
    """A shape that is a cache's."""

    batch_axis: int
    length_axis: int | None
    is_assumed: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """An input, and the output that may be its present."""

    dims: Dims
    present: Dims | None
    dtype: DType
    holds: Holds
    length_axis: int | None
    """As an operator says."""


def shaped(pair: Pair, batch: Sequence[str]) -> Shaped | str:
    """The axes of a cache, or why it is none."""
    fault = _fault(pair)
    if fault is not None:
        return fault
    numbers, batch_axis = _numbers_that_differ(pair), _batch_axis(pair, batch)
    if pair.holds is Holds.STATE:
        return "its output has another shape" if numbers else Shaped(batch_axis, None)
    length_axis, is_assumed = _length_axis(pair, batch, batch_axis)
    if length_axis is None or length_axis == batch_axis:
        return "no one axis is that of tokens"
    if any(axis != length_axis for axis in numbers):
        return f"its output is {_text(pair.present or ())}, and it is {_text(pair.dims)}"
    return Shaped(batch_axis, length_axis, is_assumed)


def _fault(pair: Pair) -> str | None:
    """What no cache has: elements of another kind, another number of dims."""
    rank = len(pair.dims)
    if not (pair.dtype.is_floating or (pair.dtype.is_integer and _is_narrow(pair.dtype))):
        return f"its elements are {pair.dtype.value}"
    if rank not in (_STATE_RANKS if pair.holds is Holds.STATE else _RANKS):
        return f"it has {rank} dims"
    if pair.present is not None and len(pair.present) != rank:
        return f"it has {rank} dims, its output {len(pair.present)}"
    return None


def _is_narrow(dtype: DType) -> bool:
    return dtype.bits is not None and dtype.bits <= _BYTE


def _text(dims: Dims) -> str:
    return "[" + ", ".join(map(str, dims)) + "]"


def _numbers_that_differ(pair: Pair) -> list[int]:
    return [
        axis
        for axis, (one, other) in enumerate(zip(pair.dims, pair.present or (), strict=False))
        if isinstance(one, int) and isinstance(other, int) and one != other
    ]


def _batch_axis(pair: Pair, batch: Sequence[str]) -> int:
    """Where the batch stands, alone or in a product; else first, after what is stacked."""
    for axis, dim in enumerate(pair.dims):
        if isinstance(dim, str) and (dim in batch or names_in(dim) & {*batch}):
            return axis
    return int(pair.holds is Holds.BOTH and pair.dims[0] == 2)  # noqa: PLR2004 - keys and values


def _length_axis(pair: Pair, batch: Sequence[str], batch_axis: int) -> tuple[int | None, bool]:
    """The axis of tokens, and whether it is only a convention's."""
    rank, dims = len(pair.dims), pair.dims
    if pair.length_axis is not None and -rank <= pair.length_axis < rank:
        return pair.length_axis % rank, False
    open_axes = [
        axis
        for axis, dim in enumerate(dims)
        if isinstance(dim, str) and axis != batch_axis and dim not in batch
    ]
    differing = [axis for axis in open_axes if _grows(dims, pair.present, axis)]
    for found in (differing, open_axes, _numbers_that_differ(pair)):
        if len(found) == 1:
            return found[0], False
    if open_axes or rank != 4:  # noqa: PLR2004 - of four dims
        return None, False
    return _CONVENTION, True


def _grows(dims: Dims, present: Dims | None, axis: int) -> bool:
    """Whether the output's dim is another symbol than the input's."""
    if present is None:
        return False
    return isinstance(present[axis], str) and present[axis] != dims[axis]
