"""Where the batch stands in a tensor: in which axis, and how deep inside it.

A Reshape may fold the batch into a longer axis (``[T, B, E]`` to ``[T*B, E]``) and another may
bring it out again. Row-major order is kept, so the elements that stand before the batch are as many
after a Reshape as before it: they tell where it has landed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul

from onnxmem.ops.spec import Dims


@dataclass(frozen=True, slots=True)
class Place:
    """The batch is a factor of one axis: ``dims[axis] = outer x batch x inner``."""

    axis: int
    outer: int = 1

    def elements_before(self, dims: Dims) -> int:
        """Elements of the batch's own stride that stand before it, in a tensor of these dims."""
        return prod(dims[: self.axis]) * self.outer


def landing(before: int, dims: Dims, batch: int) -> Place | None:
    """Where the batch lands in ``dims``, which are those at the old batch.

    ``before`` are the elements that stand before it. ``None``: no dim holds it whole.
    """
    prefixes = list(accumulate(dims, mul, initial=1))
    if batch == 1:
        return _landing_of_one(before, dims, prefixes)
    axis = _axis_around(before, prefixes)
    if axis is None:
        return None
    outer, rest = divmod(before, prefixes[axis])
    return Place(axis, outer) if rest == 0 and dims[axis] % (outer * batch) == 0 else None


def _landing_of_one(before: int, dims: Dims, prefixes: Sequence[int]) -> Place | None:
    """Where a batch of 1 lands, which leaves no trace in the dims.

    In a dim of length 1 at its place, if there is one. Between two longer dims it may be the last
    factor of the first or the first of the second: the second, but for the last dim of all, which
    holds features.
    """
    units = (axis for axis, dim in enumerate(dims) if dim == 1 and prefixes[axis] == before)
    unit = next(units, None)
    if unit is not None:
        return Place(unit)
    axis = _axis_around(before, prefixes)
    is_between = axis is None or prefixes[axis] == before
    if is_between and axis in {None, len(dims) - 1} and before > 1:
        axis = (len(dims) if axis is None else axis) - 1
    if axis is None or axis < 0:
        return None
    outer, rest = divmod(before, prefixes[axis])
    return Place(axis, outer) if rest == 0 and dims[axis] % outer == 0 else None


def _axis_around(before: int, prefixes: Sequence[int]) -> int | None:
    """The axis in which the element after ``before`` others stands; ``None`` behind the last."""
    axes = range(len(prefixes) - 1)
    return next((a for a in axes if prefixes[a] <= before < prefixes[a + 1]), None)


def grown(dims: Dims, place: Place, old: int, new: int) -> Dims:
    """The dims at the new batch of what had ``dims`` at the old one."""
    size = dims[place.axis] // old * new
    return (*dims[: place.axis], size, *dims[place.axis + 1 :])


def inherited(
    old_dims: Dims, new_dims: Dims, sources: Sequence[tuple[Place, Dims]]
) -> Place | None:
    """The place in an output, from the axis that has grown and what its inputs had there.

    ``sources`` are the places of the inputs, with their dims at the old batch.
    """
    axes = [a for a, (old, new) in enumerate(zip(old_dims, new_dims, strict=False)) if old != new]
    if len(old_dims) != len(new_dims) or not axes:
        return None
    axis = axes[0]
    alike = (place.outer for place, dims in sources if dims[place.axis] == old_dims[axis])
    return Place(axis, next(alike, 1))
