"""x * (1 + erf(x / sqrt(2))) / 2, in the ways that exporters write it, becomes Gelu.

Source: onnxruntime/core/optimizer/gelu_fusion.cc.
"""

import math

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    DOUBLE,
    FLOAT,
    FLOAT16,
    MICROSOFT,
    has_single_reader,
    is_number,
    is_op,
)
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node, replace_chain

_ARITHMETIC = frozenset({7, 13, 14})
_TYPES = (FLOAT16, FLOAT, DOUBLE)
_FIRST_OWN = 20
"""Operator set from which ONNX has Gelu."""


def fuse_gelu(graph: Graph) -> bool:
    """Replace the five nodes by Gelu: ONNX's own where its operator set has one."""
    changed: list[bool] = []
    for node in walk(graph, fuse_gelu, changed):
        if has_kernel(graph, node) and has_single_reader(graph, node):
            chain = _chain(graph, node)
            if chain is not None:
                domain = "" if graph.opsets.get("", 1) >= _FIRST_OWN else MICROSOFT
                made = add_node(graph, NewNode("Gelu", [chain[1]], (), domain, "Gelu"))
                replace_chain(graph, chain[0], made)
                changed.append(True)
    return any(changed)


def _chain(graph: Graph, div: Node) -> tuple[list[Node], str] | None:
    """The nodes from the division to the last product, and what is activated."""
    data = _divided(graph, div)
    if data is None or graph.elem_type_of(data) not in _TYPES:
        return None
    erf = _next(graph, div, "Erf", frozenset({9, 13}))
    add = None if erf is None else _next(graph, erf, "Add", _ARITHMETIC)
    if erf is None or add is None or not is_number(graph, _other(add, erf), 1.0):
        return None
    mul = _next(graph, add, "Mul", _ARITHMETIC)
    if mul is None:
        return None
    factor = _other(mul, add)
    if factor == data:
        last = _next(graph, mul, "Mul", _ARITHMETIC)
        if last is not None and is_number(graph, _other(last, mul), 0.5):
            return [div, erf, add, mul, last], data
        return None
    half = graph.makers.get(factor)
    if half is None or not is_op(half, "Mul", _ARITHMETIC) or not has_single_reader(graph, half):
        return None
    if data in half.inputs and is_number(graph, _beside(half, data), 0.5):
        return [div, erf, add, half, mul], data
    return None


def _divided(graph: Graph, node: Node) -> str | None:
    """What is divided by the root of two."""
    is_root = is_op(node, "Div", _ARITHMETIC) and is_number(graph, node.inputs[1], math.sqrt(2))
    return node.inputs[0] if is_root else None


def _next(graph: Graph, node: Node, op_type: str, versions: frozenset[int]) -> Node | None:
    if not has_single_reader(graph, node):
        return None
    reader = graph.children(node)[0]
    return reader if is_op(reader, op_type, versions) and has_kernel(graph, reader) else None


def _other(node: Node, maker: Node) -> str:
    """The operand beside the one that a node makes."""
    return _beside(node, maker.outputs[0])


def _beside(node: Node, name: str) -> str:
    return node.inputs[1] if node.inputs[0] == name else node.inputs[0]
