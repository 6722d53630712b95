"""Transposes are pushed towards the outputs until they meet another and cancel.

``push_transposes`` decides which are pushed; a handler for each operator says how a Transpose
passes it. ``transposes`` has the moves themselves.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import numpy as np

from onnxmem.model.constants import Array
from onnxmem.runtimes.onnxruntime.optimizer.graph import (
    Dims,
    Graph,
    Node,
    TensorType,
    execution_order,
)
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    BYTES,
    MICROSOFT,
    axes_of,
    has_kernel,
    integer,
    integers,
    put,
    rank_of,
    text,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    NewNode,
    add_node,
    redirect,
    replace_chain,
    swap_operator,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes import (
    Order,
    Push,
    add_integers,
    add_moving,
    close_unit,
    composed,
    inverse,
    is_comprehensive,
    is_constant_input,
    is_dequantize,
    mend_units,
    move_output,
    order_of,
    permute_input,
    positive,
    producer_above,
    push_simply,
    read_moved,
    redo_outputs,
    single_reader,
    squeezed,
    transpose_input,
    transpose_output,
    undo_inputs,
    unsqueeze_constant,
    unsqueezed,
)

# --------------------------------------------------------------------------------------------------
# Transposes between channels first and channels last past operators that have both variants.
#
# onnxruntime/core/optimizer/transpose_optimization/ort_transpose_optimization.cc.


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
    """Switch a quantized pool between its two layouts."""
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


# --------------------------------------------------------------------------------------------------
# A Transpose that meets another, or a Shape.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
# ``HandleTranspose`` and ``HandleShape``.


_INT64 = 7


def push_transpose(push: Push) -> bool:
    """Two Transposes in a row cancel or become one."""
    order = order_of(push.node)
    if order is None or len(order) != push.rank:
        return False
    return join_transpose(push, order)


def join_transpose(push: Push, order: Order) -> bool:
    """The node, which brings dims into an order, and the Transpose before it become one or none."""
    graph, node, first = push.graph, push.node, push.transpose
    if order == inverse(push.order):
        _cancel(graph, first.inputs[0], node)
    elif order_of(node) is not None:
        put(node, "perm", composed(push.order, order))
        graph.set_input(node, 0, first.inputs[0])
    else:
        new = NewNode("Transpose", [first.inputs[0]], (), "", graph.fresh_node_name("Transpose"))
        made = add_node(graph, new)
        put(made, "perm", composed(push.order, order))
        replace_chain(graph, [node], made)
    target = first.outputs[0]
    if target not in graph.outputs and not graph.readers(target):
        graph.remove(first)
    return True


def _cancel(graph: Graph, source: str, node: Node) -> None:
    """Replace what a node makes by an equal value."""
    target = node.outputs[0]
    producer = graph.producers.get(source)
    graph.set_inputs(node, [])
    if is_comprehensive(graph, target):
        redirect(graph, target, source)
        graph.remove(node)
    elif producer is not None and is_comprehensive(graph, source):
        redirect(graph, source, target)
        graph.remove(node)
        graph.set_outputs(
            producer, [target if name == source else name for name in producer.outputs]
        )
    else:
        name = graph.fresh_node_name("Identity")
        made = add_node(graph, NewNode("Identity", [source], (), "", name))
        replace_chain(graph, [node], made)


def pass_shape(push: Push) -> bool:
    """Shape of the value before, and a Gather that brings its dims into order."""
    graph, node = push.graph, push.node
    start, end = integer(node, "start"), push.rank
    if "end" in node.attributes:
        end = node.attributes["end"].i
    undo_inputs(push)
    order = list(push.order)[start:end]
    node.attributes.pop("start", None)
    node.attributes.pop("end", None)
    places = add_integers(graph, order)
    gather = add_node(graph, NewNode("Gather", [places], [], "", graph.fresh_node_name("Gather")))
    put(gather, "axis", 0)
    source = move_output(graph, node, gather)
    graph.set_inputs(gather, [source, places])
    graph.types[source] = TensorType(_INT64, (push.rank,))
    graph.shape_values.pop(source, None)
    return True


# --------------------------------------------------------------------------------------------------
# Transposes past operators that name axes: Squeeze, Slice, reductions and the like.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc.


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


# --------------------------------------------------------------------------------------------------
# Inputs of lower rank brought to the rank of the others.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
# ``NormalizeInputRanks`` and ``UnsqueezeInput``.


def equalize_ranks(push: Push) -> bool:
    """Give inputs of lower rank leading dims of 1; false where a rank is unknown or higher."""
    graph, node = push.graph, push.node
    ranks = [rank_of(graph, node.inputs[place]) for place in push.inputs]
    if any(rank is None or rank > push.rank for rank in ranks):
        return False
    for place, rank in zip(push.inputs, ranks, strict=True):
        if rank is not None and rank < push.rank:
            _unsqueeze_input(graph, node, place, push.rank - rank)
    return True


def _unsqueeze_input(graph: Graph, node: Node, place: int, num_dims: int) -> None:
    if unsqueeze_constant(graph, node, place, num_dims):
        return
    if _use_squeeze_above(graph, (node, place), list(range(num_dims))):
        return
    name = node.inputs[place]
    producer = graph.producers.get(name)
    graph.set_input(node, place, "")
    target = add_moving(graph, "Unsqueeze", name, range(num_dims))
    dims = (*[1] * num_dims, *(graph.dims_of(name) or ()))
    graph.types[target] = TensorType(graph.elem_type_of(name), dims)
    order = order_of(producer)
    unsqueeze = graph.producers[target]
    if order is not None:
        transpose_input(graph, unsqueeze, 0, inverse(order))
        target = transpose_output(graph, unsqueeze, 0, unsqueezed(order, range(num_dims)))
    graph.set_input(node, place, target)
    if producer is not None and is_dequantize(producer):
        close_unit(graph, producer)


def _use_squeeze_above(graph: Graph, use: tuple[Node, int], axes: list[int]) -> bool:
    """Cancel a Squeeze above an input; a DequantizeLinear may be between."""
    node, place = use
    name, producer, dequantize = producer_above(graph, node.inputs[place])
    if producer is None or producer.op_type != "Squeeze" or axes_of(graph, producer) != axes:
        return False
    source = producer.inputs[0]
    if dequantize is not None:
        rank = rank_of(graph, name) or 0
        read_moved(graph, dequantize, source, (*[-1] * len(axes), *range(rank)))
    else:
        graph.set_input(node, place, source)
    if name not in graph.outputs and not graph.readers(name):
        graph.remove(producer)
    return True


# --------------------------------------------------------------------------------------------------
# How a Transpose passes each operator.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc, the handlers
# and their table.


_SOFTMAX_SPLITS = 13
"""Before this operator set Softmax treated all dims from the axis on as one."""


def first_input(_: Graph, node: Node) -> Sequence[int]:
    """The first input, which is all that most operators have in the order of the output."""
    return range(min(1, len(node.inputs)))


def all_inputs(_: Graph, node: Node) -> Sequence[int]:
    """Every input."""
    return range(len(node.inputs))


def _no_scalars(graph: Graph, node: Node) -> Sequence[int]:
    """Every input but those of rank 0, which any order suits."""
    return [place for place, name in enumerate(node.inputs) if graph.dims_of(name) != ()]


@dataclass(frozen=True, slots=True)
class Handler:
    """What is done with a Transpose before an operator."""

    apply: Callable[[Push], bool]
    inputs: Callable[[Graph, Node], Sequence[int]] = first_input
    """Places of the inputs that are transposed together."""
    transposes_outputs: bool = True
    """The Transpose stands after the node when it is done."""


def _push_broadcast(push: Push) -> bool:
    return equalize_ranks(push) and push_simply(push)


def _push_axis(push: Push) -> bool:
    axis = integer(push.node, "axis") % push.rank
    push_simply(push)
    put(push.node, "axis", push.order[axis])
    return True


def _push_softmax(push: Push) -> bool:
    if push.graph.opsets.get("", 1) >= _SOFTMAX_SPLITS:
        axis = integer(push.node, "axis", -1) % push.rank
        push_simply(push)
        put(push.node, "axis", push.order[axis])
        return True
    axis = integer(push.node, "axis", 1) % push.rank
    keeps_sides = all((place < axis) == (old < axis) for place, old in enumerate(push.order))
    return keeps_sides and push_simply(push)


def _push_fast_gelu(push: Push) -> bool:
    """Its bias belongs to the last dim. Measured on onnxruntime 1.31.1."""
    return not push.node.input_at(1) and push_simply(push)


def _push_arg(push: Push) -> bool:
    keeps_dims = bool(integer(push.node, "keepdims", 1))
    axis = push.order[integer(push.node, "axis") % push.rank]
    undo_inputs(push)
    put(push.node, "axis", axis)
    redo_outputs(push, push.order if keeps_dims else squeezed(push.order, [axis]))
    return True


def _push_gather(push: Push) -> bool:
    """One element along an axis: the axis goes. Measured on onnxruntime 1.31.1."""
    places = push.graph.constant(push.node.inputs[1])
    if places is None or len(places.dims):
        return False
    axis = push.order[integer(push.node, "axis") % push.rank]
    undo_inputs(push)
    put(push.node, "axis", axis)
    redo_outputs(push, squeezed(push.order, [axis]))
    return True


def _push_quantize(push: Push) -> bool:
    is_per_axis = push.graph.dims_of(push.node.inputs[1]) not in ((), (1,))
    axis = integer(push.node, "axis", 1) % push.rank
    undo_inputs(push)
    redo_outputs(push, push.order)
    if is_per_axis:
        put(push.node, "axis", push.order[axis])
    return True


def _both_operands(_: Graph, __: Node) -> Sequence[int]:
    """Each operand has a scale and a zero point behind it."""
    return (0, 3)


def _parts(_: Graph, node: Node) -> Sequence[int]:
    """Scale and zero point of the result, then each part with its own."""
    return range(2, len(node.inputs), 3)


_SIMPLE = Handler(push_simply)
_BROADCAST = Handler(_push_broadcast, _no_scalars)
_REDUCTION = Handler(push_reduction)

_UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh Cast CastLike Ceil Celu Clip Cos Cosh Elu Erf Exp Floor "
    "Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Neg Not Reciprocal Relu Round "
    "Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh ThresholdedRelu"
)
_ELEMENTWISE = (
    "Add And BitShift Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or "
    "PRelu Pow Sub Sum Where Xor"
)
_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
)

_ONE_INPUT = ("Gelu", "QLinearLeakyRelu", "QLinearSigmoid", "QuickGelu")
_POOLS = ("QLinearAveragePool", "QLinearGlobalAveragePool")
_MICROSOFT_HANDLERS: Final = {
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), Handler(_push_quantize)),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), Handler(_push_broadcast, _both_operands)),
    **dict.fromkeys(_ONE_INPUT, _SIMPLE),
    **dict.fromkeys(_POOLS, Handler(push_integer_pool)),
    "FastGelu": Handler(_push_fast_gelu),
    "QLinearConcat": Handler(_push_axis, _parts),
    "QLinearSoftmax": Handler(_push_softmax),
}
"""Of the domain com.microsoft."""

HANDLERS: Final[Mapping[str, Handler]] = {
    **dict.fromkeys(_UNARY.split(), _SIMPLE),
    **dict.fromkeys(_ELEMENTWISE.split(), _BROADCAST),
    **dict.fromkeys(_REDUCTIONS.split(), _REDUCTION),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), Handler(_push_softmax)),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), Handler(_push_quantize)),
    **dict.fromkeys(("ArgMax", "ArgMin"), Handler(_push_arg)),
    "Concat": Handler(_push_axis, all_inputs),
    "Gather": Handler(_push_gather),
    "Split": Handler(_push_axis),
    "Transpose": Handler(push_transpose, transposes_outputs=False),
    "Shape": Handler(pass_shape, transposes_outputs=False),
    "Reshape": Handler(push_reshape, transposes_outputs=False),
    "Squeeze": Handler(push_squeeze),
    "Unsqueeze": Handler(push_unsqueeze),
    "Slice": Handler(push_slice),
    "Pad": Handler(push_pad),
    "Tile": Handler(push_tile),
    "MaxPool": Handler(push_max_pool),
    "Resize": Handler(push_resize),
    **{f"{MICROSOFT}.{name}": known for name, known in _MICROSOFT_HANDLERS.items()},
}


def handler_of(node: Node) -> Handler | None:
    """The handler of a node's operator; ``None`` where a Transpose stays before it."""
    return HANDLERS.get(f"{node.domain}.{node.op_type}" if node.domain else node.op_type)


# --------------------------------------------------------------------------------------------------
# Which Transposes are pushed: those that will meet another, and those that save one.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
# ``OptimizeImpl``, ``ProcessTranspose``, ``EstimateTransposeInputsCost`` and
# ``CanLikelyRemoveTranspose``. The cost of a Transpose is the number of dims that it may move.


_UNKNOWN_RANK = 5
"""Taken where a rank is unknown."""

_Leading = Mapping[str, AbstractSet[Order]]


def push_transposes(graph: Graph, *, is_assigned: bool = False) -> bool:
    """Push what pays; true if any Transpose moved.

    :param is_assigned: the nodes have been given to the CPU provider, which is so after the basic
        level; integer pools and Resize then pass a Transpose too.
    """
    nodes = execution_order(graph)
    leading = _leading_to_transposes(graph, nodes)
    changed = False
    for node in nodes:
        changed |= _process(graph, node, leading, is_assigned=is_assigned)
    if any(is_dequantize(node) for node in nodes):
        changed |= mend_units(graph)
    for node in list(graph.nodes.values()):
        for body in node.bodies.values():
            changed |= push_transposes(body, is_assigned=is_assigned)
    return changed


def _leading_to_transposes(graph: Graph, nodes: Sequence[Node]) -> _Leading:
    """The orders of the Transposes that are reached from a value by operators they can pass.

    A value may be a key without orders: the way to its Transposes leads through a graph output or
    what a subgraph reads, so none of them will be cancelled. Measured on onnxruntime 1.31.1.
    """
    leading: dict[str, set[Order]] = {}
    for node in reversed(nodes):
        order = order_of(node)
        if order is not None:
            leading.setdefault(node.inputs[0], set()).add(order)
            continue
        reached = [name for name in node.outputs if name in leading]
        handler = handler_of(node) if reached else None
        if handler is not None and handler.transposes_outputs:
            orders = [leading[name] for name in reached if is_comprehensive(graph, name)]
            for place in handler.inputs(graph, node):
                leading.setdefault(node.inputs[place], set()).update(*orders)
    return leading


def _process(graph: Graph, node: Node, leading: _Leading, *, is_assigned: bool) -> bool:
    handler = handler_of(node)
    if handler is None:
        return False
    places = handler.inputs(graph, node)
    is_here = is_assigned and has_kernel(graph, node)
    for place, name in enumerate(node.inputs):
        transpose = graph.producers.get(name)
        order = order_of(transpose)
        if transpose is None or order is None or place not in places:
            continue
        transposed = [p for p in places if node.inputs[p]]
        push = Push(graph, transpose, node, order, transposed, is_here)
        if _pays(push, handler, leading) and handler.apply(push):
            return True
    return False


def _pays(push: Push, handler: Handler, leading: _Leading) -> bool:
    if push.node.op_type == "Transpose" or (push.is_assigned and gains_by_layout(push)):
        return True
    cost = sum(_input_cost(push.graph, push.node.inputs[p], push.order) for p in push.inputs)
    if cost < 0 and handler.transposes_outputs and not _saves_later(push, leading):
        cost += max(_rank(push.graph, name) for name in push.node.outputs)
    return cost < 0


def _saves_later(push: Push, leading: _Leading) -> bool:
    """Whether a Transpose after the node will cancel another, or join it.

    It joins one where no other node reads the value in the present order. A graph output, or what a
    subgraph reads, keeps its order and hence its Transpose. Measured on onnxruntime 1.31.1.
    """
    back = inverse(push.order)
    return any(
        back in leading[name] or single_reader(push.graph, name) is not None
        for name in push.node.outputs
        if name in leading and is_comprehensive(push.graph, name)
    )


def _input_cost(graph: Graph, name: str, order: Order) -> int:
    """What it costs to bring an input back into the order before the Transpose."""
    if is_constant_input(graph, name):
        return 0
    transpose = _producer_before(graph, name)
    before = order_of(transpose)
    if transpose is None or before is None:
        return _rank(graph, name)
    is_gone = before == order and _can_go(graph, transpose.outputs[0])
    return -_rank(graph, name) if is_gone else 0


def _producer_before(graph: Graph, name: str) -> Node | None:
    """The node that makes a value, seen through DequantizeLinear and a Squeeze of a Transpose."""
    producer = graph.producers.get(name)
    if producer is None or not is_dequantize(producer):
        return producer
    above = graph.producers.get(producer.inputs[0])
    if above is None:
        return producer
    if above.op_type != "Squeeze":
        return above
    transpose = graph.producers.get(above.inputs[0])
    return transpose if order_of(transpose) is not None else producer


def _can_go(graph: Graph, name: str) -> bool:
    """Whether every reader lets a Transpose pass, so that none is left (``CanLikelyRemove``)."""
    if name in graph.outputs:
        return False
    return all(
        name in reader.inputs and handler_of(reader) is not None for reader in graph.readers(name)
    )


def _rank(graph: Graph, name: str) -> int:
    """Dims of a value, those of 1 aside, which cost nothing to move."""
    dims = graph.dims_of(name)
    return _UNKNOWN_RANK if dims is None else sum(dim != 1 for dim in dims)
