"""Shapes of onnxruntime's own image operators, channels first or last (domain com.microsoft).

Windows as in ``core/providers/cpu/nn/pool_attributes.h`` and ``conv_attributes.h``: at each place
``floor`` or ``ceil`` of (size + padding - reach) / stride, plus one; a window that would begin in
the padding behind the image is left out.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Final

from onnxmem.model.shapes.node_facts import Found, NodeFacts
from onnxmem.ops.spec import Dims

_SAME: Final = frozenset({"SAME_UPPER", "SAME_LOWER"})
_NUM_NOT_SPATIAL: Final = 2
"""Batch and channels."""


def _pooled(facts: NodeFacts, *, is_last: bool | None = None) -> Found:
    """X: [N, C, *S] or [N, *S, C] -> [N, C, *windows] or [N, *windows, C]."""
    last = bool(facts.integer("channels_last")) if is_last is None else is_last
    dims = facts.dims(0)
    spatial = _spatial(dims, last=last)
    windows = _windows(facts, spatial, facts.integers("kernel_shape")) if spatial else None
    return _image(facts, dims, windows, last=last)


def _pooled_to_one(facts: NodeFacts) -> Found:
    """X: [N, C, *S] or [N, *S, C] -> the same with 1 for each of S."""
    last, dims = bool(facts.integer("channels_last")), facts.dims(0)
    spatial = _spatial(dims, last=last)
    return _image(facts, dims, (1,) * len(spatial) if spatial else None, last=last)


def _pooled_last(facts: NodeFacts) -> Found:
    return _pooled(facts, is_last=True)


def _convolved_last(facts: NodeFacts) -> Found:
    """X: [N, *S, C], W: [M, C / g, *K] -> [N, *windows, M]."""
    dims, filters = facts.dims(0), facts.dims(1)
    spatial = _spatial(dims, last=True)
    if dims is None or not spatial or filters is None:
        return {}
    windows = _windows(facts, spatial, filters[_NUM_NOT_SPATIAL:])
    return _image(facts, (*dims[:-1], *filters[:1]), windows, last=True)


def _spatial(dims: Dims | None, *, last: bool) -> Dims | None:
    if dims is None or len(dims) <= _NUM_NOT_SPATIAL:
        return None
    return dims[1:-1] if last else dims[2:]


def _image(facts: NodeFacts, dims: Dims | None, spatial: Dims | None, *, last: bool) -> Found:
    """The dims of an image with others in the place of its spatial ones."""
    if dims is None or spatial is None:
        return {}
    made = (dims[0], *spatial, dims[-1]) if last else (*dims[:2], *spatial)
    return facts.outputs(made, elem_type=facts.elem_type(0))


def _windows(facts: NodeFacts, spatial: Dims, kernel: Dims) -> Dims | None:
    """How many windows there are along each axis; ``None`` where they do not fit."""
    rank = len(spatial)
    strides = facts.integers("strides") or (1,) * rank
    dilations = facts.integers("dilations") or (1,) * rank
    pads = _pads(facts, rank)
    if not len(kernel) == len(strides) == len(dilations) == rank or len(pads) != 2 * rank:
        return None
    if min(*strides, *dilations, *kernel) < 1 or min(pads) < 0:
        return None
    axes = zip(spatial, kernel, dilations, strides, pads[:rank], pads[rank:], strict=True)
    counts = tuple(chain.from_iterable(_counts(facts, axis) for axis in axes))
    return counts if min(counts) >= 0 else None


def _pads(facts: NodeFacts, rank: int) -> Dims:
    """Before and behind the image; none where the image alone counts."""
    explicit = facts.text("auto_pad") in {"", "NOTSET"}
    return (facts.integers("pads") if explicit else ()) or (0,) * (2 * rank)


def _counts(facts: NodeFacts, axis: tuple[int, ...]) -> Iterator[int]:
    size, kernel, dilation, stride, before, behind = axis
    if facts.text("auto_pad") in _SAME:
        yield -(-size // stride)
        return
    room = size + before + behind - (kernel - 1) * dilation - 1
    if not facts.integer("ceil_mode"):
        yield room // stride + 1
        return
    count = -(-room // stride) + 1
    yield count - 1 if (count - 1) * stride >= size + before else count


IMAGE_RULES: Final[Mapping[str, Callable[[NodeFacts], Found]]] = {
    "MaxpoolWithMask": _pooled,
    "NhwcFusedConv": _convolved_last,
    "NhwcMaxPool": _pooled_last,
    "QLinearAveragePool": _pooled,
    "QLinearGlobalAveragePool": _pooled_to_one,
}
