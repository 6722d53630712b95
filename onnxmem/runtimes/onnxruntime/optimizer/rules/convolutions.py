"""A convolution takes in the normalisation, the sum or the product after it.

Source: onnxruntime/core/optimizer/conv_bn_fusion.cc, conv_add_fusion.cc and conv_mul_fusion.cc.
The new weights have the old dims, and their elements are not worked out.
"""

from collections.abc import Sequence

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    DOUBLE,
    FLOAT,
    FLOAT16,
    has_single_reader,
    is_constant,
    is_op,
    num_input_edges,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import add_absent, fuse_into_next
from onnxmem.runtimes.onnxruntime.optimizer.rules.effect import Effect

_CONV = frozenset({1, 11, 22})
_FLOATS = (FLOAT, FLOAT16, DOUBLE)
_BIAS = 2
_MIN_RANK = 3


def fuse_batch_norm(graph: Graph, node: Node) -> Effect:
    """Conv or ConvTranspose with constant weights, and a BatchNormalization."""
    norm = _only_reader(graph, node)
    is_conv = is_op(node, "Conv", _CONV) or is_op(node, "ConvTranspose", _CONV)
    if norm is None or not is_conv or not is_op(norm, "BatchNormalization", {7, 9, 14, 15}):
        return Effect.NONE
    constants = [*node.inputs[1:], *norm.inputs[1:]]
    if num_input_edges(graph, norm) != 1 or not all(is_constant(graph, n) for n in constants):
        return Effect.NONE
    dims = [_dims(graph, name) for name in norm.inputs[1:]]
    elem_types = {graph.elem_type_of(name) for name in (node.inputs[1], *norm.inputs[1:])}
    if any(norm.outputs[1:]) or len(elem_types) != 1 or not elem_types <= set(_FLOATS):
        return Effect.NONE
    weight = _dims(graph, node.inputs[1])
    dims += [(_num_outputs(node, weight),), *(_dims(graph, n) for n in node.inputs[_BIAS:])]
    if len(weight) < _MIN_RANK or len(set(dims)) != 1:
        return Effect.NONE
    _renew(graph, node, 1, f"ConvBnFusion_W_{node.inputs[1]}", weight)
    _renew(graph, node, _BIAS, f"ConvBnFusion_BN_B_{norm.inputs[_BIAS]}", dims[0])
    fuse_into_next(graph, node, norm)
    return Effect.CHANGED


def _num_outputs(node: Node, weight: Sequence[int]) -> int:
    if node.op_type == "ConvTranspose":
        return weight[1] * integer(node, "group", 1)
    return weight[0]


def fuse_conv_add(graph: Graph, node: Node) -> Effect:
    """Conv with constant weights, and an Add of a constant per output channel."""
    add = _only_reader(graph, node)
    if add is None or not is_op(add, "Add", {7, 13, 14}) or not _takes_operand(graph, node, add):
        return Effect.NONE
    weight, addend = _dims(graph, node.inputs[1]), _dims(graph, add.inputs[1])
    if not _is_per_channel(addend, weight):
        return Effect.NONE
    has_bias = len(node.inputs) > _BIAS
    base = (
        f"ConvAddFusion_B_{node.inputs[_BIAS]}"
        if has_bias
        else f"ConvAddFusion_Add_B_{add.inputs[1]}"
    )
    _renew(graph, node, _BIAS, base, weight[:1])
    fuse_into_next(graph, node, add)
    return Effect.CHANGED


def fuse_conv_mul(graph: Graph, node: Node) -> Effect:
    """Conv with constant weights, and a Mul by a constant scalar or one per output channel."""
    mul = _only_reader(graph, node)
    if mul is None or not is_op(mul, "Mul", {7, 13, 14}) or not _takes_operand(graph, node, mul):
        return Effect.NONE
    weight, factor = _dims(graph, node.inputs[1]), _dims(graph, mul.inputs[1])
    if factor and not _is_per_channel(factor, weight):
        return Effect.NONE
    _renew(graph, node, 1, f"ConvMulFusion_W_{node.inputs[1]}", weight)
    if len(node.inputs) > _BIAS:
        bias = _dims(graph, node.inputs[_BIAS])
        _renew(graph, node, _BIAS, f"ConvMulFusion_Mul_B_{mul.inputs[1]}", bias)
    fuse_into_next(graph, node, mul)
    return Effect.CHANGED


def _only_reader(graph: Graph, node: Node) -> Node | None:
    return graph.children(node)[0] if has_single_reader(graph, node) else None


def _takes_operand(graph: Graph, conv: Node, reader: Node) -> bool:
    """Whether weights and the reader's second input are constants of one float type."""
    constants = [*conv.inputs[1:], reader.inputs[1]]
    if not is_op(conv, "Conv", _CONV) or num_input_edges(graph, reader) != 1:
        return False
    if not all(is_constant(graph, name) for name in constants):
        return False
    elem_types = {graph.elem_type_of(name) for name in constants}
    return len(elem_types) == 1 and elem_types <= set(_FLOATS)


def _is_per_channel(operand: Sequence[int], weight: Sequence[int]) -> bool:
    """1xCx1x1 or Cx1x1 for a two-dimensional convolution."""
    axis = 1 if len(operand) == len(weight) else 0
    if len(operand) not in (len(weight), len(weight) - 1) or operand[axis] != weight[0]:
        return False
    return all(dim == 1 for place, dim in enumerate(operand) if place != axis)


def _dims(graph: Graph, name: str) -> tuple[int, ...]:
    tensor = graph.constant(name)
    return () if tensor is None else tuple(tensor.dims)


def _renew(graph: Graph, node: Node, place: int, base: str, dims: Sequence[int]) -> None:
    elem_type = graph.elem_type_of(node.inputs[1])
    graph.set_input(node, place, add_absent(graph, graph.fresh_name(base), elem_type, dims))
