"""Rules of operators that select: how many elements they keep is decided by data or by a value."""

from dataclasses import replace
from math import ceil, inf, isfinite, prod

from onnxmem.model.intervals.interval import (
    DimInterval,
    DimIntervals,
    end,
    least,
    product,
    start,
    times,
    total,
)
from onnxmem.model.intervals.site import Found, Site, as_dim
from onnxmem.model.intervals.values import slice_parts


def non_zero(site: Site) -> Found:
    """[rank, n], n at most the elements of the input."""
    dims = site.dims(0)
    # nonzero_op.cc: a scalar counts as a vector of one element, hence one row for it.
    count = site.dim(0, 1, 0, site.most_elements(0))
    return [None if dims is None else (DimInterval.exact(max(len(dims), 1)), count)]


def selected_boxes(site: Site) -> Found:
    """Boxes [b, s, 4], scores [b, c, s] -> [n, 3], at most some boxes of each class."""
    scores, limit = site.dims(1), site.known(2)
    boxes = site.dims(0)
    if scores is None or len(scores) != 3:  # noqa: PLR2004 - its rank
        return [(site.dim(0, 0, 0, None), DimInterval.exact(3))]
    # By default max_output_boxes_per_class is 0, which selects no box.
    most = 0 if limit is None else limit.value.most
    spatial = least(scores[2].high, boxes[1].high if boxes and len(boxes) > 1 else None)
    per_class = least(spatial, end(most))
    count = times(per_class, product(scores[:2]))
    return [(site.dim(0, 0, 0, count), DimInterval.exact(3))]


def unique(site: Site) -> Found:
    """The elements, or along an axis: at most all. Inverse indices are as many as the input."""
    dims, axis = site.dims(0), None
    if "axis" in site.node.attributes:
        if dims is None or (axis := site.axis(len(dims))) is None:
            return []
        whole = dims[axis]
    else:
        most = site.most_elements(0)
        low = 0 if dims is None else prod(dim.low for dim in dims)
        whole = site.dim(2, 0, low, most)
    # Any element at all makes at least one distinct element.
    count = site.dim(0, axis or 0, min(whole.low, 1), whole.high)
    kept = (count,) if axis is None or dims is None else (*dims[:axis], count, *dims[axis + 1 :])
    return [kept, (count,), (whole,), (count,)]


def unique_numbers(site: Site) -> Found:
    """com.microsoft.Unique: the distinct elements [n], the index of each among them, and counts."""
    dims = site.dims(0)
    if dims is None:
        return []
    low = min(prod(dim.low for dim in dims), 1)
    count = site.dim(0, 0, low, site.most_elements(0))
    return [(count,), dims, (count,)]


def compressed(site: Site) -> Found:
    """What a condition selects: along an axis, or of all elements."""
    dims, chosen = site.dims(0), site.most_elements(1)
    if "axis" not in site.node.attributes:
        return [(site.dim(0, 0, 0, least(site.most_elements(0), chosen)),)]
    axis = None if dims is None else site.axis(len(dims))
    if dims is None or axis is None:
        return []
    kept = site.dim(0, axis, 0, least(dims[axis].high, chosen))
    return [(*dims[:axis], kept, *dims[axis + 1 :])]


def split_strings(site: Site) -> Found:
    """StringSplit: the pieces of each string, at most one more than its splits; how many."""
    dims, most = site.dims(0), site.node.attributes.get("maxsplit")
    if dims is None:
        return []
    high = most + 1 if isinstance(most, int) and most >= 0 else None
    return [(*dims, site.dim(0, len(dims), 0, high)), dims]


def tokens(site: Site) -> Found:
    """com.microsoft.Tokenizer: the tokens of each text, as many as the longest one has.

    No dim tells the length of a text.
    """
    dims = site.dims(0)
    if dims is None:
        return []
    return [(*dims, site.dim(0, len(dims), 0, None))]


def normalized_strings(site: Site) -> Found:
    """[n] or [1, n] without the stop words; one empty string if none is left."""
    dims = site.dims(0)
    if not dims:
        return []
    if not site.node.attributes.get("stopwords") and dims[-1].low:
        return [dims]
    high = dims[-1].high
    return [(*dims[:-1], site.dim(0, len(dims) - 1, 1, None if high is None else max(high, 1)))]


def top(site: Site) -> Found:
    """A number along an axis: k; k is an attribute up to opset 9."""
    dims = site.dims(0)
    axis = None if dims is None else site.axis(len(dims), -1)
    if dims is None or axis is None:
        return []
    given, limit = site.integer("k", -1), site.known(1)
    low, high = (given, given) if given >= 0 else (0, None)
    if limit is not None:
        low, high = start(limit.value.least), end(limit.value.most)
    kept = site.dim(0, axis, low, least(high, dims[axis].high))
    return [(*dims[:axis], kept, *dims[axis + 1 :])] * 2


def ranged(site: Site) -> Found:
    """ceil((limit - start) / delta) numbers."""
    first, limit, delta = (site.known(index) for index in range(3))
    if first is None or limit is None or delta is None:
        return []
    # Most numbers: the widest span by the smallest step. Fewest: the narrowest by the largest.
    step = delta.value
    count, fewest = inf, 0.0
    if step.least > 0:
        count = _ceil((limit.value.most - first.value.least) / step.least)
        fewest = _ceil((limit.value.least - first.value.most) / step.most)
    elif step.most < 0:
        count = _ceil((first.value.most - limit.value.least) / -step.most)
        fewest = _ceil((first.value.least - limit.value.most) / -step.least)
    # ``arange(0, n, 1)`` has n elements: the dim is named like n, and so equal to dims of that
    # name.
    name = ""
    if (
        limit.value.names is not None
        and first.value.most == first.value.least == 0
        and step.least == step.most == 1
    ):
        name = str(limit.value.names.ravel()[0])
    dim = site.dim(0, 0, start(fewest), end(count))
    return [(replace(dim, name=name) if name and dim.number is None else dim,)]


def _ceil(number: float) -> float:
    """The number rounded up; infinities and NaN are infinite."""
    if number != number or number == inf:  # noqa: PLR0124 - NaN
        return inf
    return number if number == -inf else float(ceil(number))


def sliced(site: Site) -> Found:
    """What is between a start and a stop: at most the dim."""
    dims = site.dims(0)
    if dims is None:
        return []
    parts = slice_parts(site.inputs, site.node.attributes)
    if parts is None:
        # Any axis may be cut: none grows.
        return [tuple(site.dim(0, axis, 0, dim.high) for axis, dim in enumerate(dims))]
    made = list(dims)
    starts, stops = site.values(1), site.values(2)
    for position, (axis, part) in enumerate(parts.items()):
        if not -len(dims) <= axis < len(dims):
            return []
        axis %= len(dims)  # noqa: PLW2901 - counted from the front
        begin, stop, step = part
        later, sooner = _from_front(starts, position), _from_front(stops, position)
        first, last = begin, begin
        if begin is None:
            first, last = _first_start(site, position), None if later is None else later.high
        most_stop = sooner.high if stop is None and sooner is not None else stop
        made[axis] = _cut(site, axis, dims[axis], (first, last, stop, most_stop, step))
        width = _width(site, position)
        if width is not None and step == 1:
            found = made[axis]
            high = width if found.high is None else min(found.high, width)
            made[axis] = site.dim(0, axis, min(found.low, high), high)
    return [tuple(made)]


def _width(site: Site, position: int) -> int | None:
    """What a stop is beyond its start: ``x[i : i + 2]`` has at most 2 elements, whatever i is.

    Where the stop is not before the start, counting either from the end, or clamping it, only
    brings them closer. ``x[i + 2 : i]`` is ``x[1 : -1]`` if i is -1, all but two elements, and
    empty if i is not negative.
    """
    first, last = site.term(1, position), site.term(2, position)
    if first is None or last is None or first.symbol != last.symbol:
        return None
    if last.added < first.added:
        return None if _from_front(site.values(2), position) is None else 0
    return last.added - first.added


def _first_start(site: Site, position: int) -> int | None:
    """The start of most elements: the least, whether all are counted from the front or all from the
    end; ``None``: they may be either.
    """
    known = site.known(1)
    value = None if known is None else known.elements
    if value is None or position >= value.low.size:
        return None
    low, high = (ends.ravel()[position] for ends in (value.low, value.high))
    return int(low) if isfinite(low) and (low >= 0 or high < 0) else None


def _from_front(values: DimIntervals | None, position: int) -> DimInterval | None:
    """A start or a stop that is counted from the front; ``None``: that is not known of it."""
    if values is None or position >= len(values) or values[position].low < 0:
        return None
    return values[position]


_Part = tuple[int | None, int | None, int | None, int | None, int | None]
"""The start of most elements and that of fewest, the stop, its upper end, and the step of one axis;
``None``: unknown."""


def _cut(site: Site, axis: int, dim: DimInterval, part: _Part) -> DimInterval:
    """A dim after it was cut: at most itself."""
    start, last, stop, most_stop, step = part
    high = dim.high
    # Cut behind its end it is the dim itself, which stays equal to the input's in every run.
    if start == last == 0 and step == 1 and stop is not None and high is not None and stop >= high:
        return dim
    if step == 1 and start is not None:
        low = 0
        if last is not None and last >= 0 and stop is not None:
            low = len(range(*slice(last, stop).indices(dim.low)))
        return site.dim(0, axis, low, _most_left(high, start, most_stop))
    if step and high is not None:
        high = -(-high // abs(step))
    return site.dim(0, axis, 0, high)


def _most_left(high: int | None, start: int, stop: int | None) -> int | None:
    """The most of at most ``high`` elements that are between a start and a stop."""
    # Counted from the front, those before the start are gone, and those from the stop on. Counted
    # from the end, at most -start or -stop are taken or gone.
    if start >= 0:
        behind = high if stop is None or stop >= 0 else total(high, stop)
        most = least(behind, stop if stop is not None and stop >= 0 else None)
        return None if most is None else max(most - start, 0)
    if stop is None:
        return least(high, -start)
    return least(high, -start, stop) if stop >= 0 else least(high, max(stop - start, 0))


def of_shape(site: Site) -> Found:
    """ConstantOfShape: the dims are the elements of the input."""
    values = site.values(0)
    return [None if values is None else tuple(map(as_dim, values))]


def one_hot(site: Site) -> Found:
    """The dims of the indices, and one of the depth."""
    dims, depth = site.dims(0), site.known(1)
    if dims is None or depth is None:
        return []
    axis = site.integer("axis", -1)
    axis = axis + len(dims) + 1 if axis < 0 else axis
    added = site.dim(0, axis, start(depth.value.least), end(depth.value.most))
    return [(*dims[:axis], added, *dims[axis:])]
