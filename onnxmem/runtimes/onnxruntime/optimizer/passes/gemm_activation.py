"""A Gemm takes in the activation after it: FusedGemm.

Source: onnxruntime/core/optimizer/gemm_activation_fusion.cc.
"""

import onnx

from onnxmem.runtimes.onnxruntime.optimizer.attributes import put, stated
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    FLOAT,
    MICROSOFT,
    has_single_reader,
    is_op,
)
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node, replace_chain

_ACTIVATIONS = frozenset(
    "Elu HardSigmoid LeakyRelu Relu Selu Sigmoid Softplus Softsign Tanh ThresholdedRelu "
    "ScaledTanh ParametricSoftplus".split()
)
_PARAMETERS = ("alpha", "beta", "gamma")


def fuse_gemm_activation(graph: Graph) -> bool:
    """Fuse every Gemm of floats whose only reader is an activation."""
    changed: list[bool] = []
    for node in walk(graph, fuse_gemm_activation, changed):
        if is_op(node, "Gemm", {7, 9, 11, 13}) and graph.elem_type_of(node.inputs[0]) == FLOAT:
            changed.append(_fuse(graph, node))
    return any(changed)


def _fuse(graph: Graph, gemm: Node) -> bool:
    if not has_single_reader(graph, gemm):
        return False
    activation = graph.children(gemm)[0]
    is_known = activation.op_type in _ACTIVATIONS and not activation.domain
    if not is_known or not has_kernel(graph, activation):
        return False
    made = add_node(
        graph,
        NewNode("FusedGemm", list(gemm.inputs), (), MICROSOFT, gemm.name, dict(gemm.attributes)),
    )
    put(made, "activation", activation.op_type)
    for name in _PARAMETERS:
        attribute = stated(activation, name)
        if attribute is not None and attribute.type == onnx.AttributeProto.FLOAT:
            put(made, f"activation_{name}", attribute.f)
    replace_chain(graph, [gemm, activation], made)
    return True
