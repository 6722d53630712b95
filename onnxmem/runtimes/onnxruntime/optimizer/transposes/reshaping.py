"""Transposes past operators that name axes: Squeeze, Slice, reductions and the like.

Source: onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc.
"""

from collections.abc import Sequence

import numpy as np

from onnxmem.model.constants import Array
from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, integers, put
from onnxmem.runtimes.onnxruntime.optimizer.transposes.constants import add_integers
from onnxmem.runtimes.onnxruntime.optimizer.transposes.meeting import join_transpose
from onnxmem.runtimes.onnxruntime.optimizer.transposes.moving import (
    Push,
    permute_input,
    push_simply,
    redo_outputs,
    undo_inputs,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.permutations import (
    Order,
    inverse,
    positive,
    squeezed,
    unsqueezed,
)
from onnxmem.runtimes.onnxruntime.optimizer.value_types import Dims

_SLICE_AXES = 3
_SLICE_READS, _PAD_READS = 10, 11
"""Versions from which Slice and Pad read what were attributes."""


def _axes(push: Push, place: int = 1) -> list[int] | None:
    """A node's axes, counted from the start; ``None`` where they are not constant or absent."""
    if "axes" in push.node.attributes:
        return positive(integers(push.node, "axes") or [], _rank_before(push))
    name = push.node.input_at(place)
    value = push.graph.array(name) if name else None
    if value is None:
        return None
    return positive([int(axis) for axis in value.ravel()], _rank_before(push))


def _rank_before(push: Push) -> int:
    if push.node.op_type != "Unsqueeze":
        return push.rank
    name = push.node.input_at(1)
    value = push.graph.array(name) if name else None
    stated = integers(push.node, "axes") or ([] if value is None else list(value.ravel()))
    return push.rank + len(stated)


def _state_axes(push: Push, axes: Sequence[int], place: int = 1) -> None:
    """Write a node's axes where it has them."""
    if "axes" in push.node.attributes:
        put(push.node, "axes", list(axes))
        return
    push.graph.set_input(push.node, place, add_integers(push.graph, axes))


def _dtype(like: Array | None) -> type:
    return np.int32 if like is not None and like.dtype == np.int32 else np.int64


def push_squeeze(push: Push) -> bool:
    """Drop the axes' counterparts before the Transpose."""
    axes = _axes(push)
    if axes is None:
        return False
    moved = sorted(push.order[axis] for axis in axes)
    undo_inputs(push)
    _state_axes(push, moved)
    redo_outputs(push, squeezed(push.order, moved))
    return True


def push_unsqueeze(push: Push) -> bool:
    """New axes stay where they are."""
    axes = _axes(push)
    if axes is None:
        return False
    undo_inputs(push)
    redo_outputs(push, unsqueezed(push.order, axes))
    return True


def push_reduction(push: Push) -> bool:
    """Reduce the axes' counterparts; without axes, or with none in the list, all or nothing."""
    keeps_dims = bool(integer(push.node, "keepdims", 1))
    has_axes = "axes" in push.node.attributes or bool(push.node.input_at(1))
    axes = _axes(push) if has_axes else []
    if axes is None:
        return False
    undo_inputs(push)
    if axes:
        moved = sorted(push.order[axis] for axis in axes)
        _state_axes(push, moved)
        redo_outputs(push, push.order if keeps_dims else squeezed(push.order, moved))
    elif keeps_dims or integer(push.node, "noop_with_empty_axes"):
        redo_outputs(push, push.order)
    return True


def push_slice(push: Push) -> bool:
    """Cut along the axes' counterparts."""
    graph, node = push.graph, push.node
    if node.since_version < _SLICE_READS:
        stated = _axes(push) or range(len(integers(node, "starts") or ()))
        push_simply(push)
        put(node, "axes", [push.order[axis] for axis in stated])
        return True
    axes = _axes(push, _SLICE_AXES) if node.input_at(_SLICE_AXES) else _first_axes(push)
    if axes is None:
        return False
    like = graph.array(node.inputs[_SLICE_AXES]) if node.input_at(_SLICE_AXES) else None
    like = graph.array(node.inputs[1]) if like is None else like
    push_simply(push)
    moved = add_integers(graph, [push.order[axis] for axis in axes], _dtype(like))
    graph.set_input(node, _SLICE_AXES, moved)
    return True


def _first_axes(push: Push) -> list[int] | None:
    dims = push.graph.dims_of(push.node.inputs[1])
    known = None if dims is None or len(dims) != 1 else dims[0]
    return list(range(known)) if isinstance(known, int) else None


def push_pad(push: Push) -> bool:
    """Pad the dims' counterparts.

    A list of axes is overlooked, as onnxruntime 1.31.1 does (measured).
    """
    node = push.node
    back = inverse(push.order)
    both_sides = (*back, *(axis + push.rank for axis in back))
    if node.since_version < _PAD_READS:
        pads = integers(node, "pads") or []
        put(node, "pads", [pads[place] for place in both_sides])
    else:
        permute_input(push, 1, both_sides)
    return push_simply(push)


def push_tile(push: Push) -> bool:
    """Repeat along the dims' counterparts."""
    permute_input(push, 1, inverse(push.order))
    return push_simply(push)


def push_reshape(push: Push) -> bool:
    """A Reshape that only moves dims of 1 is a Transpose; one that splits dims splits them before.

    Every dim must be known, and the target constant. Measured on onnxruntime 1.31.1.
    """
    graph, node = push.graph, push.node
    dims, target = graph.dims_of(push.transpose.outputs[0]), graph.dims_of(node.outputs[0])
    if dims is None or target is None or graph.constant(node.inputs[1]) is None:
        return False
    moved = _as_order(dims, target)
    if moved is not None:
        return join_transpose(push, moved)
    groups = _groups(dims, target)
    if groups is None:
        return False
    before = [groups[push.order.index(axis)] for axis in range(push.rank)]
    places = [place for group in before for place in group]
    sizes = [dim for dim in target if isinstance(dim, int)]
    split = [sizes[place] for place in places]
    undo_inputs(push)
    graph.set_input(node, 1, add_integers(graph, split))
    redo_outputs(push, tuple(places.index(place) for place in range(len(places))))
    return True


def _as_order(dims: Dims, target: Dims) -> Order | None:
    """The order that moves dims of 1 as a Reshape to an equal rank does; ``None`` for others."""
    known = [dim for dim in (*dims, *target) if isinstance(dim, int)]
    if len(dims) != len(target) or len(known) != 2 * len(dims):
        return None
    ones = [axis for axis, dim in enumerate(dims) if dim == 1]
    others = [axis for axis, dim in enumerate(dims) if dim != 1]
    if [dims[axis] for axis in others] != [dim for dim in target if dim != 1]:
        return None
    sources = iter(ones), iter(others)
    return tuple(next(sources[dim != 1]) for dim in target)


def _groups(dims: Dims, target: Dims) -> list[list[int]] | None:
    """Places in the target that each dim is split into; ``None`` where dims are merged."""
    groups: list[list[int]] = []
    place = 0
    for dim in dims:
        group: list[int] = []
        product = 1
        while place < len(target) and (not group or (isinstance(dim, int) and product < dim)):
            size = target[place]
            if not isinstance(size, int) or size <= 0:
                return None
            product *= size
            group.append(place)
            place += 1
        if product != dim or not group:
            return None
        groups.append(group)
    return groups if place == len(target) else None
