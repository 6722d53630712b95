"""Resize and Upsample: the places and weights of each output row and column, and what an
antialiasing filter makes in its first pass.

The nearest and the cubic kernels take nothing without ``antialias``.
"""

from collections.abc import Iterable
from math import ceil

from onnxmem.ops.spec import Dims
from onnxmem.runtimes.onnxruntime.kernel_use import UnknownError, Use, axis_of, product
from onnxmem.runtimes.onnxruntime.scratch.rule import Rule

_FLOAT = 4
_IMAGE = 16
"""Two places in 32 bits and two weights, for an output row or column of an image."""
_VOLUME = 24
"""Two places in 64 bits and two weights, for an output position along an axis of a volume."""
_SUPPORT = {"linear": 2, "cubic": 4}
"""Input positions that the filter spans at scale 1."""
_SCALES = 2


def _resized(use: Use) -> tuple[int, ...]:
    """X: [*D] -> Y: [*D']: nothing where no dim changes."""
    mode, image, result = use.text("mode", "nearest"), use.dims(0), use.out_dims()
    if image == result or mode not in _SUPPORT:
        return ()
    if use.integer("antialias", 0):
        return tuple(_filtered(use, _SUPPORT[mode], image, result))
    return _interpolated(image, result) if mode == "linear" else ()


def _interpolated(image: Dims, result: Dims) -> tuple[int, ...]:
    """Rows and columns of an image, channels first or last; else the last three dims' positions."""
    axes = _image_axes(image, result)
    if axes:
        return (_IMAGE * sum(result[axis] for axis in axes),)
    return (_VOLUME * sum(result[-3:]),)


def _image_axes(image: Dims, result: Dims) -> tuple[int, ...]:
    """The axes of height and width; none where the input is no image."""
    rank = len(image)
    if rank == 2:  # noqa: PLR2004 - one image of one channel
        return (0, 1)
    if rank != 4:  # noqa: PLR2004 - images with channels
        return ()
    return (1, 2) if image[1:3] != result[1:3] and image[3] == result[3] else (2, 3)


def _filtered(use: Use, support: int, image: Dims, result: Dims) -> Iterable[int]:
    """Each axis: a window of weights for each output position; then one image with its width
    resized, in the input's type.
    """
    axes = _image_axes(image, result)
    for axis in axes[::-1]:
        window = ceil(support / 2 * max(1 / _scale(use, axis), 1.0)) * 2 + 1
        yield _FLOAT * window * result[axis]
    rows, columns = axes
    channels = product(image[1:]) // (image[rows] * image[columns])
    yield use.element_bytes() * channels * image[rows] * result[columns]


def _scale(use: Use, axis: int) -> float:
    """Output over input positions, as the node says it or as its sizes tell."""
    if not use.has(_SCALES) or use.dims(_SCALES) == (0,):
        if use.text("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise UnknownError
        return use.out_dims()[axis] / use.dims(0)[axis]
    rank = len(use.dims(0))
    axes = [axis_of(each, rank) for each in use.integers("axes", range(rank))]
    return float(use.values(_SCALES)[axes.index(axis)])


RULES = (
    Rule("Resize", "", _resized, "core/providers/cpu/tensor/upsample.cc, upsample_antialias.h"),
    Rule("Upsample", "", _resized, "core/providers/cpu/tensor/upsample.cc: BaseCompute"),
)
