"""Transposes put before a node's inputs and after its outputs.

Source: onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
``TransposeInput``, ``TransposeOutput``; names by
onnxruntime/core/optimizer/transpose_optimization/ort_optimizer_api_impl.cc.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.attributes import put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_array, add_node
from onnxmem.runtimes.onnxruntime.optimizer.transposes.constants import (
    add_integers,
    add_moving,
    transpose_constant,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.dequantised import (
    is_dequantise,
    quantisation_of,
    read_moved,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.node_units import close_unit
from onnxmem.runtimes.onnxruntime.optimizer.transposes.permutations import (
    Order,
    composed,
    inverse,
    order_of,
)
from onnxmem.runtimes.onnxruntime.optimizer.value_types import TensorType


@dataclass(frozen=True, slots=True)
class Push:
    """A Transpose before a node that wants to be after it."""

    graph: Graph
    transpose: Node
    node: Node
    order: Order
    """The order that the Transpose brings dims into."""
    inputs: Sequence[int]
    """The node's inputs that must be transposed back."""
    is_assigned: bool
    """The CPU provider runs the node, and onnxruntime knows it by now."""

    @property
    def rank(self) -> int:
        """Dims of the transposed value."""
        return len(self.order)


def push_simply(push: Push) -> bool:
    """Transposes from all inputs to all outputs."""
    undo_inputs(push)
    redo_outputs(push, push.order)
    return True


def undo_inputs(push: Push) -> None:
    """Bring each input into the order that it had before the Transpose."""
    for place in push.inputs:
        transpose_input(push.graph, push.node, place, inverse(push.order))


def redo_outputs(push: Push, order: Order) -> None:
    """Bring each output into an order after the node."""
    if order == tuple(range(len(order))):
        return
    for place, name in enumerate(list(push.node.outputs)):
        if name:
            transpose_output(push.graph, push.node, place, order)


def transpose_input(graph: Graph, node: Node, place: int, order: Order) -> None:
    """Make a node read an input in another order, with as few Transposes as can be."""
    if transpose_constant(graph, node, place, order):
        return
    name = node.inputs[place]
    if _use_transpose_above(graph, (node, place), order):
        return
    existing = next((r for r in graph.readers(name) if order_of(r) == order), None)
    if existing is not None:
        graph.set_input(node, place, existing.outputs[0])
        return
    graph.set_input(node, place, "")
    target = _add_transpose(graph, name, order)
    graph.set_input(node, place, target)
    maker = graph.makers.get(name)
    if maker is not None and is_dequantise(maker):
        close_unit(graph, maker)


def _use_transpose_above(graph: Graph, use: tuple[Node, int], order: Order) -> bool:
    """Cancel a Transpose above an input, or join with it; a DequantizeLinear may be between."""
    node, place = use
    name = node.inputs[place]
    maker = graph.makers.get(name)
    dequantise = None
    if maker is not None and is_dequantise(maker) and quantisation_of(graph, maker) is not None:
        dequantise, name = maker, maker.inputs[0]
        maker = graph.makers.get(name)
    before = order_of(maker)
    if maker is None or before is None or len(before) != len(order):
        return False
    source, cancels = maker.inputs[0], before == inverse(order)
    if dequantise is not None:
        if not cancels:
            return False
        read_moved(graph, dequantise, source, order)
    else:
        graph.set_input(node, place, "")
        joined = source if cancels else _add_transpose(graph, source, composed(before, order))
        graph.set_input(node, place, joined)
    if name not in graph.outputs and not graph.readers(name):
        graph.remove(maker)
    return True


def _add_transpose(graph: Graph, source: str, order: Order) -> str:
    target = add_moving(graph, "Transpose", source, order)
    graph.types[target] = _permuted_type(graph, source, order)
    return target


def transpose_output(graph: Graph, node: Node, place: int, order: Order) -> str:
    """Put a Transpose after an output, which it writes in its stead."""
    name = graph.fresh_node_name("Transpose")
    target = node.outputs[place]
    source = graph.fresh_name(node.name)
    made = add_node(graph, NewNode("Transpose", [source], [], "", name))
    put(made, "perm", order)
    outputs = list(node.outputs)
    outputs[place] = source
    graph.set_outputs(node, outputs)
    graph.set_outputs(made, [target])
    graph.types[source] = _permuted_type(graph, target, inverse(order))
    return target


def _permuted_type(graph: Graph, name: str, order: Order) -> TensorType:
    dims = graph.dims_of(name)
    permuted = None if dims is None else tuple(dims[axis] for axis in order)
    return TensorType(graph.elem_type_of(name), permuted)


def move_output(graph: Graph, node: Node, new: Node) -> str:
    """Give a node's output to a new one that follows it: the name under which it is read."""
    target = node.outputs[0]
    source = graph.fresh_name(node.name)
    graph.set_outputs(node, [source])
    graph.set_outputs(new, [target])
    return source


def permute_input(push: Push, place: int, order: Order) -> None:
    """Bring the elements of an input of rank 1 into an order (``PermuteInput``)."""
    graph, node = push.graph, push.node
    name = node.inputs[place]
    value = graph.array(name)
    if value is not None and value.shape in ((0,), (len(order),)):
        made = graph.fresh_name("const_transpose_optimizer")
        moved = value[np.array(order)] if value.size else value
        graph.set_input(node, place, add_array(graph, made, moved))
        return
    inputs = [name, add_integers(graph, order)]
    node_name = graph.fresh_node_name("Gather")
    target = graph.fresh_name(f"{node_name}_out0")
    put(add_node(graph, NewNode("Gather", inputs, [target], "", node_name)), "axis", 0)
    graph.types[target] = TensorType(graph.elem_type_of(name), graph.dims_of(name))
    graph.set_input(node, place, target)
