"""Shapes of what ONNX's domain held once and onnxruntime still runs under any opset.

The rules are those of ``contrib_defs.cc`` of onnxruntime, ``RegisterContribSchemas``; those of the
statistics that BatchNormalization put out up to opset 13, of ONNX's ``nn/old.cc``.
"""

from collections.abc import Callable, Mapping
from typing import Final

from onnxmem.model.shapes.node_facts import Found, NodeFacts
from onnxmem.ops.spec import Dims

_IMAGE_RANK: Final = 4


def _like_first(facts: NodeFacts) -> Found:
    return facts.outputs(facts.dims(0), elem_type=facts.elem_type(0))


def _normalised(facts: NodeFacts) -> Found:
    """All that comes out behind the data is as long as the scale: one element a channel."""
    channels = facts.dims(1)
    statistics = (channels,) * (len(facts.node.output) - 1)
    found = facts.outputs(None, *statistics, elem_type=facts.elem_type(1))
    return found | _like_first(facts)


def _cropped(facts: NodeFacts) -> Found:
    """X: [N, C, H, W] without a border (left, top, right, bottom), or its corner of a size."""
    dims, border, scale = facts.dims(0), facts.integers("border"), facts.integers("scale")
    if dims is None or len(dims) != _IMAGE_RANK or len(border) != _IMAGE_RANK:
        return {}
    left, top, right, bottom = border
    image = scale or (dims[2] - top - bottom, dims[3] - left - right)
    return facts.outputs((*dims[:2], *image), elem_type=facts.elem_type(0))


def _sliced(facts: NodeFacts) -> Found:
    """From starts to ends, by axes or from the first axis on."""
    dims, starts, ends = facts.dims(0), facts.whole_numbers(1), facts.whole_numbers(2)
    if dims is None or starts is None or ends is None:
        return {}
    axes = facts.whole_numbers(3) if facts.has(3) else tuple(range(len(starts)))
    if axes is None or not len(starts) == len(ends) == len(axes):
        return {}
    if not all(-len(dims) <= axis < len(dims) for axis in axes):
        return {}
    made = list(dims)
    for axis, start, end in zip(axes, starts, ends, strict=True):
        made[axis] = len(range(*slice(start, end).indices(dims[axis])))
    return facts.outputs(tuple(made), elem_type=facts.elem_type(0))


def _filled(facts: NodeFacts) -> Found:
    """By an attribute, by the elements of the input, or as the input is with more axes behind."""
    shape: Dims | None = facts.integers("shape")
    if not shape and facts.integer("input_as_shape"):
        shape = facts.whole_numbers(0)
    elif not shape:
        shape = facts.dims(0)
        shape = None if shape is None else (*shape, *facts.integers("extra_shape"))
    return facts.outputs(shape, elem_type=facts.elem_type(0))


_LIKE_FIRST: Final = (
    *("Affine", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh", "ThresholdedRelu"),
)
DROPPED_RULES: Final[Mapping[str, Callable[[NodeFacts], Found]]] = {
    **dict.fromkeys(_LIKE_FIRST, _like_first),
    "BatchNormalization": _normalised,
    "Crop": _cropped,
    "DynamicSlice": _sliced,
    "GivenTensorFill": _filled,
}
