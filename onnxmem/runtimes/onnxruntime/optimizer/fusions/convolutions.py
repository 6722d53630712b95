"""Fusion of convolutions and Gemm with the Add and the activation after them."""

from collections.abc import Sequence

import onnx

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node, walk
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    FLOAT,
    MICROSOFT,
    clip_bounds,
    has_kernel,
    has_single_reader,
    is_op,
    number,
    put,
    stated,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node, replace_chain

# --------------------------------------------------------------------------------------------------
# A convolution and the activation after it become FusedConv.
#
# onnxruntime/core/optimizer/conv_activation_fusion.cc, ``ConvActivationSelector`` and
# ``FuseConvActivationAction``.


_PLAIN = frozenset({"Relu", "Sigmoid", "Tanh"})
_PARAMETERS = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}


def fuse_conv_activation(graph: Graph) -> bool:
    """Fuse every Conv whose only reader is an activation that FusedConv's kernel can apply."""
    changed: list[bool] = []
    for node in walk(graph, fuse_conv_activation, changed):
        if is_op(node, "Conv", {1, 11, 22}) and has_kernel(graph, node):
            changed.append(_fuse_conv_activation(graph, node))
    return any(changed)


def _fuse_conv_activation(graph: Graph, conv: Node) -> bool:
    if not has_single_reader(graph, conv):
        return False
    activation = graph.children(conv)[0]
    parameters = activation_parameters(graph, activation)
    if parameters is None or not has_kernel(graph, activation):
        return False
    fused = add_node(
        graph,
        NewNode("FusedConv", list(conv.inputs), (), MICROSOFT, conv.name, dict(conv.attributes)),
    )
    put_activation(fused, activation, parameters)
    replace_chain(graph, [conv, activation], fused)
    return True


def put_activation(conv: Node, activation: Node, parameters: Sequence[float]) -> None:
    """Set the attributes for the activation of a FusedConv."""
    put(conv, "activation", activation.op_type)
    if parameters:
        put(conv, "activation_params", parameters)


def activation_parameters(graph: Graph, node: Node) -> Sequence[float] | None:
    """The parameters of an activation; ``None`` if a FusedConv cannot apply it."""
    if node.domain:
        return None
    if node.op_type in _PLAIN:
        return ()
    if node.op_type in _PARAMETERS:
        return [number(node, name) for name in _PARAMETERS[node.op_type]]
    return clip_bounds(graph, node) if node.op_type == "Clip" else None


# --------------------------------------------------------------------------------------------------
# A convolution, the Add after it and an activation after that become FusedConv.
#
# onnxruntime/core/optimizer/conv_add_act_fusion.cc (``ConvAddActivationFusion``). It runs after the
# layout passes, so it sees only convolutions that stay in the plain layout.


_IMAGE_RANK = 4
_INPUTS_WITH_BIAS = 3


def fuse_conv_add(graph: Graph) -> bool:
    """Fuse each Conv with a bias whose only reader is an Add of a value with equal known dims."""
    changed: list[bool] = []
    for node in walk(graph, fuse_conv_add, changed):
        if is_op(node, "Conv", {1, 11, 22}) and has_kernel(graph, node):
            changed.append(_fuse_conv_add_activation(graph, node))
    return any(changed)


def _fuse_conv_add_activation(graph: Graph, node: Node) -> bool:
    add = graph.children(node)[0] if has_single_reader(graph, node) else None
    if add is None or not is_op(add, "Add", {7, 13, 14}) or not _adds_equal_dims(graph, add):
        return False
    conv = _first_conv(graph, add)
    if conv is None:
        return False
    added = [name for name in add.inputs if name not in conv.outputs]
    fused = add_node(
        graph,
        NewNode(
            "FusedConv", [*conv.inputs, *added], (), MICROSOFT, conv.name, dict(conv.attributes)
        ),
    )
    # FusedConv computes activation(conv + bias + z), so the activation after the Add can go along.
    activation = graph.children(add)[0] if has_single_reader(graph, add) else None
    parameters = None if activation is None else activation_parameters(graph, activation)
    if activation is None or parameters is None:
        replace_chain(graph, [conv, add], fused)
    else:
        put_activation(fused, activation, parameters)
        replace_chain(graph, [conv, add, activation], fused)
    return True


def _adds_equal_dims(graph: Graph, add: Node) -> bool:
    one, other = (graph.dims_of(name) for name in add.inputs)
    if one is None or one != other or len(one) != _IMAGE_RANK:
        return False
    return None not in one and 0 not in one


def _first_conv(graph: Graph, add: Node) -> Node | None:
    """The producer of an operand that is a Conv with a bias and no other reader; the first one."""
    for producer in graph.parents(add):
        is_conv = (
            producer.op_type == "Conv"
            and not producer.domain
            and has_single_reader(graph, producer)
        )
        if is_conv and len(producer.inputs) == _INPUTS_WITH_BIAS:
            return producer
    return None


# --------------------------------------------------------------------------------------------------
# A Gemm and the activation after it become FusedGemm.
#
# onnxruntime/core/optimizer/gemm_activation_fusion.cc (``GemmActivationFusion``).


_ACTIVATIONS = frozenset(
    "Elu HardSigmoid LeakyRelu Relu Selu Sigmoid Softplus Softsign Tanh ThresholdedRelu "
    "ScaledTanh ParametricSoftplus".split()
)
_GEMM_PARAMETERS = ("alpha", "beta", "gamma")


def fuse_gemm_activation(graph: Graph) -> bool:
    """Fuse every Gemm of floats whose only reader is an activation."""
    changed: list[bool] = []
    for node in walk(graph, fuse_gemm_activation, changed):
        if is_op(node, "Gemm", {7, 9, 11, 13}) and graph.elem_type_of(node.inputs[0]) == FLOAT:
            changed.append(_fuse_gemm_activation(graph, node))
    return any(changed)


def _fuse_gemm_activation(graph: Graph, gemm: Node) -> bool:
    if not has_single_reader(graph, gemm):
        return False
    activation = graph.children(gemm)[0]
    is_known = activation.op_type in _ACTIVATIONS and not activation.domain
    if not is_known or not has_kernel(graph, activation):
        return False
    fused = add_node(
        graph,
        NewNode("FusedGemm", list(gemm.inputs), (), MICROSOFT, gemm.name, dict(gemm.attributes)),
    )
    put(fused, "activation", activation.op_type)
    for name in _GEMM_PARAMETERS:
        attribute = stated(activation, name)
        if attribute is not None and attribute.type == onnx.AttributeProto.FLOAT:
            put(fused, f"activation_{name}", attribute.f)
    replace_chain(graph, [gemm, activation], fused)
    return True
