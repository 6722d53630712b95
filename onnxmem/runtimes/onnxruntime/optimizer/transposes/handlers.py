"""How a Transpose passes each operator.

Source: onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc, the
handlers and their table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import MICROSOFT
from onnxmem.runtimes.onnxruntime.optimizer.transposes.layouts import (
    push_integer_pool,
    push_max_pool,
    push_resize,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.meeting import (
    pass_shape,
    push_transpose,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.moving import (
    Push,
    push_simply,
    redo_outputs,
    undo_inputs,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.permutations import squeezed
from onnxmem.runtimes.onnxruntime.optimizer.transposes.ranks import equalise_ranks
from onnxmem.runtimes.onnxruntime.optimizer.transposes.reshaping import (
    push_pad,
    push_reduction,
    push_reshape,
    push_slice,
    push_squeeze,
    push_tile,
    push_unsqueeze,
)

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
    return equalise_ranks(push) and push_simply(push)


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


def _push_quantise(push: Push) -> bool:
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
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), Handler(_push_quantise)),
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
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), Handler(_push_quantise)),
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
