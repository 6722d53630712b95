"""Rewrite rules of the basic and the extended level, each of one node and its neighbors.

Every node is passed to the rules of its operator, in order of execution. ``BASIC_RULES`` and
``EXTENDED_RULES`` are the tables.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Final

import numpy as np
import onnx
import onnx.helper

from onnxmem.model.constants import Array
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node, execution_order
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    DOUBLE,
    FLOAT,
    FLOAT16,
    axes_of,
    child_of,
    clip_bounds,
    has_edges,
    has_kernel,
    has_single_reader,
    integer,
    integer_range,
    integers,
    integers_of,
    is_constant,
    is_gemm_bias,
    is_op,
    num_input_edges,
    number,
    other_operand,
    put,
    rank_of,
    text,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    NewNode,
    add_absent,
    add_array,
    add_node,
    bypass,
    can_remove,
    fuse_into_next,
    replace_by_constant,
    replace_chain,
)

# --------------------------------------------------------------------------------------------------
# What a rule did to its node.
#
# onnxruntime/core/optimizer/rewrite_rule.h, ``RewriteRuleEffect``.


class Effect(Enum):
    """Decides whether the next rule gets the same node."""

    NONE = auto()
    CHANGED = auto()
    """The graph changed, and still has the node."""
    REMOVED = auto()
    """The graph no longer has the node, so no further rule gets it."""


Rule = Callable[[Graph, Node], Effect]


def removed_if(is_removed: bool) -> Effect:  # noqa: FBT001 - the result of the removal
    """The effect of a rule that removes its node if it can."""
    return Effect.REMOVED if is_removed else Effect.NONE


# --------------------------------------------------------------------------------------------------
# Casts to the type of their input, and casts that only Shape nodes read.
#
# onnxruntime/core/optimizer/cast_elimination.cc and pre_shape_node_elimination.cc.


def drop_cast(graph: Graph, node: Node) -> Effect:
    """Remove a Cast to the type of its input (``CastElimination``)."""
    elem_type = graph.elem_type_of(node.inputs[0])
    if not elem_type or integer(node, "to") != elem_type:
        return Effect.NONE
    return removed_if(can_remove(graph, node) and bypass(graph, node))


def drop_before_shape(graph: Graph, node: Node) -> Effect:
    """Remove a Cast that only Shape nodes read (``PreShapeNodeElimination``)."""
    readers = graph.readers(node.outputs[0])
    if not readers or any(reader.op_type != "Shape" for reader in readers):
        return Effect.NONE
    return removed_if(can_remove(graph, node) and bypass(graph, node))


# --------------------------------------------------------------------------------------------------
# A BatchNormalization, Add or Mul by constants is folded into the convolution before it.
#
# onnxruntime/core/optimizer/conv_bn_fusion.cc, conv_add_fusion.cc and conv_mul_fusion.cc. The new
# weights have the dims of the old ones; their elements are not computed.


_CONV = frozenset({1, 11, 22})
_FLOATS = (FLOAT, FLOAT16, DOUBLE)
_BIAS = 2
_MIN_RANK = 3


def fuse_batch_norm(graph: Graph, node: Node) -> Effect:
    """Fold a BatchNormalization into a Conv or ConvTranspose with constant weights."""
    norm = _only_reader(graph, node)
    is_conv = is_op(node, "Conv", _CONV) or is_op(node, "ConvTranspose", _CONV)
    if norm is None or not is_conv or not is_op(norm, "BatchNormalization", {7, 9, 14, 15}):
        return Effect.NONE
    constants = [*node.inputs[1:], *norm.inputs[1:]]
    # w' = w scale / sqrt(var + eps), b' = (b - mean) scale / sqrt(var + eps) + B: constants if all
    # of these are, one element per output channel.
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
    """Fold an Add of a constant per output channel into a Conv with constant weights."""
    add = _only_reader(graph, node)
    if add is None or not is_op(add, "Add", {7, 13, 14}) or not _can_fold_operand(graph, node, add):
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
    """Fold a Mul by a scalar, or by one per output channel, into a Conv with constant weights."""
    mul = _only_reader(graph, node)
    if mul is None or not is_op(mul, "Mul", {7, 13, 14}) or not _can_fold_operand(graph, node, mul):
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


def _can_fold_operand(graph: Graph, conv: Node, reader: Node) -> bool:
    """Whether the weights and the reader's second input are constants of one float type."""
    constants = [*conv.inputs[1:], reader.inputs[1]]
    if not is_op(conv, "Conv", _CONV) or num_input_edges(graph, reader) != 1:
        return False
    if not all(is_constant(graph, name) for name in constants):
        return False
    elem_types = {graph.elem_type_of(name) for name in constants}
    return len(elem_types) == 1 and elem_types <= set(_FLOATS)


def _is_per_channel(operand: Sequence[int], weight: Sequence[int]) -> bool:
    """Whether an operand is 1xCx1x1 or Cx1x1, for a two-dimensional convolution."""
    channel_axis = 1 if len(operand) == len(weight) else 0
    if len(operand) not in (len(weight), len(weight) - 1) or operand[channel_axis] != weight[0]:
        return False
    return all(dim == 1 for axis, dim in enumerate(operand) if axis != channel_axis)


def _dims(graph: Graph, name: str) -> tuple[int, ...]:
    tensor = graph.constant(name)
    return () if tensor is None else tuple(tensor.dims)


def _renew(graph: Graph, node: Node, input_index: int, base: str, dims: Sequence[int]) -> None:
    """Replace an input by a new constant of the weights' type."""
    elem_type = graph.elem_type_of(node.inputs[1])
    graph.set_input(node, input_index, add_absent(graph, graph.fresh_name(base), elem_type, dims))


# --------------------------------------------------------------------------------------------------
# A reciprocal times a value becomes a quotient: 1/a * b = b/a.
#
# onnxruntime/core/optimizer/div_mul_fusion.cc.


def fuse_div_mul(graph: Graph, node: Node) -> Effect:
    """Make a Div with a numerator of 1 divide the other factor of the Mul that reads it."""
    if not is_op(node, "Div", {7, 13, 14}) or not has_single_reader(graph, node):
        return Effect.NONE
    mul = graph.children(node)[0]
    one = graph.array(node.inputs[0])
    if not is_op(mul, "Mul", {7, 13, 14}) or one is None or one.size != 1:
        return Effect.NONE
    if float(one.ravel()[0]) != 1.0:
        return Effect.NONE
    factor = other_operand(mul, node)
    graph.set_input(node, 0, factor)
    fuse_into_next(graph, node, mul)
    return Effect.CHANGED


# --------------------------------------------------------------------------------------------------
# An Expand to the shape of its input.
#
# onnxruntime/core/optimizer/expand_elimination.cc.


def drop_expand(graph: Graph, node: Node) -> Effect:
    """Remove an Expand whose constant target expands no dim."""
    target = integers_of(graph, node.input_at(1))
    dims = graph.dims_of(node.inputs[0])
    if target is None or dims is None or len(target) > len(dims) or not can_remove(graph, node):
        return Effect.NONE
    # Broadcasting aligns shapes at the end.
    last = dims[len(dims) - len(target) :]
    if any(new > 1 and new != dim for new, dim in zip(target, last, strict=True)):
        return Effect.NONE
    return removed_if(bypass(graph, node))


# --------------------------------------------------------------------------------------------------
# A Sum and Transposes are folded into the Gemm beside them, and a Not into a Where.
#
# onnxruntime/core/optimizer/gemm_sum_fusion.cc, gemm_transpose_fusion.cc and not_where_fusion.cc.


_GEMM = frozenset({7, 9, 11, 13})
_HAS_OPTIONAL_BIAS = frozenset({11, 13})
"""Versions in which the third input is optional."""
_PAIR = 2


def fuse_gemm_sum(graph: Graph, node: Node) -> Effect:
    """Replace a Gemm without a third input and a Sum of two by one Gemm."""
    has_bias = bool(node.input_at(2))
    is_gemm = is_op(node, "Gemm", _HAS_OPTIONAL_BIAS)
    if not is_gemm or has_bias or not has_single_reader(graph, node):
        return Effect.NONE
    total = graph.children(node)[0]
    if not is_op(total, "Sum", {1, 6, 8, 13}) or len(total.inputs) != _PAIR:
        return Effect.NONE
    bias = other_operand(total, node)
    # A Sum broadcasts both ways, a Gemm only its third input to the product.
    dims, product = graph.dims_of(bias), graph.dims_of(node.outputs[0])
    if dims is None or product is None or not is_gemm_bias(dims, product):
        return Effect.NONE
    fused = add_node(
        graph,
        NewNode("Gemm", [*node.inputs[:2], bias], (), "", "", dict(node.attributes)),
    )
    replace_chain(graph, [node, total], fused)
    return Effect.REMOVED


def fuse_gemm_transposes(graph: Graph, node: Node) -> Effect:
    """Replace the Transposes before and after a Gemm by its flags."""
    if not is_op(node, "Gemm", _GEMM) or graph.num_edges(node) > 1:
        return Effect.NONE
    before = [_transpose_before(graph, node, index) for index in (0, 1)]
    after = _transpose_after(graph, node)
    if not any(before) and after is None:
        return Effect.NONE
    inputs = [
        name if producer is None else producer.inputs[0]
        for name, producer in zip(node.inputs, before, strict=False)
    ]
    flags = [
        integer(node, flag) ^ (producer is not None)
        for flag, producer in zip(("transA", "transB"), before, strict=True)
    ]
    # (A B)' is B' A', so a Transpose after the product swaps the sides and flips both flags.
    if after is not None:
        inputs, flags = inputs[::-1], [1 - flag for flag in flags[::-1]]
    attributes = dict(node.attributes)
    fused = add_node(
        graph, NewNode("Gemm", [*inputs, *node.inputs[2:]], (), "", node.name, attributes)
    )
    put(fused, "transA", flags[0])
    put(fused, "transB", flags[1])
    replace_chain(graph, [node] if after is None else [node, after], fused)
    for producer in dict.fromkeys(before):
        if producer is not None and has_edges(graph, producer, 0):
            graph.remove(producer)
    return Effect.REMOVED


def _transpose_before(graph: Graph, gemm: Node, input_index: int) -> Node | None:
    """The Transpose that produces an operand, if only Gemms read it."""
    node = graph.parent(gemm, input_index)
    if node is None or not _is_matrix_transpose(graph, node) or graph.is_output(node):
        return None
    return node if all(reader.op_type == "Gemm" for reader in graph.children(node)) else None


def _transpose_after(graph: Graph, gemm: Node) -> Node | None:
    """The Transpose that is the only reader of a Gemm without a third input."""
    is_product = is_op(gemm, "Gemm", _HAS_OPTIONAL_BIAS) and len(gemm.inputs) == _PAIR
    if not is_product or not has_single_reader(graph, gemm):
        return None
    reader = graph.children(gemm)[0]
    return reader if _is_matrix_transpose(graph, reader) else None


def _is_matrix_transpose(graph: Graph, node: Node) -> bool:
    if not is_op(node, "Transpose", {1, 13, 21, 23, 24, 25}):
        return False
    rank, order = rank_of(graph, node.inputs[0]), integers(node, "perm")
    return rank == _PAIR if order is None else rank in (None, _PAIR) and order == [1, 0]


def fuse_not_where(graph: Graph, node: Node) -> Effect:
    """Remove the Not of a Where's condition, and swap the Where's branches."""
    if not is_op(node, "Where", {9, 16}):
        return Effect.NONE
    negation = graph.parent(node, 0)
    if negation is None or not is_op(negation, "Not", {1}) or graph.is_output(negation):
        return Effect.NONE
    readers = graph.readers(negation.outputs[0])
    if any(
        reader.op_type != "Where" or reader.inputs[0] != negation.outputs[0] for reader in readers
    ):
        return Effect.NONE
    for reader in readers:
        graph.set_inputs(reader, [negation.inputs[0], reader.inputs[2], reader.inputs[1]])
    graph.remove(negation)
    return Effect.CHANGED


# --------------------------------------------------------------------------------------------------
# Identity and Dropout are removed: in inference their output is their input.
#
# onnxruntime/core/optimizer/identity_elimination.cc and dropout_elimination.cc.


def drop_identity(graph: Graph, node: Node) -> Effect:
    """Remove an Identity; if it writes a graph output, its parent writes that output instead."""
    if can_remove(graph, node):
        return removed_if(bypass(graph, node))
    return _rename_parent(graph, node)


def _rename_parent(graph: Graph, node: Node) -> Effect:
    """Remove an Identity and give its output to its parent, whose own output nothing else reads."""
    parent = graph.parent(node, 0)
    if parent is None or not graph.is_output(node) or graph.readers(node.outputs[0]):
        return Effect.NONE
    if node.inputs[0] in graph.outputs or len(graph.readers(node.inputs[0])) != 1:
        return Effect.NONE
    old, new = node.inputs[0], node.outputs[0]
    graph.remove(node)
    graph.set_outputs(parent, [new if name == old else name for name in parent.outputs])
    return Effect.REMOVED


def drop_dropout(graph: Graph, node: Node) -> Effect:
    """Remove a Dropout whose mask nothing reads.

    Measured on onnxruntime 1.31.1: it makes no difference whether ``training_mode`` is false, true
    or a graph input.
    """
    if node.output_at(1) and graph.readers(node.output_at(1)):
        return Effect.NONE
    return removed_if(can_remove(graph, node) and bypass(graph, node))


# --------------------------------------------------------------------------------------------------
# A product with a constant matrix and a BatchNormalization become a Gemm.
#
# onnxruntime/core/optimizer/matmul_bn_fusion.cc. Reshapes and Transposes in between stay.


_MATRIX = 2


def fuse_matmul_batch_norm(graph: Graph, node: Node) -> Effect:
    """Replace a MatMul with a constant matrix and a BatchNormalization of its columns by a Gemm."""
    if not is_op(node, "MatMul", {1, 9, 13}) or rank_of(graph, node.inputs[0]) != _MATRIX:
        return Effect.NONE
    norm = _norm_after(graph, node)
    if norm is None or any(norm.outputs[1:]):
        return Effect.NONE
    constants = [node.inputs[1], *norm.inputs[1:]]
    if not all(is_constant(graph, name) for name in constants):
        return Effect.NONE
    # The matrix is scaled by column, and what is left of the norm is the bias of the Gemm.
    weight, scale = (graph.constant(name) for name in constants[:2])
    if weight is None or scale is None or len(weight.dims) != _MATRIX:
        return Effect.NONE
    if list(scale.dims) != [weight.dims[1]]:
        return Effect.NONE
    kind = weight.data_type
    factor = graph.fresh_name(f"MatMulBnFusion_GemmB_{node.inputs[1]}")
    bias = graph.fresh_name("MatMulBnFusion_GemmBias")
    inputs = [
        node.inputs[0],
        add_absent(graph, factor, kind, list(weight.dims)),
        add_absent(graph, bias, kind, list(scale.dims)),
    ]
    gemm = add_node(graph, NewNode("Gemm", inputs, (), "", "MatMulBnFusion_Gemm"))
    replace_chain(graph, [node], gemm)
    last = graph.producers[norm.inputs[0]]
    fuse_into_next(graph, last, norm)
    return Effect.REMOVED


def _norm_after(graph: Graph, matmul: Node) -> Node | None:
    """The BatchNormalization that is the only reader, after any Reshapes and Transposes."""
    node = matmul
    while has_single_reader(graph, node):
        node = graph.children(node)[0]
        if is_op(node, "BatchNormalization", {1, 6, 7, 9, 14, 15}):
            return node
        is_reshape = is_op(node, "Reshape", {1, 5, 13, 14, 19, 21, 23, 24, 25})
        if not is_reshape and not is_op(node, "Transpose", {1, 13, 21, 23, 24, 25}):
            return None
    return None


# --------------------------------------------------------------------------------------------------
# Sums with 0 and products with 1.
#
# onnxruntime/core/optimizer/noop_elimination.cc.


_NEUTRAL = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}


def drop_noop(graph: Graph, node: Node) -> Effect:
    """Remove x+0, 0+x, x-0, x*1, 1*x and x/1 if the constant's rank is not higher than x's."""
    if not _has_neutral_operand(graph, node) or not can_remove(graph, node):
        return Effect.NONE
    return removed_if(bypass(graph, node))


def _has_neutral_operand(graph: Graph, node: Node) -> bool:
    if len(node.inputs) != _PAIR:
        return False
    first, second = node.inputs
    is_first = is_constant(graph, first)
    if is_first == is_constant(graph, second) or (node.op_type in {"Sub", "Div"} and is_first):
        return False
    neutral, other = (first, second) if is_first else (second, first)
    value, rank = graph.array(neutral), rank_of(graph, other)
    if value is None or rank is None or value.ndim > rank:
        return False
    if value.size != 1 or value.dtype.kind not in "fi":
        return False
    return float(value.ravel()[0]) == _NEUTRAL[node.op_type]


# --------------------------------------------------------------------------------------------------
# A Pad is folded into the convolution or pool after it.
#
# onnxruntime/core/optimizer/pad_fusion.cc.


_READS_PADS = 11
"""Version from which Pad's ``pads`` are an input."""
_VALUE, _AXES = 2, 3


def fuse_pad(graph: Graph, node: Node) -> Effect:
    """Add constant zero padding of the spatial axes to the padding of the only reader."""
    if not is_op(node, "Pad", {1, 2, 11, 13, 18, 19, 21, 23, 24}) or len(node.inputs) > _AXES:
        return Effect.NONE
    if not has_single_reader(graph, node) or text(node, "mode", "constant") != "constant":
        return Effect.NONE
    pads = _constant_pads(graph, node)
    reader = graph.children(node)[0]
    if pads is None or not _fits(reader):
        return Effect.NONE
    half = len(pads) // 2
    # Begins of all axes come before the ends; the first two axes are batch and channels, which no
    # Conv or pool pads.
    if any(pads[:2]) or any(pads[half : half + 2]) or min(pads) < 0:
        return Effect.NONE
    own = integers(reader, "pads") or [0] * (len(pads) - 4)
    extra = [*pads[2:half], *pads[half + 2 :]]
    put(reader, "pads", [a + b for a, b in zip(own, extra, strict=True)])
    if reader.op_type == "AveragePool":
        # The zeros that the Pad added count in the mean, as they did.
        put(reader, "count_include_pad", 1)
    graph.set_input(reader, 0, node.inputs[0])
    graph.remove(node)
    return Effect.REMOVED


def _constant_pads(graph: Graph, node: Node) -> list[int] | None:
    """The padding of each side; ``None`` if it is not constant or does not pad with zero."""
    if node.since_version < _READS_PADS:
        return integers(node, "pads") if number(node, "value") == 0 else None
    if node.input_at(_VALUE):
        value = graph.array(node.inputs[_VALUE])
        if value is None or value.any():
            return None
    return integers_of(graph, node.input_at(1))


def _fits(reader: Node) -> bool:
    """Whether the reader computes the same outputs with more padding of its own.

    An AveragePool then counts padding, so it must have counted its own before, and must not round
    its output size up. Measured on onnxruntime 1.32.0; earlier releases ignored the rounding, and
    fused MaxPool too, which does not pad with zero.
    """
    if len(reader.outputs) != 1 or text(reader, "auto_pad", "NOTSET") != "NOTSET":
        return False
    if is_op(reader, "AveragePool", {1, 7, 10, 11, 19, 22}):
        counts_own = integer(reader, "count_include_pad") or not any(integers(reader, "pads") or ())
        return bool(counts_own) and not integer(reader, "ceil_mode")
    return is_op(reader, "Conv", {1, 11, 22})


# --------------------------------------------------------------------------------------------------
# A Relu or Clip is removed if the QuantizeLinear after it clips at least as much.
#
# onnxruntime/core/optimizer/qdq_transformer/relu_quantizelinear.cc and clip_quantizelinear.cc. The
# range that quantization clips to: qdq_util.h, ``QuantizeDomain``.


_HALF = 0.5
"""Rounding maps numbers up to half a step beyond the last integer to it."""


def drop_relu(graph: Graph, node: Node) -> Effect:
    """Remove a Relu whose quantized result starts at 0."""
    quantize = _quantize_after(graph, node)
    if quantize is None or not is_op(node, "Relu", {6, 13, 14}):
        return Effect.NONE
    zero, quantized = _zero_point(graph, quantize), integer_range(graph, quantize.input_at(2))
    if zero is None or quantized is None or zero.size != 1:
        return Effect.NONE
    starts_at_zero = int(zero.item()) == quantized.start
    return removed_if(starts_at_zero and can_remove(graph, node) and bypass(graph, node))


def drop_clip(graph: Graph, node: Node) -> Effect:
    """Remove a Clip whose bounds lie outside the range of the quantized type."""
    quantize = _quantize_after(graph, node)
    if quantize is None or not is_op(node, "Clip", {1, 6, 11, 12, 13}):
        return Effect.NONE
    bounds, limits = clip_bounds(graph, node), _limits(graph, quantize)
    if bounds is None or limits is None:
        return Effect.NONE
    is_covered = bounds[0] <= limits[0] and limits[1] <= bounds[1]
    return removed_if(is_covered and can_remove(graph, node) and bypass(graph, node))


def _quantize_after(graph: Graph, node: Node) -> Node | None:
    if not has_single_reader(graph, node) or not has_kernel(graph, node):
        return None
    return child_of(graph, node, "QuantizeLinear")


def _zero_point(graph: Graph, quantize: Node) -> Array | None:
    return graph.array(quantize.inputs[2]) if quantize.input_at(2) else None


def _limits(graph: Graph, quantize: Node) -> tuple[float, float] | None:
    """The last number that becomes the lowest integer, and the first that becomes the highest."""
    scale, zero = graph.array(quantize.inputs[1]), _zero_point(graph, quantize)
    quantized = integer_range(graph, quantize.input_at(2))
    if scale is None or zero is None or quantized is None or scale.ndim or zero.ndim:
        return None
    if scale.dtype != np.float32:
        return None
    low, high = quantized.start - int(zero), quantized.stop - 1 - int(zero)
    return _toward(low, _HALF) * float(scale), _toward(high, -_HALF) * float(scale)


def _toward(whole: int, half: float) -> float:
    """Half a step from an integer; a little less if the tie would round away from it.

    ``QuantizeLinear`` rounds ties to even.
    """
    edge = np.float32(whole + half)
    rounds_away = whole % 2 != 0
    return float(np.nextafter(edge, np.float32(whole)) if rounds_away else edge)


# --------------------------------------------------------------------------------------------------
# A Relu before a Clip becomes the lower bound of the Clip.
#
# onnxruntime/core/optimizer/relu_clip_fusion.cc.


def fuse_relu_clip(graph: Graph, node: Node) -> Effect:
    """Remove a Relu that only a Clip with a constant lower bound reads."""
    if not is_op(node, "Relu", {6, 13, 14}) or graph.num_edges(node) != 1:
        return Effect.NONE
    clip = graph.children(node)[0]
    if not is_op(clip, "Clip", {6, 11, 12, 13}) or not can_remove(graph, node):
        return Effect.NONE
    if clip.since_version < _READS_BOUNDS:
        # max(x, 0) before a Clip is a lower bound of 0, unless the bound is higher already.
        if "min" not in clip.attributes or clip.attributes["min"].f < 0:
            put(clip, "min", 0.0)
        return removed_if(bypass(graph, node))
    name = clip.input_at(1)
    bound = graph.array(name) if name else None
    if name and bound is None:
        return Effect.NONE
    if bound is None or float(bound.ravel()[0]) < 0:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(graph.elem_type_of(clip.inputs[0]) or FLOAT)
        zero = graph.fresh_name("FuseReluClip_" + clip.name)
        graph.set_input(clip, 1, add_array(graph, zero, np.zeros((), dtype)))
    return removed_if(bypass(graph, node))


_READS_BOUNDS = 11
"""Version from which Clip's bounds are inputs."""


# --------------------------------------------------------------------------------------------------
# A Slice of the whole input.
#
# onnxruntime/core/optimizer/slice_elimination.cc.


_TO_THE_END = 2**63 - 1
_SLICE_AXES, _STEPS = 3, 4


def drop_slice(graph: Graph, node: Node) -> Effect:
    """Remove a Slice from 0 to the largest integer in steps of 1."""
    if not is_op(node, "Slice", {1, 10, 11, 13}) or not can_remove(graph, node):
        return Effect.NONE
    bounds = _bounds(graph, node)
    if bounds is None or any(start != 0 or end < _TO_THE_END for start, end in bounds):
        return Effect.NONE
    return removed_if(bypass(graph, node))


def _bounds(graph: Graph, node: Node) -> list[tuple[int, int]] | None:
    if node.since_version == 1:
        starts, ends = (list(node.attributes[name].ints) for name in ("starts", "ends"))
        return list(zip(starts, ends, strict=False)) if len(starts) == len(ends) else None
    known = [integers_of(graph, node.input_at(index)) for index in (1, 2)]
    if not known[0] or not known[1] or len(known[0]) != len(known[1]):
        return None
    if node.input_at(_SLICE_AXES):
        axes = integers_of(graph, node.input_at(_SLICE_AXES))
        if axes is None or len(axes) != len(known[0]):
            return None
        # onnxruntime checks the steps only if there are axes.
        if node.input_at(_STEPS):
            steps = integers_of(graph, node.input_at(_STEPS))
            if steps != [1] * len(known[0]):
                return None
    return list(zip(known[0], known[1], strict=True))


# --------------------------------------------------------------------------------------------------
# An Unsqueeze of a constant becomes a constant.
#
# onnxruntime/core/optimizer/unsqueeze_elimination.cc.


def fold_unsqueeze(graph: Graph, node: Node) -> Effect:
    """Replace an Unsqueeze of a constant by the same elements with more dims."""
    tensor = graph.constant(node.inputs[0])
    axes = axes_of(graph, node)
    if tensor is None or axes is None or graph.is_output(node):
        return Effect.NONE
    rank = len(tensor.dims) + len(axes)
    new_axes = {axis % rank for axis in axes}
    # The elements and their order stay: only the dims are written anew.
    dims = iter(tensor.dims)
    reshaped = onnx.TensorProto()
    reshaped.CopyFrom(tensor)
    del reshaped.dims[:]
    reshaped.dims.extend(1 if axis in new_axes else next(dims) for axis in range(rank))
    reshaped.name = graph.fresh_name(f"UnsqueezeElimination_{node.inputs[0]}")
    graph.add_initializer(reshaped)
    return removed_if(replace_by_constant(graph, node, reshaped.name))


# --------------------------------------------------------------------------------------------------
# The tables of rules, and the loop that applies them.
#
# onnxruntime/core/optimizer/graph_transformer_utils.cc (``GenerateRewriteRules``) and
# rule_based_graph_transformer.cc (``RuleBasedGraphTransformer::ApplyImpl``).


BASIC_RULES: Final[Mapping[str, Sequence[Rule]]] = {
    "Identity": (drop_identity,),
    "Slice": (drop_slice,),
    "Unsqueeze": (fold_unsqueeze,),
    "Dropout": (drop_dropout,),
    "Expand": (drop_expand,),
    "Cast": (drop_cast, drop_before_shape),
    "Add": (drop_noop,),
    "Sub": (drop_noop,),
    "Mul": (drop_noop,),
    "Div": (drop_noop, fuse_div_mul),
    "Relu": (fuse_relu_clip,),
    "Gemm": (fuse_gemm_sum, fuse_gemm_transposes),
    "Where": (fuse_not_where,),
    "Conv": (fuse_conv_add, fuse_conv_mul, fuse_batch_norm),
    "ConvTranspose": (fuse_batch_norm,),
    "Pad": (fuse_pad,),
    "MatMul": (fuse_matmul_batch_norm,),
}
EXTENDED_RULES: Final[Mapping[str, Sequence[Rule]]] = {
    "Clip": (drop_clip,),
    "Relu": (drop_relu,),
    "Gemm": (fuse_gemm_transposes,),
}


def apply_basic_rules(graph: Graph) -> bool:
    """Apply the rules of the basic level."""
    return _apply(graph, BASIC_RULES)


def apply_extended_rules(graph: Graph) -> bool:
    """Apply the rules of the extended level."""
    return _apply(graph, EXTENDED_RULES)


def _apply(graph: Graph, rules: Mapping[str, Sequence[Rule]]) -> bool:
    changed = False
    # Unlike in ``walk``, the rules of a node come before its subgraphs: the node may be removed.
    for node in execution_order(graph):
        if graph.nodes.get(node.index) is not node:
            continue
        effect = Effect.NONE
        for rule in rules.get(node.op_type, ()) if not node.domain else ():
            effect = rule(graph, node)
            changed |= effect is not Effect.NONE
            if effect is Effect.REMOVED:
                break
        if effect is not Effect.REMOVED:
            for body in node.bodies.values():
                changed |= _apply(body, rules)
    return changed
