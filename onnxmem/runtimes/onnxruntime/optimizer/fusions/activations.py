"""Fusion of Gelu and its approximations from the nodes that exporters write."""

import math

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node, walk
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT16,
    MICROSOFT,
    has_kernel,
    has_single_reader,
    is_number,
    is_op,
    other_operand,
    put,
    scalar_of,
    text,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node, replace_chain

# --------------------------------------------------------------------------------------------------
# An Add of a bias and a Gelu become BiasGelu.
#
# onnxruntime/core/optimizer/bias_gelu_fusion.cc (``BiasGeluFusion``).


def fuse_bias_gelu(graph: Graph) -> bool:
    """Replace an Add of a vector and the Gelu that is its only reader."""
    changed: list[bool] = []
    for node in walk(graph, fuse_bias_gelu, changed):
        if is_op(node, "Add", {7, 13, 14}) and has_kernel(graph, node):
            changed.append(_fuse_bias_gelu(graph, node))
    return any(changed)


def _fuse_bias_gelu(graph: Graph, add: Node) -> bool:
    if not has_single_reader(graph, add):
        return False
    inputs = _data_and_bias(graph, add)
    gelu = graph.children(add)[0]
    op_type = _fused_type(gelu)
    if inputs is None or op_type is None or not has_kernel(graph, gelu):
        return False
    fused = add_node(graph, NewNode(op_type, inputs, (), MICROSOFT, op_type))
    replace_chain(graph, [add, gelu], fused)
    return True


def _data_and_bias(graph: Graph, add: Node) -> list[str] | None:
    """The operands of an Add, the vector last; their last dims must be known and equal."""
    one, other = (graph.dims_of(name) for name in add.inputs)
    if not one or not other or one[-1] != other[-1] or not isinstance(one[-1], int):
        return None
    if len(one) == 1:
        return [add.inputs[1], add.inputs[0]]
    return list(add.inputs) if len(other) == 1 else None


def _fused_type(gelu: Node) -> str | None:
    if is_op(gelu, "Gelu", {20}):
        return "FastGelu" if text(gelu, "approximate", "none") == "tanh" else "BiasGelu"
    if gelu.domain != MICROSOFT:
        return None
    if gelu.op_type == "FastGelu" and len(gelu.inputs) == 1:
        return "FastGelu"
    return "BiasGelu" if gelu.op_type == "Gelu" else None


# --------------------------------------------------------------------------------------------------
# The tanh approximation of Gelu becomes FastGelu.
#
# onnxruntime/core/optimizer/fast_gelu_fusion.cc (``CheckFirstFormula``, ``CheckSecondFormula``):
# x * (1 + tanh(0.7978845608 * x * (1 + 0.044715 * x * x))) / 2, or the same with a power of three.


_ARITHMETIC = frozenset({7, 13, 14})
_POW = frozenset({7, 12, 13, 15})
# The literals of the source: 0.044715 and sqrt(2 / pi) in 32 bits.
_CUBIC, _SCALE = 0.044714998453855515, 0.7978845834732056
_Match = tuple[list[Node], str]
"""The matched nodes, and the value x."""


def fuse_fast_gelu(graph: Graph) -> bool:
    """Replace the nodes of the whole expression."""
    changed: list[bool] = []
    for node in walk(graph, fuse_fast_gelu, changed):
        if node.domain or not has_kernel(graph, node) or not has_single_reader(graph, node):
            continue
        first = _factored(graph, node) or _powered(graph, node)
        match = None if first is None else _tanh_part(graph, *first)
        if match is not None:
            fused = add_node(graph, NewNode("FastGelu", [match[1]], (), MICROSOFT, "GPT2Gelu"))
            replace_chain(graph, match[0], fused)
            changed.append(True)
    return any(changed)


def _factored(graph: Graph, node: Node) -> _Match | None:
    """Match the first formula up to tanh: (0.044715 * x * x + 1) * (0.79788 * x)."""
    data = _times(graph, node, _CUBIC)
    square = None if data is None else _reader(graph, node, "Mul", _ARITHMETIC)
    if data is None or square is None or other_operand(square, node) != data:
        return None
    plus = _reader(graph, square, "Add", _ARITHMETIC)
    if plus is None or not is_number(graph, other_operand(plus, square), 1.0):
        return None
    product = _reader(graph, plus, "Mul", _ARITHMETIC)
    scaled = None if product is None else graph.producers.get(other_operand(product, plus))
    if product is None or scaled is None or not has_single_reader(graph, scaled):
        return None
    if _times(graph, scaled, _SCALE) != data:
        return None
    return [node, square, plus, scaled, product], data


def _powered(graph: Graph, node: Node) -> _Match | None:
    """Match the second formula up to tanh: (x ** 3 * 0.044715 + x) * 0.79788."""
    if not is_op(node, "Pow", _POW) or not is_number(graph, node.inputs[1], 3.0):
        return None
    data = node.inputs[0]
    cubic = _reader(graph, node, "Mul", _ARITHMETIC)
    if cubic is None or not is_number(graph, other_operand(cubic, node), _CUBIC):
        return None
    plus = _reader(graph, cubic, "Add", _ARITHMETIC)
    if plus is None or other_operand(plus, cubic) != data:
        return None
    product = _reader(graph, plus, "Mul", _ARITHMETIC)
    if product is None or not is_number(graph, other_operand(product, plus), _SCALE):
        return None
    return [node, cubic, plus, product], data


def _tanh_part(graph: Graph, nodes: list[Node], data: str) -> _Match | None:
    """Match the rest: (tanh + 1) * (x * 0.5), unless it is a graph output."""
    tanh = _reader(graph, nodes[-1], "Tanh", frozenset({6, 13}))
    plus = None if tanh is None else _reader(graph, tanh, "Add", _ARITHMETIC)
    if tanh is None or plus is None or not is_number(graph, other_operand(plus, tanh), 1.0):
        return None
    product = _reader(graph, plus, "Mul", _ARITHMETIC)
    if product is None or graph.is_output(product):
        return None
    if graph.elem_type_of(data) not in (FLOAT, FLOAT16):
        return None
    half = graph.producers.get(other_operand(product, plus))
    if half is None or not has_single_reader(graph, half) or _times(graph, half, 0.5) != data:
        return None
    return [*nodes, tanh, plus, half, product], data


def _times(graph: Graph, node: Node, factor: float) -> str | None:
    """The value that a Mul multiplies by a constant factor."""
    if not is_op(node, "Mul", _ARITHMETIC):
        return None
    for index in (0, 1):
        if is_number(graph, node.inputs[1 - index], factor):
            return node.inputs[index]
    return None


def _reader(graph: Graph, node: Node, op_type: str, versions: frozenset[int]) -> Node | None:
    """The only reader of a node, if it is an operator with a kernel."""
    if not has_single_reader(graph, node):
        return None
    reader = graph.children(node)[0]
    return reader if is_op(reader, op_type, versions) and has_kernel(graph, reader) else None


# --------------------------------------------------------------------------------------------------
# x * (1 + erf(x / sqrt(2))) / 2 becomes Gelu.
#
# onnxruntime/core/optimizer/gelu_fusion.cc (``GeluFusion``). This matcher tells whether the pass
# fires: it has the pass's conditions on versions, types, kernels and readers, and sees a graph that
# earlier passes changed. ``composites.activations`` of the torch runtime has a second one, which
# tells whether the arithmetic in the file is Gelu, because a training step then runs torch's.


_TYPES = (FLOAT16, FLOAT, DOUBLE)
_FIRST_OWN = 20
"""Operator set in which ONNX introduced Gelu."""


def fuse_gelu(graph: Graph) -> bool:
    """Replace the five nodes by ONNX's Gelu, or by com.microsoft's in older operator sets."""
    changed: list[bool] = []
    for node in walk(graph, fuse_gelu, changed):
        if has_kernel(graph, node) and has_single_reader(graph, node):
            chain = _chain(graph, node)
            if chain is not None:
                domain = "" if graph.opsets.get("", 1) >= _FIRST_OWN else MICROSOFT
                fused = add_node(graph, NewNode("Gelu", [chain[1]], (), domain, "Gelu"))
                replace_chain(graph, chain[0], fused)
                changed.append(True)
    return any(changed)


def _chain(graph: Graph, div: Node) -> tuple[list[Node], str] | None:
    """The nodes from the Div to the last Mul, and the value x."""
    data = _divided(graph, div)
    if data is None or graph.elem_type_of(data) not in _TYPES:
        return None
    erf = _reader(graph, div, "Erf", frozenset({9, 13}))
    add = None if erf is None else _reader(graph, erf, "Add", _ARITHMETIC)
    if erf is None or add is None or not is_number(graph, other_operand(add, erf), 1.0):
        return None
    mul = _reader(graph, add, "Mul", _ARITHMETIC)
    if mul is None:
        return None
    # Exporters write x * (...) * 0.5 or (...) * (x * 0.5).
    factor = other_operand(mul, add)
    if factor == data:
        last = _reader(graph, mul, "Mul", _ARITHMETIC)
        if last is not None and is_number(graph, other_operand(last, mul), 0.5):
            return [div, erf, add, mul, last], data
        return None
    half = graph.producers.get(factor)
    if half is None or not is_op(half, "Mul", _ARITHMETIC) or not has_single_reader(graph, half):
        return None
    if data in half.inputs and is_number(graph, half.inputs[half.inputs[0] == data], 0.5):
        return [div, erf, add, half, mul], data
    return None


def _divided(graph: Graph, node: Node) -> str | None:
    """The value that a Div divides by the square root of 2."""
    is_root = is_op(node, "Div", _ARITHMETIC) and is_number(graph, node.inputs[1], math.sqrt(2))
    return node.inputs[0] if is_root else None


# --------------------------------------------------------------------------------------------------
# x * sigmoid(a * x) becomes QuickGelu; with a = 1 it is SiLU.
#
# onnxruntime/core/optimizer/quick_gelu_fusion.cc (``QuickGeluFusion``).


_QUICK_TYPES = (FLOAT, FLOAT16, BFLOAT16)


def fuse_quick_gelu(graph: Graph) -> bool:
    """Replace the optional Mul by a constant, the Sigmoid and the Mul."""
    changed: list[bool] = []
    for node in walk(graph, fuse_quick_gelu, changed):
        if has_kernel(graph, node) and has_single_reader(graph, node):
            changed.append(_fuse_quick_gelu(graph, node))
    return any(changed)


def _fuse_quick_gelu(graph: Graph, first: Node) -> bool:
    scaled = _scaled(graph, first)
    data, alpha = (first.inputs[0] if first.inputs else "", 1.0) if scaled is None else scaled
    sigmoid = first if scaled is None else graph.children(first)[0]
    if not is_op(sigmoid, "Sigmoid", {6, 13}) or not has_single_reader(graph, sigmoid):
        return False
    mul = graph.children(sigmoid)[0]
    if not is_op(mul, "Mul", _ARITHMETIC) or graph.elem_type_of(data) not in _QUICK_TYPES:
        return False
    if other_operand(mul, sigmoid) != data or not has_kernel(graph, mul):
        return False
    fused = add_node(graph, NewNode("QuickGelu", [data], (), MICROSOFT, "QuickGelu"))
    put(fused, "alpha", alpha)
    chain = [sigmoid, mul] if scaled is None else [first, sigmoid, mul]
    replace_chain(graph, chain, fused)
    return True


def _scaled(graph: Graph, node: Node) -> tuple[str, float] | None:
    """The value that a Mul multiplies by a constant, and the constant."""
    if not is_op(node, "Mul", _ARITHMETIC):
        return None
    for index in (0, 1):
        factor = scalar_of(graph, node.inputs[index])
        if factor is not None and graph.elem_type_of(node.inputs[index]) in _QUICK_TYPES:
            return node.inputs[1 - index], factor
    return None
