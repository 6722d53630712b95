"""Rules of operators whose inputs have dims that must agree, or are broadcast."""

from collections.abc import Sequence
from math import inf

from onnxmem.model.intervals.interval import DimInterval, DimIntervals, total
from onnxmem.model.intervals.site import Found, Site


def broadcast(
    site: Site, one: DimIntervals | None, other: DimIntervals | None
) -> DimIntervals | None:
    """The shape to which two shapes broadcast; ``None`` if one is unknown."""
    if one is None or other is None:
        return None
    rank = max(len(one), len(other))
    unit = DimInterval.exact(1)
    padded = [(unit,) * (rank - len(dims)) + dims for dims in (one, other)]
    return tuple(
        _broadcast_dim(site, axis, *pair) for axis, pair in enumerate(zip(*padded, strict=True))
    )


def _broadcast_dim(site: Site, axis: int, one: DimInterval, other: DimInterval) -> DimInterval:
    """Two dims are equal, or one of them is 1."""
    if one == other or other.number == 1:
        return one
    # A number other than 1 decides: the other dim is equal to it, or 1.
    if one.number == 1 or (other.number is not None and other.number != 1):
        return other
    if one.number is not None:
        return one
    both = [one.high, other.high]
    # Neither can be 1, so they are equal, and what bounds one bounds both.
    if one.low > 1 and other.low > 1:
        return same((one, other))
    high = None if None in both else max(each for each in both if each is not None)
    return site.dim(0, axis, min(one.low, other.low), high)


def same(dims: Sequence[DimInterval]) -> DimInterval:
    """A dim that several tensors share: the narrowest."""
    # The dims are equal in every run that succeeds, so what bounds one of them bounds all.
    narrowest = min(dims, key=lambda dim: inf if dim.high is None else dim.high)
    known = next((dim for dim in dims if dim.number is not None), None)
    return known or narrowest


def elementwise(site: Site) -> Found:
    """The shape to which all inputs broadcast."""
    shape: DimIntervals | None = ()
    for index, known in enumerate(site.inputs):
        if known is not None:
            shape = site.dims(index) if shape == () else broadcast(site, shape, site.dims(index))
    return [shape]


def concatenated(site: Site) -> Found:
    """The sum along one axis; the other dims are equal."""
    shapes = [site.dims(index) for index in range(len(site.inputs))]
    known = [dims for dims in shapes if dims is not None]
    axis = site.axis(len(known[0])) if known else None
    if axis is None or not known:
        return []
    rank = len(known[0])
    if any(len(dims) != rank for dims in known):
        return []
    # A part of unknown rank has no upper end, but adds no less than 0 to the lower one.
    length = total(*(None if dims is None else dims[axis].high for dims in shapes))
    low = sum(dims[axis].low for dims in known)
    joined = known[0][axis] if len(shapes) == 1 else site.dim(0, axis, low, length)
    # Numbers added to one open dim: what is sliced off again later has that dim, not just its ends.
    open_dims = [dims[axis] for dims in known if dims[axis].number is None]
    if len(open_dims) == 1 and len(known) == len(shapes) > 1:
        joined = joined.after(open_dims[0], sum(dims[axis].number or 0 for dims in known))
    return [
        tuple(
            joined if each == axis else same([dims[each] for dims in known]) for each in range(rank)
        )
    ]


def multiplied(site: Site) -> Found:
    """A [..., m, k] x B [..., k, n] -> [..., m, n]."""
    one, other = site.dims(0), site.dims(1)
    if not one or not other:
        return []
    batch = broadcast(site, one[:-2], other[:-2])
    if batch is None:
        return []
    # As numpy.matmul: a vector on the left has no m, one on the right no n.
    return [(*batch, *one[-2:-1], *(other[-1:] if len(other) > 1 else ()))]


def gemm(site: Site) -> Found:
    """A [m, k] x B [k, n] -> [m, n], each perhaps transposed."""
    one, other = site.dims(0), site.dims(1)
    if one is None or other is None or not len(one) == len(other) == 2:  # noqa: PLR2004 - matrices
        return []
    return [(one[1 if site.integer("transA") else 0], other[0 if site.integer("transB") else 1])]


def einsum(site: Site) -> Found:
    """Each letter is one dim."""
    equation = str(site.node.attributes.get("equation", "")).replace(" ", "")
    # Dims of an ellipsis have no letter, and an implicit output none that is written.
    if "." in equation or "->" not in equation:
        return []
    terms, _, output = equation.partition("->")
    letters: dict[str, list[DimInterval]] = {}
    for index, term in enumerate(terms.split(",")):
        dims = site.dims(index)
        if dims is None or len(dims) != len(term):
            return []
        for letter, dim in zip(term, dims, strict=True):
            letters.setdefault(letter, []).append(dim)
    if any(letter not in letters for letter in output):
        return []
    return [tuple(same(letters[letter]) for letter in output)]
