"""Pushing Transposes toward the outputs, until they meet other Transposes and cancel.

``push_transposes`` decides which Transposes are pushed. A handler for each operator moves a
Transpose from its inputs to its outputs, with the functions of ``transposes``.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
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
    Perm,
    Push,
    add_integers,
    add_moving,
    composed_perm,
    fix_qdq_units,
    has_only_node_readers,
    insert_qdq_after,
    inverse_perm,
    is_constant_input,
    is_dequantize,
    move_output,
    only_reader,
    perm_of,
    permute_elements,
    positive,
    producer_above,
    push_simple,
    rewire_dequantize,
    squeezed_perm,
    transpose_input,
    transpose_output,
    transpose_outputs,
    unsqueeze_constant,
    unsqueezed_perm,
    untranspose_inputs,
)

# --------------------------------------------------------------------------------------------------
# Operators with kernels for channels first and for channels last.
#
# onnxruntime/core/optimizer/transpose_optimization/ort_transpose_optimization.cc.


_IMAGE_RANK = 4
_ROI = 1
_RESIZE_HAS_ROI = 11


def gains_by_layout(push: Push) -> bool:
    """Whether to push regardless of the cost: channels last is faster (``OrtEPCostCheck``)."""
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


def _to_channels_first(rank: int) -> Perm:
    return (0, rank - 1, *range(1, rank - 1))


def push_integer_pool(push: Push) -> bool:
    """Switch a quantized pool between channels first and last (``HandleQLinearPoolOp``)."""
    is_last = integer(push.node, "channels_last")
    perm = inverse_perm(push.perm) if is_last else push.perm
    if perm != _to_channels_first(push.rank):
        return False
    put(push.node, "channels_last", 1 - is_last)
    return push_simple(push)


def push_max_pool(push: Push) -> bool:
    """Replace an integer MaxPool by NhwcMaxPool (``HandleMaxPool``)."""
    graph, node = push.graph, push.node
    if not push.is_assigned or node.output_at(1):
        return False
    is_integer = graph.elem_type_of(node.outputs[0]) in BYTES
    if not is_integer or push.perm != _to_channels_first(push.rank):
        return False
    pool = swap_operator(graph, node, "NhwcMaxPool")
    pool.attributes.pop("storage_order", None)
    transpose_input(graph, pool, 0, inverse_perm(push.perm))
    transpose_outputs(replace(push, node=pool), push.perm)
    return True


def push_resize(push: Push) -> bool:
    """Permute the scales and sizes of a Resize of images (``HandleResize``).

    ``axes`` is ignored, as onnxruntime 1.31.1 does (measured).
    """
    to_first = _to_channels_first(_IMAGE_RANK)
    if not push.is_assigned or push.perm not in (to_first, inverse_perm(to_first)):
        return False
    # ``roi`` is not permuted by one axis after the other: its starts come first, then its ends.
    back = inverse_perm(push.perm)
    has_roi = push.node.since_version >= _RESIZE_HAS_ROI
    for input_index, name in enumerate(push.node.inputs[1:], 1):
        if name:
            is_roi = has_roi and input_index == _ROI
            both_ends = (*back, *(axis + push.rank for axis in back))
            permute_elements(push, input_index, both_ends if is_roi else back)
    return push_simple(push)


# --------------------------------------------------------------------------------------------------
# A Transpose before another Transpose, or before a Shape.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
# ``HandleTranspose`` and ``HandleShape``.


_INT64 = 7


def push_transpose(push: Push) -> bool:
    """Cancel or merge two consecutive Transposes."""
    perm = perm_of(push.node)
    if perm is None or len(perm) != push.rank:
        return False
    return merge_transposes(push, perm)


def merge_transposes(push: Push, perm: Perm) -> bool:
    """Cancel or merge a Transpose and the node after it, which permutes axes too."""
    graph, node, first = push.graph, push.node, push.transpose
    if perm == inverse_perm(push.perm):
        _cancel(graph, first.inputs[0], node)
    elif perm_of(node) is not None:
        put(node, "perm", composed_perm(push.perm, perm))
        graph.set_input(node, 0, first.inputs[0])
    else:
        new = NewNode("Transpose", [first.inputs[0]], (), "", graph.fresh_node_name("Transpose"))
        merged = add_node(graph, new)
        put(merged, "perm", composed_perm(push.perm, perm))
        replace_chain(graph, [node], merged)
    target = first.outputs[0]
    if target not in graph.outputs and not graph.readers(target):
        graph.remove(first)
    return True


def _cancel(graph: Graph, source: str, node: Node) -> None:
    """Replace the output of a node by an equal value.

    Which of the two names goes depends on who reads them: a graph output and a value that a
    subgraph reads keep their names. If both must stay, an Identity connects them.
    """
    target = node.outputs[0]
    producer = graph.producers.get(source)
    graph.set_inputs(node, [])
    if has_only_node_readers(graph, target):
        redirect(graph, target, source)
        graph.remove(node)
    elif producer is not None and has_only_node_readers(graph, source):
        redirect(graph, source, target)
        graph.remove(node)
        graph.set_outputs(
            producer, [target if name == source else name for name in producer.outputs]
        )
    else:
        name = graph.fresh_node_name("Identity")
        identity = add_node(graph, NewNode("Identity", [source], (), "", name))
        replace_chain(graph, [node], identity)


def push_shape(push: Push) -> bool:
    """Take the Shape before the Transpose, and permute its elements by a Gather."""
    graph, node = push.graph, push.node
    start, end = integer(node, "start"), push.rank
    if "end" in node.attributes:
        end = node.attributes["end"].i
    untranspose_inputs(push)
    # ``start`` and ``end`` count axes behind the Transpose, so that the Gather selects by them and
    # the Shape in front of it takes all dims.
    perm = list(push.perm)[start:end]
    node.attributes.pop("start", None)
    node.attributes.pop("end", None)
    indices = add_integers(graph, perm)
    gather = add_node(graph, NewNode("Gather", [indices], [], "", graph.fresh_node_name("Gather")))
    put(gather, "axis", 0)
    source = move_output(graph, node, gather)
    graph.set_inputs(gather, [source, indices])
    graph.types[source] = TensorType(_INT64, (push.rank,))
    graph.shape_values.pop(source, None)
    return True


# --------------------------------------------------------------------------------------------------
# Operators with axes: Squeeze, Slice, reductions and the like.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc, a handler for
# each. Axis ``a`` after the Transpose is axis ``perm[a]`` before it.


_SLICE_AXES = 3
_SLICE_HAS_INPUTS, _PAD_HAS_INPUTS = 10, 11
"""Versions of Slice and Pad from which their attributes are inputs."""


def _axes(push: Push, input_index: int = 1) -> list[int] | None:
    """A node's axes, counted from the start; ``None`` if they are absent or not constant."""
    if "axes" in push.node.attributes:
        return positive(integers(push.node, "axes") or [], _rank_before(push))
    name = push.node.input_at(input_index)
    value = push.graph.array(name) if name else None
    if value is None:
        return None
    return positive([int(axis) for axis in value.ravel()], _rank_before(push))


def _rank_before(push: Push) -> int:
    if push.node.op_type != "Unsqueeze":
        return push.rank
    # The axes of Unsqueeze are those of its output.
    name = push.node.input_at(1)
    value = push.graph.array(name) if name else None
    axes = integers(push.node, "axes") or ([] if value is None else list(value.ravel()))
    return push.rank + len(axes)


def _set_axes(push: Push, axes: Sequence[int]) -> None:
    """Write a node's axes as an attribute or second input, whichever it has."""
    if "axes" in push.node.attributes:
        put(push.node, "axes", list(axes))
        return
    push.graph.set_input(push.node, 1, add_integers(push.graph, axes))


def _dtype(like: Array | None) -> type:
    return np.int32 if like is not None and like.dtype == np.int32 else np.int64


def push_squeeze(push: Push) -> bool:
    """Squeeze the corresponding axes before the Transpose."""
    axes = _axes(push)
    if axes is None:
        return False
    axes_before = sorted(push.perm[axis] for axis in axes)
    untranspose_inputs(push)
    _set_axes(push, axes_before)
    transpose_outputs(push, squeezed_perm(push.perm, axes_before))
    return True


def push_unsqueeze(push: Push) -> bool:
    """Insert the new axes at the same index before the Transpose."""
    axes = _axes(push)
    if axes is None:
        return False
    untranspose_inputs(push)
    transpose_outputs(push, unsqueezed_perm(push.perm, axes))
    return True


def push_reduction(push: Push) -> bool:
    """Reduce the corresponding axes; without axes, a reduction takes all or does nothing."""
    keeps_dims = bool(integer(push.node, "keepdims", 1))
    has_axes = "axes" in push.node.attributes or bool(push.node.input_at(1))
    axes = _axes(push) if has_axes else []
    if axes is None:
        return False
    untranspose_inputs(push)
    if axes:
        axes_before = sorted(push.perm[axis] for axis in axes)
        _set_axes(push, axes_before)
        squeezed = squeezed_perm(push.perm, axes_before)
        transpose_outputs(push, push.perm if keeps_dims else squeezed)
    elif keeps_dims or integer(push.node, "noop_with_empty_axes"):
        transpose_outputs(push, push.perm)
    return True


def push_slice(push: Push) -> bool:
    """Slice along the corresponding axes."""
    graph, node = push.graph, push.node
    if node.since_version < _SLICE_HAS_INPUTS:
        attribute = _axes(push) or range(len(integers(node, "starts") or ()))
        push_simple(push)
        put(node, "axes", [push.perm[axis] for axis in attribute])
        return True
    axes = _axes(push, _SLICE_AXES) if node.input_at(_SLICE_AXES) else _first_axes(push)
    if axes is None:
        return False
    # All index inputs of a Slice must have one type.
    like = graph.array(node.inputs[_SLICE_AXES]) if node.input_at(_SLICE_AXES) else None
    like = graph.array(node.inputs[1]) if like is None else like
    push_simple(push)
    axes_before = add_integers(graph, [push.perm[axis] for axis in axes], _dtype(like))
    graph.set_input(node, _SLICE_AXES, axes_before)
    return True


def _first_axes(push: Push) -> list[int] | None:
    """The axes of a Slice that lists none: as many as it has starts."""
    dims = push.graph.dims_of(push.node.inputs[1])
    known = None if dims is None or len(dims) != 1 else dims[0]
    return list(range(known)) if isinstance(known, int) else None


def push_pad(push: Push) -> bool:
    """Pad the corresponding axes.

    ``axes`` is ignored, as onnxruntime 1.31.1 does (measured).
    """
    node = push.node
    back = inverse_perm(push.perm)
    both_sides = (*back, *(axis + push.rank for axis in back))
    if node.since_version < _PAD_HAS_INPUTS:
        pads = integers(node, "pads") or []
        put(node, "pads", [pads[index] for index in both_sides])
    else:
        permute_elements(push, 1, both_sides)
    return push_simple(push)


def push_tile(push: Push) -> bool:
    """Repeat along the corresponding axes."""
    permute_elements(push, 1, inverse_perm(push.perm))
    return push_simple(push)


def push_reshape(push: Push) -> bool:
    """Merge with a Reshape that only moves dims of 1, or move a Reshape that only splits dims.

    All dims must be known, and the target constant. Measured on onnxruntime 1.31.1.
    """
    graph, node = push.graph, push.node
    dims, target = graph.dims_of(push.transpose.outputs[0]), graph.dims_of(node.outputs[0])
    if dims is None or target is None or graph.constant(node.inputs[1]) is None:
        return False
    as_perm = _as_perm(dims, target)
    if as_perm is not None:
        return merge_transposes(push, as_perm)
    groups = _groups(dims, target)
    if groups is None:
        return False
    # The Reshape moves before the Transpose, so it splits the axes in their order there. Its axis
    # ``i`` is axis ``target_axes[i]`` of the old target; the Transpose after it restores the order.
    groups_before = [groups[push.perm.index(axis)] for axis in range(push.rank)]
    target_axes = [axis for group in groups_before for axis in group]
    sizes = [dim for dim in target if isinstance(dim, int)]
    target_before = [sizes[axis] for axis in target_axes]
    untranspose_inputs(push)
    graph.set_input(node, 1, add_integers(graph, target_before))
    transpose_outputs(push, tuple(target_axes.index(axis) for axis in range(len(target_axes))))
    return True


def _as_perm(dims: Dims, target: Dims) -> Perm | None:
    """The permutation that equals a Reshape to the same rank, if it only moves dims of 1."""
    known = [dim for dim in (*dims, *target) if isinstance(dim, int)]
    if len(dims) != len(target) or len(known) != 2 * len(dims):
        return None
    # Dims of 1 hold no data: if the others keep their order, moving the ones is a Transpose of the
    # same elements in the same order.
    ones = [axis for axis, dim in enumerate(dims) if dim == 1]
    others = [axis for axis, dim in enumerate(dims) if dim != 1]
    if [dims[axis] for axis in others] != [dim for dim in target if dim != 1]:
        return None
    sources = iter(ones), iter(others)
    return tuple(next(sources[dim != 1]) for dim in target)


def _groups(dims: Dims, target: Dims) -> list[list[int]] | None:
    """The axes of the target that each dim is split into; ``None`` if the Reshape does more."""
    groups: list[list[int]] = []
    # ``axis`` is the first axis of the target that no group has; a group grows up to its dim.
    axis = 0
    for dim in dims:
        group: list[int] = []
        product = 1
        while axis < len(target) and (not group or (isinstance(dim, int) and product < dim)):
            size = target[axis]
            if not isinstance(size, int) or size <= 0:
                return None
            product *= size
            group.append(axis)
            axis += 1
        if product != dim or not group:
            return None
        groups.append(group)
    return groups if axis == len(target) else None


# --------------------------------------------------------------------------------------------------
# Inputs of lower rank get leading dims of 1, so that all inputs can be transposed.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
# ``NormalizeInputRanks`` and ``UnsqueezeInput``.


def equalize_ranks(push: Push) -> bool:
    """Unsqueeze inputs of lower rank; false if a rank is unknown or higher."""
    graph, node = push.graph, push.node
    ranks = [rank_of(graph, node.inputs[index]) for index in push.inputs]
    if any(rank is None or rank > push.rank for rank in ranks):
        return False
    for index, rank in zip(push.inputs, ranks, strict=True):
        if rank is not None and rank < push.rank:
            _unsqueeze_input(graph, node, index, push.rank - rank)
    return True


def _unsqueeze_input(graph: Graph, node: Node, input_index: int, num_dims: int) -> None:
    if unsqueeze_constant(graph, node, input_index, num_dims):
        return
    if _use_squeeze_above(graph, (node, input_index), list(range(num_dims))):
        return
    name = node.inputs[input_index]
    producer = graph.producers.get(name)
    # The node must not read ``name`` any more, or a Transpose that writes it would not be removed.
    graph.set_input(node, input_index, "")
    target = add_moving(graph, "Unsqueeze", name, range(num_dims))
    dims = (*[1] * num_dims, *(graph.dims_of(name) or ()))
    graph.types[target] = TensorType(graph.elem_type_of(name), dims)
    perm = perm_of(producer)
    unsqueeze = graph.producers[target]
    if perm is not None:
        transpose_input(graph, unsqueeze, 0, inverse_perm(perm))
        target = transpose_output(graph, unsqueeze, 0, unsqueezed_perm(perm, range(num_dims)))
    graph.set_input(node, input_index, target)
    if producer is not None and is_dequantize(producer):
        insert_qdq_after(graph, producer)


def _use_squeeze_above(graph: Graph, use: tuple[Node, int], axes: list[int]) -> bool:
    """Cancel a Squeeze above an input; a DequantizeLinear may be between."""
    node, input_index = use
    name, producer, dequantize = producer_above(graph, node.inputs[input_index])
    if producer is None or producer.op_type != "Squeeze" or axes_of(graph, producer) != axes:
        return False
    source = producer.inputs[0]
    if dequantize is not None:
        rank = rank_of(graph, name) or 0
        rewire_dequantize(graph, dequantize, source, (*[-1] * len(axes), *range(rank)))
    else:
        graph.set_input(node, input_index, source)
    if name not in graph.outputs and not graph.readers(name):
        graph.remove(producer)
    return True


# --------------------------------------------------------------------------------------------------
# The handler of each operator.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc, the handlers
# and their table; those of com.microsoft in ort_transpose_optimization.cc, ``OrtExtendedHandlers``.


_SOFTMAX_SPLITS = 13
"""Before this operator set, Softmax flattened all dims from the axis on."""


def first_input(_: Graph, node: Node) -> Sequence[int]:
    """The first input: for most operators, no other has the axes of the output."""
    return range(min(1, len(node.inputs)))


def all_inputs(_: Graph, node: Node) -> Sequence[int]:
    """Every input."""
    return range(len(node.inputs))


def _no_scalars(graph: Graph, node: Node) -> Sequence[int]:
    """All inputs except scalars, which need no Transpose."""
    return [index for index, name in enumerate(node.inputs) if graph.dims_of(name) != ()]


@dataclass(frozen=True, slots=True)
class Handler:
    """How a Transpose moves from the inputs of an operator to its outputs (``HandlerInfo``)."""

    apply: Callable[[Push], bool]
    inputs: Callable[[Graph, Node], Sequence[int]] = first_input
    """Indices of the inputs that must be transposed together."""
    transposes_outputs: bool = True
    """Whether there is a Transpose after the node when the handler is done."""


def _push_broadcast(push: Push) -> bool:
    return equalize_ranks(push) and push_simple(push)


def _push_axis(push: Push) -> bool:
    axis = integer(push.node, "axis") % push.rank
    push_simple(push)
    put(push.node, "axis", push.perm[axis])
    return True


def _push_softmax(push: Push) -> bool:
    if push.graph.opsets.get("", 1) >= _SOFTMAX_SPLITS:
        axis = integer(push.node, "axis", -1) % push.rank
        push_simple(push)
        put(push.node, "axis", push.perm[axis])
        return True
    # The flattened dims must stay together: no axis may move across the axis of the Softmax.
    axis = integer(push.node, "axis", 1) % push.rank
    keeps_sides = all((new < axis) == (old < axis) for new, old in enumerate(push.perm))
    return keeps_sides and push_simple(push)


def _push_fast_gelu(push: Push) -> bool:
    """FastGelu without a bias, which belongs to the last axis. Measured on onnxruntime 1.31.1."""
    return not push.node.input_at(1) and push_simple(push)


def _push_arg(push: Push) -> bool:
    keeps_dims = bool(integer(push.node, "keepdims", 1))
    axis = push.perm[integer(push.node, "axis") % push.rank]
    untranspose_inputs(push)
    put(push.node, "axis", axis)
    transpose_outputs(push, push.perm if keeps_dims else squeezed_perm(push.perm, [axis]))
    return True


def _push_gather(push: Push) -> bool:
    """Gather with a scalar index, which removes the axis. Measured on onnxruntime 1.31.1."""
    indices = push.graph.constant(push.node.inputs[1])
    if indices is None or len(indices.dims):
        return False
    axis = push.perm[integer(push.node, "axis") % push.rank]
    untranspose_inputs(push)
    put(push.node, "axis", axis)
    transpose_outputs(push, squeezed_perm(push.perm, [axis]))
    return True


def _push_quantize(push: Push) -> bool:
    is_per_axis = push.graph.dims_of(push.node.inputs[1]) not in ((), (1,))
    axis = integer(push.node, "axis", 1) % push.rank
    untranspose_inputs(push)
    transpose_outputs(push, push.perm)
    if is_per_axis:
        put(push.node, "axis", push.perm[axis])
    return True


def _both_operands(_: Graph, __: Node) -> Sequence[int]:
    """The two operands, each followed by its scale and zero point."""
    return (0, 3)


def _parts(_: Graph, node: Node) -> Sequence[int]:
    """The parts of QLinearConcat, each followed by its scale and zero point."""
    return range(2, len(node.inputs), 3)


_SIMPLE = Handler(push_simple)
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
    "Shape": Handler(push_shape, transposes_outputs=False),
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
    """The handler of a node's operator; ``None`` if no Transpose can be pushed past it."""
    return HANDLERS.get(f"{node.domain}.{node.op_type}" if node.domain else node.op_type)


# --------------------------------------------------------------------------------------------------
# Which Transposes are pushed: those that are likely to cancel another one or to become fewer.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
# ``OptimizeImpl``, ``ProcessTranspose``, ``EstimateTransposeInputsCost`` and
# ``CanLikelyRemoveTranspose``. The cost of a Transpose is the number of dims other than 1. A push
# pays if it removes more of it at the inputs than it adds at the outputs.


_UNKNOWN_RANK = 5
"""The cost of a Transpose of unknown rank."""

_Reaching = Mapping[str, AbstractSet[Perm]]
"""Permutations of the Transposes that a value reaches (``outputs_leading_to_transpose``)."""


def push_transposes(graph: Graph, *, is_assigned: bool = False) -> bool:
    """Push the Transposes for which it pays; true if any moved.

    :param is_assigned: whether nodes are assigned to the CPU provider, as after the basic level;
        only then can a Transpose be pushed past integer pools and Resize.
    """
    nodes = execution_order(graph)
    reaching = _reaching_transposes(graph, nodes)
    changed = False
    # Producers come first, so a Transpose that was pushed past a node is seen again at its readers.
    for node in nodes:
        changed |= _process(graph, node, reaching, is_assigned=is_assigned)
    if any(is_dequantize(node) for node in nodes):
        changed |= fix_qdq_units(graph)
    for node in list(graph.nodes.values()):
        for body in node.bodies.values():
            changed |= push_transposes(body, is_assigned=is_assigned)
    return changed


def _reaching_transposes(graph: Graph, nodes: Sequence[Node]) -> _Reaching:
    """Permutations of the Transposes that a value reaches through operators with a handler.

    A value may have no permutations: every path to a Transpose goes through a graph output or a
    value that a subgraph reads, so none will be canceled. Measured on onnxruntime 1.31.1.
    """
    reaching: dict[str, set[Perm]] = {}
    # Readers come first, so the outputs of a node have all their permutations already.
    for node in reversed(nodes):
        perm = perm_of(node)
        if perm is not None:
            reaching.setdefault(node.inputs[0], set()).add(perm)
            continue
        reached = [name for name in node.outputs if name in reaching]
        handler = handler_of(node) if reached else None
        if handler is not None and handler.transposes_outputs:
            perms = [reaching[name] for name in reached if has_only_node_readers(graph, name)]
            for index in handler.inputs(graph, node):
                reaching.setdefault(node.inputs[index], set()).update(*perms)
    return reaching


def _process(graph: Graph, node: Node, reaching: _Reaching, *, is_assigned: bool) -> bool:
    """Push the first Transpose before a node for which it pays."""
    handler = handler_of(node)
    if handler is None:
        return False
    indices = handler.inputs(graph, node)
    is_here = is_assigned and has_kernel(graph, node)
    for input_index, name in enumerate(node.inputs):
        transpose = graph.producers.get(name)
        perm = perm_of(transpose)
        if transpose is None or perm is None or input_index not in indices:
            continue
        transposed = [index for index in indices if node.inputs[index]]
        push = Push(graph, transpose, node, perm, transposed, is_here)
        if _pays(push, handler, reaching) and handler.apply(push):
            return True
    return False


def _pays(push: Push, handler: Handler, reaching: _Reaching) -> bool:
    """Whether a push costs less than nothing (``ProcessTranspose``)."""
    if push.node.op_type == "Transpose" or (push.is_assigned and gains_by_layout(push)):
        return True
    cost = sum(_input_cost(push.graph, push.node.inputs[index], push.perm) for index in push.inputs)
    if cost < 0 and handler.transposes_outputs and not _saves_later(push, reaching):
        cost += max(_rank(push.graph, name) for name in push.node.outputs)
    return cost < 0


def _saves_later(push: Push, reaching: _Reaching) -> bool:
    """Whether a Transpose after the node will cancel another one, or merge with it.

    It merges if no other node reads the value as it is now. A graph output, or a value that a
    subgraph reads, keeps its layout and hence its Transpose. Measured on onnxruntime 1.31.1.
    """
    back = inverse_perm(push.perm)
    return any(
        back in reaching[name] or only_reader(push.graph, name) is not None
        for name in push.node.outputs
        if name in reaching and has_only_node_readers(push.graph, name)
    )


def _input_cost(graph: Graph, name: str, perm: Perm) -> int:
    """The cost of transposing an input back; negative if that removes a Transpose."""
    if is_constant_input(graph, name):
        return 0
    transpose = _producer_before(graph, name)
    before = perm_of(transpose)
    if transpose is None or before is None:
        return _rank(graph, name)
    is_removed = before == perm and _can_likely_remove(graph, transpose.outputs[0])
    return -_rank(graph, name) if is_removed else 0


def _producer_before(graph: Graph, name: str) -> Node | None:
    """The producer of a value, past a DequantizeLinear, and past a Squeeze of a Transpose there."""
    producer = graph.producers.get(name)
    if producer is None or not is_dequantize(producer):
        return producer
    above = graph.producers.get(producer.inputs[0])
    if above is None:
        return producer
    if above.op_type != "Squeeze":
        return above
    transpose = graph.producers.get(above.inputs[0])
    return transpose if perm_of(transpose) is not None else producer


def _can_likely_remove(graph: Graph, name: str) -> bool:
    """Whether all readers have a handler, so that the Transpose can be removed."""
    if name in graph.outputs:
        return False
    return all(
        name in reader.inputs and handler_of(reader) is not None for reader in graph.readers(name)
    )


def _rank(graph: Graph, name: str) -> int:
    """The number of dims other than 1, which cost nothing to move."""
    dims = graph.dims_of(name)
    return _UNKNOWN_RANK if dims is None else sum(dim != 1 for dim in dims)
