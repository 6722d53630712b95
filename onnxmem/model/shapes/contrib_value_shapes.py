"""Shapes of onnxruntime's operators that follow from the elements of an input.

The rules are those of ``contrib_defs.cc`` and ``range_schema_defs.cc``; nothing is known where the
elements are not.
"""

from collections.abc import Callable, Mapping
from math import ceil
from typing import Final

from onnxmem.model.shapes.matrix_shapes import product
from onnxmem.model.shapes.node_facts import Found, NodeFacts
from onnxmem.ops.spec import Dims

_IMAGE_RANK: Final = 4
_NUM_NOT_SPATIAL: Final = 2


def _with_axis(facts: NodeFacts) -> Found:
    """ExpandDims: an axis of length 1, counted from the end where it is negative."""
    dims, axis = facts.dims(0), facts.whole_numbers(1)
    if dims is None or axis is None or len(axis) != 1 or not -len(dims) <= axis[0] + 1:
        return {}
    place = axis[0] if axis[0] >= 0 else len(dims) + axis[0] + 1
    if place > len(dims):
        return {}
    return facts.outputs((*dims[:place], 1, *dims[place:]), elem_type=facts.elem_type(0))


def _padded(facts: NodeFacts) -> Found:
    """Pad: as many elements before each axis as the first half says, behind it as the second."""
    dims, pads = facts.dims(0), facts.whole_numbers(1)
    if dims is None or pads is None or len(pads) != 2 * len(dims):
        return {}
    sides = zip(dims, pads[: len(dims)], pads[len(dims) :], strict=True)
    return facts.outputs(tuple(map(sum, sides)), elem_type=facts.elem_type(0))


def _counted(facts: NodeFacts) -> Found:
    """Range: from start to limit by delta, 1 where that is left out."""
    names = (*facts.node.input, "", "", "")[:3]
    given = [facts.values.get(name) for name in names if name]
    if any(value is None or value.size != 1 for value in given):
        return {}
    start, limit, delta = (*(value.item() for value in given if value is not None), 1)[:3]
    if not delta or not all(abs(end) < float("inf") for end in (start, limit, delta)):
        return {}
    count = max(ceil((limit - start) / delta), 0)
    return facts.outputs((count,), elem_type=facts.elem_type(0))


def _cropped(facts: NodeFacts) -> Found:
    """CropAndResize: X: [N, C, H, W], boxes: [R, 4], size: two elements -> [R, C, *size]."""
    image, boxes, size = facts.dims(0), facts.dims(1), facts.whole_numbers(3)
    if image is None or len(image) != _IMAGE_RANK or not boxes or size is None:
        return {}
    return facts.outputs((boxes[0], image[1], *size), elem_type=facts.elem_type(0))


def _product_of_packed(facts: NodeFacts) -> Found:
    """MatMulFpQ4: A: [*B, K], the dims of what is packed: K and N -> [*B, N]."""
    made = product(facts.dims(0), facts.whole_numbers(2))
    return facts.outputs(made, elem_type=facts.elem_type(0))


def _transposed(facts: NodeFacts) -> Found:
    """ConvTransposeWithDynamicPads: X: [N, C, *S], W: [C, M / g, *K] -> [N, M, *sizes].

    A size is stride x (S - 1) + output padding + reach of the filter - both pads.
    """
    dims, filters = facts.dims(0), facts.dims(1)
    if dims is None or filters is None or len(dims) != len(filters):
        return {}
    rank = len(dims) - _NUM_NOT_SPATIAL
    pads = facts.whole_numbers(2) if facts.has(2) else (0,) * (2 * rank)
    strides, dilations = (facts.integers(name) for name in ("strides", "dilations"))
    extra = facts.integers("output_padding") or (0,) * rank
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    lists: tuple[Dims, ...] = (strides, dilations, extra)
    if rank < 1 or pads is None or len(pads) != 2 * rank or {*map(len, lists)} != {rank}:
        return {}
    sizes = tuple(
        strides[axis] * (dims[axis + 2] - 1)
        + extra[axis]
        + (filters[axis + 2] - 1) * dilations[axis]
        + 1
        - pads[axis]
        - pads[axis + rank]
        for axis in range(rank)
    )
    channels = filters[1] * facts.integer("group", 1)
    return facts.outputs((dims[0], channels, *sizes), elem_type=facts.elem_type(0))


VALUE_RULES: Final[Mapping[str, Callable[[NodeFacts], Found]]] = {
    "ConvTransposeWithDynamicPads": _transposed,
    "CropAndResize": _cropped,
    "ExpandDims": _with_axis,
    "MatMulFpQ4": _product_of_packed,
    "Pad": _padded,
    "Range": _counted,
}
