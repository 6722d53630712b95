"""Constant factors before and after a product of matrices become its ``alpha``.

Source: onnxruntime/core/optimizer/matmul_scale_fusion.cc.
"""

import math
from collections.abc import Sequence

from onnxmem.runtimes.onnxruntime.optimizer.attributes import number, put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT16,
    MICROSOFT,
    has_single_reader,
    is_op,
    rank_of,
)
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node, replace_chain

_ARITHMETIC = frozenset({7, 13, 14})
_TYPES = (FLOAT, FLOAT16, DOUBLE, BFLOAT16)


def fuse_matmul_scale(graph: Graph) -> bool:
    """Replace each MatMul beside a constant factor by FusedMatMul."""
    changed: list[bool] = []
    for node in walk(graph, fuse_matmul_scale, changed):
        if is_matmul(node) and has_kernel(graph, node):
            changed.append(_fuse(graph, node))
    return any(changed)


def is_matmul(node: Node) -> bool:
    """Whether a node is MatMul or what it becomes by fusion."""
    return is_op(node, "MatMul", {9, 13}) or is_op(node, "FusedMatMul", {1}, MICROSOFT)


def _fuse(graph: Graph, matmul: Node) -> bool:
    if graph.elem_type_of(matmul.inputs[0]) not in _TYPES:
        return False
    scaled = [_scaled_input(graph, matmul, place) for place in range(2)]
    after = _scale_after(graph, matmul)
    if not any(scaled) and after is None:
        return False
    inputs = [
        matmul.inputs[place] if found is None else found[1] for place, found in enumerate(scaled)
    ]
    factors = [found[2] for found in (*scaled, after) if found is not None]
    made = add_node(
        graph,
        NewNode(
            "FusedMatMul",
            inputs,
            (),
            MICROSOFT,
            f"{matmul.name}_FusedMatMulAndScale",
            dict(matmul.attributes),
        ),
    )
    put(made, "alpha", number(matmul, "alpha", 1.0) * math.prod(factors))
    replace_chain(graph, [matmul] if after is None else [matmul, after[0]], made)
    _drop_unread(graph, [found[0] for found in scaled if found is not None])
    return True


def _drop_unread(graph: Graph, nodes: Sequence[Node]) -> None:
    for node in dict.fromkeys(nodes):
        if has_single_reader(graph, node, 0):
            graph.remove(node)


_Scaled = tuple[Node, str, float]
"""The node that scales, what it scales, and by how much."""


def _scaled_input(graph: Graph, matmul: Node, place: int) -> _Scaled | None:
    maker = graph.parent(matmul, place)
    found = None if maker is None else _scale_of(graph, maker)
    return None if found is None or rank_of(graph, found[1]) is None else found


def _scale_after(graph: Graph, matmul: Node) -> _Scaled | None:
    if not has_single_reader(graph, matmul):
        return None
    found = _scale_of(graph, graph.children(matmul)[0])
    return found if found is not None and found[1] == matmul.outputs[0] else None


def _scale_of(graph: Graph, node: Node) -> _Scaled | None:
    if is_op(node, "Div", _ARITHMETIC):
        divisor = _factor(graph, node, 1)
        if divisor is None:
            return None
        return node, node.inputs[0], 1.0 / divisor if divisor else math.copysign(math.inf, divisor)
    if is_op(node, "Mul", _ARITHMETIC):
        for place in (0, 1):
            factor = _factor(graph, node, place)
            if factor is not None:
                return node, node.inputs[1 - place], factor
    return None


def _factor(graph: Graph, node: Node, place: int) -> float | None:
    """The only element of a constant operand that adds no dims to the other."""
    tensor, value = graph.constant(node.inputs[place]), graph.array(node.inputs[place])
    if tensor is None or value is None or value.size != 1 or value.dtype.kind not in "fi":
        return None
    rank = rank_of(graph, node.inputs[1 - place])
    if tensor.dims and (rank is None or rank < len(tensor.dims)):
        return None
    return float(value.ravel()[0])
