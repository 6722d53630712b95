"""Rules of operators that give elements another shape or another position."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from onnxmem.model.bounds import BOUNDS
from onnxmem.model.intervals.combining import broadcast
from onnxmem.model.intervals.interval import (
    DimInterval,
    DimIntervals,
    least,
    product,
    times,
    total,
)
from onnxmem.model.intervals.site import Found, Rule, Site, as_dim
from onnxmem.model.intervals.values import integers


def expanded(site: Site) -> Found:
    """The input broadcast with the target."""
    dims, target = site.dims(0), site.values(1)
    if dims is None or target is None:
        return []
    return [broadcast(site, dims, tuple(map(as_dim, target)))]


def reshaped(site: Site) -> Found:
    """The elements of the target: 0 copies a dim, -1 is the rest."""
    dims, known = site.dims(0), site.known(0)
    target = site.values(1)
    if target is None or known is None:
        return []
    copies = not site.integer("allowzero")
    made: list[DimInterval | None] = []
    for axis, value in enumerate(target):
        copied = dims[axis] if copies and dims is not None and axis < len(dims) else None
        if value.number == 0 and copies:
            made.append(copied)
        elif value.number is not None:
            made.append(None if value.number < 0 else value)
        else:
            made.append(_chosen(value, copied, known.most_elements, copies=copies))
    found = tuple(
        _rest(site, axis, [each for each in made if each is not None]) if dim is None else dim
        for axis, dim in enumerate(made)
    )
    return [_of_elements(dims, found)]


def _chosen(
    value: DimInterval, copied: DimInterval | None, most: int | None, *, copies: bool
) -> DimInterval:
    """A dim that the data choose: one of which nothing is known may be -1, and one of 0 a copy."""
    ends = [value.high]
    if value.high is None or value.low < 0:
        ends.append(most)
    if copies and value.low <= 0:
        ends.append(most if copied is None else copied.high)
    # Without an end of its own the value has that of -1, which stands for any number up to it.
    known = [end for end in ends if end is not None]
    return replace(value, low=max(value.low, 0), high=None if None in ends[1:] else max(known))


def _of_elements(
    dims: DimIntervals | None, found: tuple[DimInterval, ...]
) -> tuple[DimInterval, ...]:
    """The dims of a target, where the input has a known number of elements: theirs is the same."""
    numbers = [dim.number for dim in dims or ()]
    count = prod(number or 0 for number in numbers) if dims is not None else 0
    if not count:
        # Beside a dim of 0, another one may be any number.
        return found
    # A dim is largest where all others are at their least.
    least_count = prod(max(dim.low, 1) for dim in found)
    bounds = [count // (least_count // max(dim.low, 1)) for dim in found]
    return tuple(
        dim if dim.number is not None else replace(dim, high=least(dim.high, bound))
        for dim, bound in zip(found, bounds, strict=True)
    )


def _rest(site: Site, axis: int, others: Sequence[DimInterval]) -> DimInterval:
    """The dim of -1: the elements of the input by the other dims."""
    dims, most = site.dims(0), site.most_elements(0)
    divisor = prod(dim.low if dim.number is not None else 1 for dim in others)
    named = Counter(dim.name for dim in others if dim.number is None)
    if dims is not None and divisor:
        # Dims of one name are equal, so those on both sides cancel out.
        left = []
        for dim in dims:
            if dim.number is None and named[dim.name]:
                named[dim.name] -= 1
            else:
                left.append(dim)
        if not +named:
            open_dims = [dim for dim in left if dim.number is None]
            factor = prod(dim.low for dim in left if dim.number is not None)
            if not open_dims:
                return DimInterval.exact(factor // divisor)
            if len(open_dims) == 1 and factor == divisor:
                return open_dims[0]
            count = product(left)
            most = least(
                None if count is None else count // divisor,
                None if most is None else most // divisor,
            )
            return site.dim(0, axis, 0, most)
    divisor *= prod(max(dim.low, 1) for dim in others if dim.number is None)
    return site.dim(0, axis, 0, None if most is None else most // max(divisor, 1))


def squeezed(site: Site) -> Found:
    """Without the axes of 1 that are named, or without all."""
    dims = site.dims(0)
    if dims is None:
        return []
    has_axes = "axes" in site.node.attributes or site.known(1) is not None
    if has_axes:
        axes = site.integers("axes", 1)
        if axes is None:
            return []
        gone = {axis % len(dims) for axis in axes if -len(dims) <= axis < len(dims)}
        return [tuple(dim for axis, dim in enumerate(dims) if axis not in gone)]
    # An open dim that may be 1 may go as well: then not even the rank is known.
    if any(dim.number is None and dim.low <= 1 for dim in dims):
        return []
    return [tuple(dim for dim in dims if dim.number != 1)]


def unsqueezed(site: Site) -> Found:
    """With axes of 1 added."""
    dims, axes = site.dims(0), site.integers("axes", 1)
    if dims is None:
        return []
    if axes is None:
        return _with_chosen_ones(site, dims)
    rank = len(dims) + len(axes)
    added = {axis % rank for axis in axes}
    rest = iter(dims)
    return [tuple(DimInterval.exact(1) if axis in added else next(rest) for axis in range(rank))]


def _with_chosen_ones(site: Site, dims: DimIntervals) -> Found:
    """With axes of 1 where a run puts them: a dim may be at any later axis up to as many."""
    count = site.dims(1)
    added = None if count is None or len(count) > 1 else prod(dim.number or 0 for dim in count)
    if added is None or not added or len(dims) + added > BOUNDS.rank:
        return []
    made = []
    for axis in range(len(dims) + added):
        # Up to ``added`` ones may come before an axis, so the dim there is one of these, or a 1.
        near = dims[max(axis - added, 0) : axis + 1]
        highs = [dim.high for dim in near]
        known = [high for high in highs if high is not None]
        high = max(1, *known) if len(known) == len(highs) else None
        made.append(site.dim(0, axis, min(1, *(dim.low for dim in near)), high))
    return [tuple(made)]


def flattened(site: Site) -> Found:
    """A matrix: the dims before an axis, and those from it on."""
    dims = site.dims(0)
    if dims is None:
        return []
    axis = site.integer("axis", 1)
    axis = axis + len(dims) if axis < 0 else axis
    return [
        tuple(_merged(site, index, part) for index, part in enumerate((dims[:axis], dims[axis:])))
    ]


def _merged(site: Site, axis: int, dims: DimIntervals) -> DimInterval:
    """Several dims as one."""
    open_dims = [dim for dim in dims if dim.number is None]
    factor = prod(dim.low for dim in dims if dim.number is not None)
    if len(open_dims) == 1 and factor == 1:
        return open_dims[0]
    return site.dim(0, axis, prod(dim.low for dim in dims), product(dims))


def gathered(site: Site) -> Found:
    """The dims of the indices in place of one axis."""
    data, indices = site.dims(0), site.dims(1)
    axis = None if data is None else site.axis(len(data))
    if data is None or indices is None or axis is None:
        return []
    return [(*data[:axis], *indices, *data[axis + 1 :])]


def gathered_nd(site: Site) -> Found:
    """Data [b, d, r], indices [b, n, |d|] -> [b, n, r]."""
    data, indices = site.dims(0), site.dims(1)
    depth = indices[-1].number if indices else None
    if data is None or indices is None or depth is None:
        return []
    return [(*indices[:-1], *data[site.integer("batch_dims") + depth :])]


def like(index: int) -> Rule:
    """The output has the shape of an input."""
    return lambda site: [site.dims(index)]


def split(site: Site) -> Found:
    """Parts along one axis."""
    dims = site.dims(0)
    axis = None if dims is None else site.axis(len(dims))
    if dims is None or axis is None:
        return []
    count = len(site.node.outputs)
    lengths = site.integers("split", 1)
    if lengths is not None and len(lengths) == count:
        parts = [DimInterval.exact(max(length, 0)) for length in lengths]
    elif (given := site.values(1)) is not None and len(given) == count:
        parts = [
            site.dim(index, axis, max(each.low, 0), least(each.high, dims[axis].high))
            for index, each in enumerate(given)
        ]
    else:
        # Equal parts are the length, divided and rounded up; of computed lengths one may have all.
        high = dims[axis].high
        has_lengths = site.known(1) is not None
        each = high if high is None or has_lengths else -(-high // count)
        parts = [site.dim(index, axis, 0, each) for index in range(count)]
    return [(*dims[:axis], part, *dims[axis + 1 :]) for part in parts]


def padded(site: Site) -> Found:
    """Each dim, and what is added before and behind it."""
    dims, pads = site.dims(0), site.values(1)
    given = site.node.attributes.get("pads")
    if isinstance(given, tuple):
        pads = tuple(DimInterval.exact(int(each)) for each in given)
    if dims is None:
        return []
    axes = tuple(range(len(dims)))
    if site.known(3) is not None:
        chosen = integers(site.known(3))
        if chosen is None:
            return []
        axes = tuple(axis % len(dims) for axis in chosen)
    if pads is None or len(pads) != 2 * len(axes):
        return [
            tuple(
                dim if axis not in axes else site.dim(0, axis, 0, None)
                for axis, dim in enumerate(dims)
            )
        ]
    made = list(dims)
    for position, axis in enumerate(axes):
        before, behind = pads[position], pads[position + len(axes)]
        # The dim itself is kept where nothing is added: it stays equal to the input's in every run.
        if (before.number, behind.number) == (0, 0):
            continue
        made[axis] = _padded_dim(site, axis, before, behind)
    return [tuple(made)]


def _padded_dim(site: Site, axis: int, before: DimInterval, behind: DimInterval) -> DimInterval:
    dim = (site.dims(0) or ())[axis]
    size = total(dim.high, before.high, behind.high)
    high = None if size is None else max(size, 0)
    least = dim.low + before.low + behind.low
    found = site.dim(0, axis, max(least, 0), high)
    if before.number is None or behind.number is None:
        return found
    added = before.number + behind.number
    # What is cut off may be more than there is.
    return found.after(dim, added) if added > 0 else found


def tiled(site: Site) -> Found:
    """Each dim, as often as it is repeated."""
    dims, repeats = site.dims(0), site.values(1)
    if dims is None or repeats is None or len(repeats) != len(dims):
        return []
    made = []
    for axis, (dim, count) in enumerate(zip(dims, repeats, strict=True)):
        # A factor of 1 leaves the other one itself, which stays equal to dims of its name; a
        # product would be another dim.
        if count.number == 1 or dim.number == 1:
            made.append(dim if count.number == 1 else as_dim(count))
            continue
        high = times(dim.high, count.high)
        made.append(site.dim(0, axis, dim.low * max(count.low, 0), high))
    return [tuple(made)]
