"""A convolution takes in the Add after it, and an activation after that: FusedConv.

Source: onnxruntime/core/optimizer/conv_add_act_fusion.cc. It comes after the layouts, so that it
finds only convolutions that stay in the plain one.
"""

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import MICROSOFT, has_single_reader, is_op
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.passes.conv_activation import (
    activation_parameters,
    put_activation,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node, replace_chain

_IMAGE_RANK = 4
_INPUTS_WITH_BIAS = 3


def fuse_conv_add(graph: Graph) -> bool:
    """Fuse each Conv with a bias whose only reader adds a value of the very same dims."""
    changed: list[bool] = []
    for node in walk(graph, fuse_conv_add, changed):
        if is_op(node, "Conv", {1, 11, 22}) and has_kernel(graph, node):
            changed.append(_fuse(graph, node))
    return any(changed)


def _fuse(graph: Graph, node: Node) -> bool:
    add = graph.children(node)[0] if has_single_reader(graph, node) else None
    if add is None or not is_op(add, "Add", {7, 13, 14}) or not _adds_alike(graph, add):
        return False
    conv = _first_conv(graph, add)
    if conv is None:
        return False
    added = [name for name in add.inputs if name not in conv.outputs]
    made = add_node(
        graph,
        NewNode(
            "FusedConv", [*conv.inputs, *added], (), MICROSOFT, conv.name, dict(conv.attributes)
        ),
    )
    activation = graph.children(add)[0] if has_single_reader(graph, add) else None
    parameters = None if activation is None else activation_parameters(graph, activation)
    if activation is None or parameters is None:
        replace_chain(graph, [conv, add], made)
    else:
        put_activation(made, activation, parameters)
        replace_chain(graph, [conv, add, activation], made)
    return True


def _adds_alike(graph: Graph, add: Node) -> bool:
    one, other = (graph.dims_of(name) for name in add.inputs)
    if one is None or one != other or len(one) != _IMAGE_RANK:
        return False
    return None not in one and 0 not in one


def _first_conv(graph: Graph, add: Node) -> Node | None:
    """The first Conv with a bias, by index, of those that make the operands for the Add alone."""
    for maker in graph.parents(add):
        is_conv = maker.op_type == "Conv" and not maker.domain and has_single_reader(graph, maker)
        if is_conv and len(maker.inputs) == _INPUTS_WITH_BIAS:
            return maker
    return None
