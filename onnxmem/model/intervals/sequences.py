"""What is known of sequences: their length, and what all elements have in common."""

from dataclasses import replace
from math import inf
from typing import Final

from onnx import TensorProto

from onnxmem.model.graph import DType, dtype_of
from onnxmem.model.intervals.interval import (
    DimInterval,
    Known,
    ValueInterval,
    joined,
    least,
    most_of,
    renamed,
    times,
    total,
)
from onnxmem.model.intervals.site import Site


def _empty(site: Site) -> Known | None:
    dtype = dtype_of(site.integer("dtype", TensorProto.FLOAT))
    return Known(dtype, None, max_elements=0, count=DimInterval.exact(0))


def _constructed(site: Site) -> Known | None:
    if any(each is None for each in site.inputs):
        return None
    known = [each for each in site.inputs if each is not None]
    found = known[0]
    for other in known[1:]:
        found = joined(found, other, site.node.outputs[0])
    whole = total(*(each.most_elements for each in known))
    return replace(found, count=DimInterval.exact(len(known)), whole=whole)


def _inserted(site: Site) -> Known | None:
    sequence, added = site.known(0), site.known(1)
    if sequence is None or added is None or sequence.count is None:
        return None
    one = replace(added, count=DimInterval.exact(1))
    count = sequence.count
    high = None if count.high is None else count.high + 1
    low, name = count.low + 1, f"{site.node.outputs[0]}:length"
    # The sum of the elements stays bounded where the largest element times the count would not be.
    whole = total(sequence.most_in_all, added.most_elements)
    found = joined(sequence, one, site.node.outputs[0])
    return replace(found, count=DimInterval(low, high, name), whole=whole)


def _erased(site: Site) -> Known | None:
    sequence = site.known(0)
    if sequence is None or sequence.count is None:
        return None
    count = sequence.count
    high = None if count.high is None else max(count.high - 1, 0)
    name = f"{site.node.outputs[0]}:length"
    return replace(sequence, count=DimInterval(max(count.low - 1, 0), high, name))


def _element(site: Site) -> Known | None:
    sequence = site.known(0)
    if sequence is None or sequence.count is None:
        return None
    # What is known of all elements holds for any of them.
    return replace(renamed(sequence, site.node.outputs[0]), count=None, whole=None)


def _concatenated(site: Site) -> Known | None:
    sequence = site.known(0)
    if sequence is None or sequence.count is None or sequence.dims is None:
        return None
    dims, count, is_new = list(sequence.dims), sequence.count, site.integer("new_axis")
    axis = site.integer("axis")
    axis = axis + len(dims) + bool(is_new) if axis < 0 else axis
    if is_new:
        dims.insert(axis, site.dim(0, axis, count.low, count.high))
    elif axis < len(dims):
        most = times(dims[axis].high, count.high)
        # The elements may differ along the axis: each has between the least and the most.
        dims[axis] = site.dim(0, axis, dims[axis].low * count.low, most)
    return Known(sequence.dtype, tuple(dims), sequence.value.uniform(), sequence.most_in_all)


def _parted(site: Site) -> Known | None:
    """SplitToSequence: pieces along an axis, each at most the whole."""
    dims, known = site.dims(0), site.known(0)
    axis = None if dims is None else site.axis(len(dims))
    if dims is None or known is None or axis is None:
        return None
    whole = piece = dims[axis]
    name = site.node.outputs[0]
    if site.known(1) is None:
        piece = DimInterval.exact(1)
    else:
        lengths = site.values(1)
        ends = None if lengths is None else [each.high for each in lengths]
        high = None if ends is None else most_of(ends or (0,))
        piece = DimInterval(0, least(piece.high, high), f"{name}:{axis}")
    # ``keepdims`` counts only without lengths (onnx: SplitToSequence).
    is_kept = site.known(1) is not None or site.integer("keepdims", 1)
    pieces = (*dims[:axis], *((piece,) if is_kept else ()), *dims[axis + 1 :])
    return Known(
        known.dtype,
        pieces,
        known.value.uniform(),
        count=DimInterval(0, whole.high, f"{name}:length"),
        whole=known.most_elements,
    )


def _length(site: Site) -> Known | None:
    sequence = site.known(0)
    count = None if sequence is None else sequence.count
    low, high = (0, None) if count is None else (count.low, count.high)
    value = ValueInterval.of(low, inf if high is None else high)
    return Known(DType.INT64, (), value)


SEQUENCES: Final = {
    "ConcatFromSequence": _concatenated,
    "SequenceAt": _element,
    "SequenceConstruct": _constructed,
    "SequenceEmpty": _empty,
    "SequenceErase": _erased,
    "SequenceInsert": _inserted,
    "SequenceLength": _length,
    "SplitToSequence": _parted,
}
