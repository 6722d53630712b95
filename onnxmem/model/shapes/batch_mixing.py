"""Operands that must be as long as the batch, because a tensor with the batch meets them there."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import onnx

from onnxmem.model.shapes.batch_place import Place
from onnxmem.model.traversal import onnx_op
from onnxmem.ops.spec import Dims

_BROADCASTING = frozenset(
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less "
    "LessOrEqual Max Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor".split()
)
_PRODUCTS = frozenset({"MatMul"})
"""Broadcast in all dims but the last two."""
_BY_SAMPLE = {"GridSample": (0, 1), "GatherElements": (0, 1)}
"""Inputs of which both lead with the batch, if one does."""
RECURRENT: Final = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
"""The inputs of recurrent layers that hold a state: [directions, batch, hidden]."""
_OF_EQUAL_LENGTH = frozenset({"Concat", "GridSample", *RECURRENT})
"""Operators that broadcast no dim of length 1."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """An input without the batch, of a node that has another with it."""

    index: int
    place: Place
    """Where the batch belongs in it."""
    is_certain: bool
    """False: the batch is 1, and a dim of length 1 is broadcast to any."""


def operands_with_batch(
    node: onnx.NodeProto, places: Mapping[str, Place], old: Mapping[str, Dims], batch: int
) -> Iterator[Meeting]:
    """Inputs that do not carry the batch yet and must, or may.

    ``places`` holds the tensors that carry it; ``old`` the dims of the inputs at the old ``batch``.
    """
    source = next((name for name in node.input if name in places), None)
    if source is None:
        return
    for index, name in enumerate(node.input):
        if name and name not in places:
            place = _place(node, index, places[source], old[source], old[name])
            if place is not None:
                length = old[name][place.axis]
                is_certain = length > 1 or onnx_op(node) in _OF_EQUAL_LENGTH
                if is_certain or length == batch == old[source][places[source].axis]:
                    yield Meeting(index, place, is_certain)


def _place(
    node: onnx.NodeProto, index: int, place: Place, source: Dims, dims: Dims
) -> Place | None:
    operator = onnx_op(node)
    if operator in RECURRENT:
        return _state_place(node, index, place, dims)
    if operator == "Concat":
        along = next((a.i for a in node.attribute if a.name == "axis"), 0) % max(len(source), 1)
        meets = len(dims) == len(source) and along != place.axis
        return place if meets and dims[place.axis] == source[place.axis] else None
    if operator in _BY_SAMPLE:
        is_first = place == Place(0) and len(dims) > 1 and index in _BY_SAMPLE[operator]
        return place if is_first and dims[0] == source[0] else None
    if operator in _BROADCASTING or (operator in _PRODUCTS and place.axis < len(source) - 2):
        axis = place.axis - (len(source) - len(dims))
        if 0 <= axis < len(dims) - 2 * (operator in _PRODUCTS) and dims[axis] == source[place.axis]:
            return Place(axis, place.outer)
    return None


def _state_place(node: onnx.NodeProto, index: int, place: Place, dims: Dims) -> Place | None:
    """X: [time, batch, input] has its batch second, or first where ``layout`` is 1."""
    axis = 0 if any(a.name == "layout" and a.i for a in node.attribute) else 1
    is_state = index in RECURRENT[node.op_type] and len(dims) > axis
    return Place(axis) if is_state and place.axis == axis else None
