"""Which Transposes are pushed: those that will meet another, and those that save one.

Source: onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
``OptimizeImpl``, ``ProcessTranspose``, ``EstimateTransposeInputsCost`` and
``CanLikelyRemoveTranspose``. The cost of a Transpose is the number of dims that it may move.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.order import execution_order
from onnxmem.runtimes.onnxruntime.optimizer.transposes.constants import is_constant_input
from onnxmem.runtimes.onnxruntime.optimizer.transposes.dequantised import (
    is_comprehensive,
    is_dequantise,
    single_reader,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.handlers import Handler, handler_of
from onnxmem.runtimes.onnxruntime.optimizer.transposes.layouts import gains_by_layout
from onnxmem.runtimes.onnxruntime.optimizer.transposes.moving import Push
from onnxmem.runtimes.onnxruntime.optimizer.transposes.node_units import mend_units
from onnxmem.runtimes.onnxruntime.optimizer.transposes.permutations import Order, inverse, order_of

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
    if any(is_dequantise(node) for node in nodes):
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
        transpose = graph.makers.get(name)
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
    transpose = _maker_before(graph, name)
    before = order_of(transpose)
    if transpose is None or before is None:
        return _rank(graph, name)
    is_gone = before == order and _can_go(graph, transpose.outputs[0])
    return -_rank(graph, name) if is_gone else 0


def _maker_before(graph: Graph, name: str) -> Node | None:
    """The node that makes a value, seen through DequantizeLinear and a Squeeze of a Transpose."""
    maker = graph.makers.get(name)
    if maker is None or not is_dequantise(maker):
        return maker
    above = graph.makers.get(maker.inputs[0])
    if above is None:
        return maker
    if above.op_type != "Squeeze":
        return above
    transpose = graph.makers.get(above.inputs[0])
    return transpose if order_of(transpose) is not None else maker


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
