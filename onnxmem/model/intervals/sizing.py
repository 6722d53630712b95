"""Rules of operators that read the size of their output, or compute it from a number.

Windows and spectra, resizing and cropping, and the loops of com.microsoft that generate text.
"""

from math import floor, isfinite

from onnxmem.model.intervals.interval import (
    DimInterval,
    DimIntervals,
    end,
    product,
    start,
    times,
    total,
)
from onnxmem.model.intervals.selecting import ranged
from onnxmem.model.intervals.site import Found, Rule, Site, as_dim
from onnxmem.model.intervals.values import integers

_TWO: DimInterval = DimInterval.exact(2)


def number(site: Site, index: int) -> DimInterval | None:
    """An input of one element as the number of a dim; ``None``: it is omitted."""
    known = site.known(index)
    if known is None:
        return None
    low, high = start(known.value.least), end(known.value.most)
    return DimInterval(low, high, site.dim(0, 0, low, high).name)


def _computed(site: Site, axis: int, low: int, high: int | None) -> DimInterval:
    return site.dim(0, axis, max(low, 0), None if high is None else max(high, 0))


def of_sizes(index: int) -> Rule:
    """The elements of an input are the dims."""

    def rule(site: Site) -> Found:
        values = site.values(index)
        return [] if values is None else [tuple(map(as_dim, values))]

    return rule


def window(site: Site) -> Found:
    """HannWindow and the like: as many samples as the input says."""
    size = number(site, 0)
    return [] if size is None else [(_computed(site, 0, size.low, size.high),)]


def mel_weights(site: Site) -> Found:
    """[dft_length // 2 + 1, num_mel_bins]."""
    bins, length = number(site, 0), number(site, 1)
    if bins is None or length is None:
        return []
    spectrum = _half(site, 0, length, is_half=True)
    return [(spectrum, _computed(site, 1, bins.low, bins.high))]


def _half(site: Site, axis: int, length: DimInterval, *, is_half: bool) -> DimInterval:
    """The frequencies of a transform: of a one-sided one, half of them and one."""
    if not is_half:
        return _computed(site, axis, length.low, length.high)
    high = None if length.high is None else length.high // 2 + 1
    return _computed(site, axis, length.low // 2 + 1, high)


def short_transforms(site: Site) -> Found:
    """STFT: [b, frames, frequencies, 2] of a signal [b, length, 1 or 2]."""
    signal, step, length = site.dims(0), number(site, 1), number(site, 3)
    shape = site.dims(2)
    if length is None and shape:
        length = shape[0]
    if signal is None or len(signal) < 2 or step is None or length is None:  # noqa: PLR2004 - with a length
        return []
    # Most frames: the shortest windows in the smallest steps. Fewest: the longest in the largest.
    whole = signal[1]
    high = None if whole.high is None else (whole.high - length.low) // max(step.low, 1) + 1
    low = 0
    if step.high and length.high is not None:
        low = (whole.low - length.high) // step.high + 1
    bins = _half(site, 2, length, is_half=bool(site.integer("onesided", 1)))
    return [(signal[0], _computed(site, 1, low, high), bins, _TWO)]


def transform(site: Site) -> Found:
    """DFT: the length along an axis; [..., 2]."""
    dims, length = site.dims(0), number(site, 1)
    if dims is None or len(dims) < 2 or site.integer("inverse"):  # noqa: PLR2004 - numbers have two parts
        return []
    axis = site.integer("axis", 1)
    if site.known(2) is not None:
        chosen = integers(site.known(2))
        if chosen is None:
            return []
        axis = chosen[0]
    # The default axis is 1, and -2 since opset 20: the same axis in three dims alone.
    elif "axis" not in site.node.attributes and len(dims) != 3:  # noqa: PLR2004 - the default is 1, then -2
        return []
    axis %= len(dims)
    whole = dims[axis] if length is None else length
    made = [*dims[:-1], _TWO]
    made[axis] = _half(site, axis, whole, is_half=bool(site.integer("onesided")))
    return [tuple(made)]


def cropped(site: Site) -> Found:
    """CenterCropPad: the dims of some axes."""
    dims, sizes = site.dims(0), site.values(1)
    if dims is None:
        return []
    axes = _axes(site, dims)
    if sizes is None or len(sizes) != len(axes):
        return [_with(dims, axes, [site.dim(0, axis, 0, None) for axis in axes])]
    return [_with(dims, axes, list(map(as_dim, sizes)))]


def image_of_columns(site: Site) -> Found:
    """Col2Im: columns [n, c x block, l] -> [n, c, image]."""
    columns, image, block = site.dims(0), site.values(1), site.values(2)
    if columns is None or len(columns) != 3 or image is None or block is None:  # noqa: PLR2004 - [n, c x block, l]
        return []
    # The columns hold c x block: most channels where the blocks are smallest.
    least_elements = product([DimInterval.exact(max(each.low, 1)) for each in block]) or 1
    most_elements = product(list(block))
    high = None if columns[1].high is None else columns[1].high // least_elements
    low = columns[1].low // most_elements if most_elements else 0
    return [(columns[0], _computed(site, 1, low, high), *map(as_dim, image))]


def grid(site: Site) -> Found:
    """AffineGrid: a size [n, c, h, w] -> [n, h, w, 2], with depth [n, d, h, w, 3]."""
    size = site.values(1)
    if size is None or len(size) not in {4, 5}:
        return []
    spatial = tuple(map(as_dim, size[2:]))
    return [(as_dim(size[0]), *spatial, DimInterval.exact(len(spatial)))]


def resized(site: Site) -> Found:
    """Resize and Upsample: by sizes, or floor(dim x scale), of all axes or of some."""
    dims = site.dims(0)
    if dims is None:
        return []
    axes = _axes(site, dims)
    sizes = site.values(3)
    if sizes is not None and len(sizes) == len(axes):
        policy = site.node.attributes.get("keep_aspect_ratio_policy", "stretch")
        return [_with(dims, axes, _to_sizes(site, [dims[axis] for axis in axes], sizes, policy))]
    index = 1 if len(site.inputs) == 2 else 2  # noqa: PLR2004 - before opset 11 it has two inputs
    scales = site.known(index)
    if scales is None or scales.elements is None or scales.elements.low.size != len(axes):
        return []
    made = []
    for axis, low, high in zip(
        axes, scales.elements.low.ravel(), scales.elements.high.ravel(), strict=True
    ):
        dim = dims[axis]
        if low == high == 1:
            made.append(dim)
            continue
        most = None if dim.high is None or not isfinite(high) else floor(dim.high * high)
        made.append(site.dim(0, axis, floor(dim.low * low) if low > 0 else 0, most))
    return [_with(dims, axes, made)]


def _axes(site: Site, dims: DimIntervals) -> tuple[int, ...]:
    """The attribute of that name, counted from the first axis; all axes where it is not given."""
    axes = site.numbers("axes", tuple(range(len(dims))))
    return tuple(axis % len(dims) for axis in axes)


def _with(dims: DimIntervals, axes: tuple[int, ...], changed: list[DimInterval]) -> DimIntervals:
    found = list(dims)
    for axis, dim in zip(axes, changed, strict=True):
        found[axis] = dim
    return tuple(found)


def _to_sizes(
    site: Site, dims: list[DimInterval], sizes: DimIntervals, policy: object
) -> list[DimInterval]:
    """The sizes; where the aspect ratio is kept, one scale for all axes, the least or the largest
    that a size asks for.
    """
    if policy == "stretch":
        return list(map(as_dim, sizes))
    # The scale is the least of all ratios, so that no dim exceeds its size. Otherwise it is the
    # largest, which is at its upper end where the dims that it divides by are at their least.
    if policy == "not_larger":
        return [site.dim(0, axis, 0, size.high) for axis, size in enumerate(sizes)]
    ratios = [
        None if size.high is None or not dim.low else size.high / dim.low
        for dim, size in zip(dims, sizes, strict=True)
    ]
    known = [ratio for ratio in ratios if ratio is not None]
    largest = max(known) if len(known) == len(ratios) and known else None
    # ``round_int`` of ONNX's Resize: to the nearest, halves up.
    return [
        site.dim(
            0,
            axis,
            0,
            None if largest is None or dim.high is None else floor(dim.high * largest + 0.5),
        )
        for axis, dim in enumerate(dims)
    ]


def reduced(site: Site) -> Found:
    """ReduceSum and the like where a run decides the axes: each dim is kept, or is 1."""
    dims, axes = site.dims(0), site.known(1)
    if dims is None or axes is None or axes.exact is not None or not site.integer("keepdims", 1):
        return []
    return [
        tuple(
            site.dim(0, axis, min(dim.low, 1), None if dim.high is None else max(dim.high, 1))
            for axis, dim in enumerate(dims)
        )
    ]


def reduced_elements(site: Site) -> int | None:
    """The most elements of a reduction: along an axis of none, it has one."""
    dims = site.dims(0)
    if dims is None:
        return None
    return times(*(None if dim.high is None else max(dim.high, 1) for dim in dims))


def counted(site: Site) -> Found:
    """com.microsoft.Range: its step may be left out, and is 1 then."""
    if site.known(2) is not None:
        return ranged(site)
    first, limit = site.known(0), site.known(1)
    if first is None or limit is None:
        return []
    most, fewest = limit.value.most - first.value.least, limit.value.least - first.value.most
    high = floor(most) if isfinite(most) else None
    return [(_computed(site, 0, floor(fewest) if isfinite(fewest) else 0, high),)]


def regions(site: Site) -> Found:
    """com.microsoft.CropAndResize: [regions, c, height, width]."""
    image, chosen, size = site.dims(0), site.dims(1), site.values(3)
    if image is None or len(image) != 4 or not chosen or size is None or len(size) != 2:  # noqa: PLR2004 - an image
        return []
    return [(chosen[0], image[1], *map(as_dim, size))]


def transposed_convolution(site: Site) -> Found:
    """com.microsoft.ConvTransposeWithDynamicPads: what is cut off on both sides is an input."""
    image, weight, pads = site.dims(0), site.dims(1), site.values(2)
    if image is None or weight is None or len(image) != len(weight):
        return []
    channels = weight[1].number
    if channels is None or "output_shape" in site.node.attributes:
        return []
    rank = len(image) - 2
    ones, none = (1,) * rank, (0,) * rank
    strides, dilations = site.numbers("strides", ones), site.numbers("dilations", ones)
    added = site.numbers("output_padding", none)
    made = []
    for axis, dim in enumerate(image[2:]):
        kernel = weight[axis + 2].number
        if kernel is None:
            return []
        # ONNX ConvTranspose: stride x (dim - 1) + output_padding + (kernel - 1) x dilation + 1 -
        # pads.
        fixed = added[axis] + (kernel - 1) * dilations[axis] + 1 - strides[axis]
        before, behind = (
            (pads[axis], pads[axis + rank])
            if pads is not None and len(pads) == 2 * rank
            else (DimInterval(0, None), DimInterval(0, None))
        )
        high = None if dim.high is None else dim.high * strides[axis] + fixed
        high = None if high is None else high - max(before.low, 0) - max(behind.low, 0)
        cut = total(before.high, behind.high)
        low = 0 if cut is None else dim.low * strides[axis] + fixed - cut
        made.append(_computed(site, axis + 2, low, high))
    count = DimInterval.exact(channels * site.integer("group", 1))
    return [(image[0], count, *made)]


def path(site: Site) -> Found:
    """com.microsoft.DynamicTimeWarping: costs [m, n] -> [2, steps from one corner to the other]."""
    costs = site.dims(0)
    if costs is None or len(costs) < 2:  # noqa: PLR2004 - a matrix
        return []
    rows, columns = costs[-2:]
    # A path goes along both sides at most, and as far as the longer one at least, in diagonal
    # steps.
    most = total(rows.high, columns.high)
    high = None if most is None else most - 1
    return [(_TWO, _computed(site, 1, max(rows.low, columns.low), high))]


def merged_tokens(site: Site) -> Found:
    """com.microsoft.BifurcationDetector: the tokens so far, and the predicted ones that hold."""
    current, predicted = site.dims(1), site.dims(3)
    if not current:
        return []
    most = current[0].high
    if predicted:
        most = total(most, predicted[0].high)
    return [(_computed(site, 0, current[0].low, most),)]


def generated(site: Site) -> Found:
    """com.microsoft.GreedySearch and Sampling: [b, max_length]."""
    texts, most = site.dims(0), number(site, 1)
    if not texts or most is None:
        return []
    return [(texts[0], _computed(site, 1, most.low, most.high))]


def searched(site: Site) -> Found:
    """com.microsoft.BeamSearch: [b, num_return_sequences, max_length], scores of each, and of each
    token of the vocabulary.
    """
    texts, most = site.dims(0), number(site, 1)
    beams, kept = number(site, 3), number(site, 4)
    if not texts or most is None or beams is None or kept is None:
        return []
    returned = _computed(site, 1, kept.low, kept.high)
    words = site.integer("vocab_size", -1)
    vocabulary = DimInterval.exact(words) if words > 0 else site.dim(2, 3, 0, None)
    steps = site.dim(2, 0, 0, most.high)
    return [
        (texts[0], returned, _computed(site, 2, most.low, most.high)),
        (texts[0], returned),
        (steps, texts[0], site.dim(2, 2, beams.low, beams.high), vocabulary),
    ]
