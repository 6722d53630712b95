"""A Transpose that meets another, or a Shape.

Source: onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
``HandleTranspose`` and ``HandleShape``.
"""

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    NewNode,
    add_node,
    redirect,
    replace_chain,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.constants import add_integers
from onnxmem.runtimes.onnxruntime.optimizer.transposes.dequantised import is_comprehensive
from onnxmem.runtimes.onnxruntime.optimizer.transposes.moving import (
    Push,
    move_output,
    undo_inputs,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.permutations import (
    Order,
    composed,
    inverse,
    order_of,
)
from onnxmem.runtimes.onnxruntime.optimizer.value_types import TensorType

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
    maker = graph.makers.get(source)
    graph.set_inputs(node, [])
    if is_comprehensive(graph, target):
        redirect(graph, target, source)
        graph.remove(node)
    elif maker is not None and is_comprehensive(graph, source):
        redirect(graph, source, target)
        graph.remove(node)
        graph.set_outputs(maker, [target if name == source else name for name in maker.outputs])
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
