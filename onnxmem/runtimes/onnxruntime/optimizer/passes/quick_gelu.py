"""x * sigmoid(a * x) becomes QuickGelu; with a = 1 that is SiLU.

Source: onnxruntime/core/optimizer/quick_gelu_fusion.cc.
"""

from onnxmem.runtimes.onnxruntime.optimizer.attributes import put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    BFLOAT16,
    FLOAT,
    FLOAT16,
    MICROSOFT,
    has_single_reader,
    is_op,
    scalar_of,
)
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node, replace_chain

_MUL = frozenset({7, 13, 14})
_TYPES = (FLOAT, FLOAT16, BFLOAT16)


def fuse_quick_gelu(graph: Graph) -> bool:
    """Replace the optional scale, the Sigmoid and the product."""
    changed: list[bool] = []
    for node in walk(graph, fuse_quick_gelu, changed):
        if has_kernel(graph, node) and has_single_reader(graph, node):
            changed.append(_fuse(graph, node))
    return any(changed)


def _fuse(graph: Graph, first: Node) -> bool:
    scaled = _scaled(graph, first)
    data, alpha = (first.inputs[0] if first.inputs else "", 1.0) if scaled is None else scaled
    sigmoid = first if scaled is None else graph.children(first)[0]
    if not is_op(sigmoid, "Sigmoid", {6, 13}) or not has_single_reader(graph, sigmoid):
        return False
    mul = graph.children(sigmoid)[0]
    if not is_op(mul, "Mul", _MUL) or graph.elem_type_of(data) not in _TYPES:
        return False
    gate = mul.inputs[1] if mul.inputs[0] == sigmoid.outputs[0] else mul.inputs[0]
    if gate != data or not has_kernel(graph, mul):
        return False
    made = add_node(graph, NewNode("QuickGelu", [data], (), MICROSOFT, "QuickGelu"))
    put(made, "alpha", alpha)
    chain = [sigmoid, mul] if scaled is None else [first, sigmoid, mul]
    replace_chain(graph, chain, made)
    return True


def _scaled(graph: Graph, node: Node) -> tuple[str, float] | None:
    """What a product with a constant scales, and by how much."""
    if not is_op(node, "Mul", _MUL):
        return None
    for place in (0, 1):
        factor = scalar_of(graph, node.inputs[place])
        if factor is not None and graph.elem_type_of(node.inputs[place]) in _TYPES:
            return node.inputs[1 - place], factor
    return None
