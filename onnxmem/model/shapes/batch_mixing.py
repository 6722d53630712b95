"""Operands that must be as long as the batch, because a tensor with the batch meets them there."""

from collections.abc import Iterator, Mapping

import onnx

from onnxmem.model.shapes.batch_place import Place
from onnxmem.model.traversal import onnx_op
from onnxmem.ops.spec import Dims

_BROADCASTING = frozenset(
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less "
    "LessOrEqual Max Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor".split()
)
_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
"""The inputs of recurrent layers that hold a state: [directions, batch, hidden]."""


def operands_with_batch(
    node: onnx.NodeProto, places: Mapping[str, Place], old: Mapping[str, Dims]
) -> Iterator[tuple[int, Place]]:
    """Inputs that do not carry the batch yet and must, each with the batch's place in it.

    ``places`` holds the tensors that carry it; ``old`` the dims of the inputs at the old batch.
    """
    source = next((name for name in node.input if name in places), None)
    if source is None:
        return
    for index, name in enumerate(node.input):
        if name and name not in places:
            place = _place(node, index, places[source], old[source], old[name])
            if place is not None:
                yield index, place


def _place(
    node: onnx.NodeProto, index: int, place: Place, source: Dims, dims: Dims
) -> Place | None:
    operator = onnx_op(node)
    if operator in _STATES:
        return _state_place(node, index, place, dims)
    if operator == "Concat":
        along = next((a.i for a in node.attribute if a.name == "axis"), 0) % max(len(source), 1)
        meets = len(dims) == len(source) and along != place.axis
        return place if meets and dims[place.axis] == source[place.axis] else None
    if operator in _BROADCASTING:
        axis = place.axis - (len(source) - len(dims))
        # A dim of length 1 is broadcast to any batch.
        if axis >= 0 and dims[axis] == source[place.axis] > 1:
            return Place(axis, place.outer)
    return None


def _state_place(node: onnx.NodeProto, index: int, place: Place, dims: Dims) -> Place | None:
    """X: [time, batch, input] has its batch second, or first where ``layout`` is 1."""
    axis = 0 if any(a.name == "layout" and a.i for a in node.attribute) else 1
    is_state = index in _STATES[node.op_type] and len(dims) > axis
    return Place(axis) if is_state and place.axis == axis else None
