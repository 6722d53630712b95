"""Transposes between channels first and channels last past operators that have both variants.

Source: onnxruntime/core/optimizer/transpose_optimization/ort_transpose_optimization.cc.
"""

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, put, text
from onnxmem.runtimes.onnxruntime.optimizer.matching import BYTES
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import swap_operator
from onnxmem.runtimes.onnxruntime.optimizer.transposes.moving import (
    Push,
    permute_input,
    push_simply,
    redo_outputs,
    transpose_input,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.permutations import Order, inverse

_IMAGE_RANK = 4
_ROI = 1
_RESIZE_HAS_ROI = 11


def gains_by_layout(push: Push) -> bool:
    """Whether an operator is faster with channels last (``OrtEPCostCheck``)."""
    if push.node.op_type == "MaxPool":
        return True
    source = push.node.input_at(0)
    dims = push.graph.dims_of(source)
    return (
        push.node.op_type == "Resize"
        and dims is not None
        and len(dims) == _IMAGE_RANK
        and push.graph.elem_type_of(source) in BYTES
        and text(push.node, "mode") == "linear"
    )


def _to_channels_first(rank: int) -> Order:
    return (0, rank - 1, *range(1, rank - 1))


def push_integer_pool(push: Push) -> bool:
    """Switch a quantised pool between its two layouts."""
    is_last = integer(push.node, "channels_last")
    order = inverse(push.order) if is_last else push.order
    if order != _to_channels_first(push.rank):
        return False
    put(push.node, "channels_last", 1 - is_last)
    return push_simply(push)


def push_max_pool(push: Push) -> bool:
    """An integer MaxPool becomes NhwcMaxPool."""
    graph, node = push.graph, push.node
    if not push.is_assigned or node.output_at(1):
        return False
    is_integer = graph.elem_type_of(node.outputs[0]) in BYTES
    if not is_integer or push.order != _to_channels_first(push.rank):
        return False
    made = swap_operator(graph, node, "NhwcMaxPool")
    made.attributes.pop("storage_order", None)
    transpose_input(graph, made, 0, inverse(push.order))
    redo_outputs(Push(graph, push.transpose, made, push.order, push.inputs, True), push.order)  # noqa: FBT003 - a record's last field
    return True


def push_resize(push: Push) -> bool:
    """Bring scales and sizes of a Resize of images into the order before the Transpose.

    A list of axes is overlooked, as onnxruntime 1.31.1 does (measured).
    """
    to_first = _to_channels_first(_IMAGE_RANK)
    if not push.is_assigned or push.order not in (to_first, inverse(to_first)):
        return False
    back = inverse(push.order)
    has_roi = push.node.since_version >= _RESIZE_HAS_ROI
    for place, name in enumerate(push.node.inputs[1:], 1):
        if name:
            is_roi = has_roi and place == _ROI
            both_ends = (*back, *(axis + push.rank for axis in back))
            permute_input(push, place, both_ends if is_roi else back)
    return push_simply(push)
