"""Integer convolutions with the channels last, and Transposes around them that then meet.

Source: onnxruntime/core/optimizer/nhwc_transformer.cc. Float and half precision convolutions get
channels last on some ARM processors only, which is left out.
"""

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import rank_of
from onnxmem.runtimes.onnxruntime.optimizer.order import execution_order
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import swap_operator
from onnxmem.runtimes.onnxruntime.optimizer.transposes.moving import (
    transpose_input,
    transpose_output,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.permutations import inverse
from onnxmem.runtimes.onnxruntime.optimizer.transposes.pushing import push_transposes


def put_channels_last(graph: Graph) -> bool:
    """Transform every QLinearConv of known rank, subgraphs' too; true if there was one."""
    changed = moved = False
    for node in execution_order(graph):
        for body in node.bodies.values():
            changed |= put_channels_last(body)
        if node.op_type == "QLinearConv" and not integer(node, "channels_last"):
            moved |= _transform(graph, node)
    if moved:
        push_transposes(graph, is_assigned=True)
    return moved or changed


def _transform(graph: Graph, node: Node) -> bool:
    rank = rank_of(graph, node.inputs[0])
    if rank is None:
        return False
    put(node, "channels_last", 1)
    order = (0, *range(2, rank), 1)
    transpose_input(graph, node, 0, order)
    transpose_output(graph, node, 0, inverse(order))
    if not node.domain:
        swap_operator(graph, node, "QLinearConv")
    return True
