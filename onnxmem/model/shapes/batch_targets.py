"""The targets of Reshape, Expand and Resize at another batch, from their dims alone.

Each rule takes the target as it stands and the output's dims at the old batch, and gives the target
at the new one: ``None`` where the present one will do, ``()`` where there is none.
"""

from dataclasses import dataclass
from math import prod

from onnxmem.model.shapes.batch_place import Place, grown, landing
from onnxmem.ops.spec import Dims


@dataclass(frozen=True, slots=True)
class Source:
    """What a target is applied to."""

    old: Dims
    new: Dims
    """Its dims at either batch."""
    place: Place | None
    """Where it has the batch, if it has."""


def expanded(target: Dims, before: Dims, data: Dims, old: int, new: int) -> Dims | None:
    """Expand: the batch stands where the data has it, else in the leading place."""
    shift = len(target) - len(data)
    met = [axis for axis in range(max(shift, 0), len(target)) if data[axis - shift] == new]
    axis = next((axis for axis in met if target[axis] == old != 1), 0)
    spread = _broadcast(target, data)
    follows = spread is not None and spread != before
    if follows or len(target) != len(before) or target[axis : axis + 1] != (old,):
        return None
    return (*target[:axis], new, *target[axis + 1 :])


def reshaped(target: Dims, before: Dims, source: Source, old: int, new: int) -> Dims | None:
    """Reshape: the dim grows that the batch lands in, by row-major order."""
    if source.place is None:
        return None if prod(source.new) == prod(source.old) else ()
    landed = landing(source.place.elements_before(source.old), before, old)
    if landed is None:
        return ()
    moved = grown(before, landed, old, new)
    return None if _resolved(target, source.new) == moved else moved


def resized(target: Dims, before: Dims, source: Source, old: int, new: int) -> Dims | None:  # noqa: ARG001 - one signature for both rules
    """Resize: sizes are as long as the batch where the data has it."""
    place = source.place
    if place is None or target[place.axis : place.axis + 1] != (source.old[place.axis],):
        return None
    return grown(target, place, old, new)


def _broadcast(one: Dims, other: Dims) -> Dims | None:
    """What two shapes broadcast to, of any size; ``None`` where they do not fit."""
    rank = max(len(one), len(other))
    pairs = list(zip(_filled(one, rank), _filled(other, rank), strict=True))
    fits = all(a == b or 1 in (a, b) for a, b in pairs)
    return tuple(b if a == 1 else a for a, b in pairs) if fits else None


def _filled(dims: Dims, rank: int) -> Dims:
    return (1,) * (rank - len(dims)) + dims


def _resolved(dims: Dims, data: Dims) -> Dims:
    """Reshape's output for a target with 0 (copy) and -1 (the rest)."""
    copied = [
        data[place] if dim == 0 and place < len(data) else dim for place, dim in enumerate(dims)
    ]
    known = prod(dim for dim in copied if dim != -1)
    return tuple(prod(data) // known if dim == -1 and known else dim for dim in copied)
