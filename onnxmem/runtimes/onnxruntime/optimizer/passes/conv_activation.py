"""A convolution takes in the activation after it: FusedConv.

Source: onnxruntime/core/optimizer/conv_activation_fusion.cc, ``ConvActivationSelector`` and
``FuseConvActivationAction``.
"""

from collections.abc import Sequence

from onnxmem.runtimes.onnxruntime.optimizer.attributes import number, put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    MICROSOFT,
    clip_bounds,
    has_single_reader,
    is_op,
)
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node, replace_chain

_PLAIN = frozenset({"Relu", "Sigmoid", "Tanh"})
_PARAMETERS = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}


def fuse_conv_activation(graph: Graph) -> bool:
    """Fuse every Conv whose only reader is an activation that the kernel applies itself."""
    changed: list[bool] = []
    for node in walk(graph, fuse_conv_activation, changed):
        if is_op(node, "Conv", {1, 11, 22}) and has_kernel(graph, node):
            changed.append(_fuse(graph, node))
    return any(changed)


def _fuse(graph: Graph, conv: Node) -> bool:
    if not has_single_reader(graph, conv):
        return False
    activation = graph.children(conv)[0]
    parameters = activation_parameters(graph, activation)
    if parameters is None or not has_kernel(graph, activation):
        return False
    made = add_node(
        graph,
        NewNode("FusedConv", list(conv.inputs), (), MICROSOFT, conv.name, dict(conv.attributes)),
    )
    put_activation(made, activation, parameters)
    replace_chain(graph, [conv, activation], made)
    return True


def put_activation(conv: Node, activation: Node, parameters: Sequence[float]) -> None:
    """Tell a FusedConv what it applies to its result."""
    put(conv, "activation", activation.op_type)
    if parameters:
        put(conv, "activation_params", parameters)


def activation_parameters(graph: Graph, node: Node) -> Sequence[float] | None:
    """The numbers that an activation needs; ``None`` where no convolution applies it."""
    if node.domain:
        return None
    if node.op_type in _PLAIN:
        return ()
    if node.op_type in _PARAMETERS:
        return [number(node, name) for name in _PARAMETERS[node.op_type]]
    return clip_bounds(graph, node) if node.op_type == "Clip" else None
