"""Operators of which onnxruntime has a twin that computes with integers.

Source: onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selectors.cc and
qdq_actions.cc.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, number, put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    BYTES,
    INT8,
    INT32,
    MICROSOFT,
    UINT8,
    is_constant,
    is_scalar,
)
from onnxmem.runtimes.onnxruntime.optimizer.qdq.units import (
    SCALE,
    ZERO_POINT,
    Unit,
    elem_type,
    is_closed,
    is_dequantise,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_array, add_node

_BIAS = 2
_MATRIX = 2
_ABSOLUTE, _RELATIVE = 1e-6, 1e-2
"""By how much the scale of a bias may be off; measured on onnxruntime 1.31.1."""


def replace_elementwise(graph: Graph, unit: Unit) -> bool:
    """Operators of one or two inputs, all of one byte type."""
    if not _has_one_byte_type(graph, unit, sum(map(bool, unit.node.inputs))):
        return False
    inputs = [*_operands(graph, unit), *_output(graph, unit)]
    made = _replace(graph, unit, f"QLinear{unit.node.op_type}", inputs, MICROSOFT)
    if unit.node.op_type == "Softmax":
        put(made, "opset", unit.node.since_version)
    return True


def replace_concat(graph: Graph, unit: Unit) -> bool:
    """Concat, for which the result's scale stands first."""
    if not _has_one_byte_type(graph, unit, len(unit.node.inputs)):
        return False
    inputs = [*_output(graph, unit), *_operands(graph, unit)]
    _replace(graph, unit, "QLinearConcat", inputs, MICROSOFT)
    return True


def replace_where(graph: Graph, unit: Unit) -> bool:
    """Where, whose condition stays as it is."""
    if not _has_one_byte_type(graph, unit, 2):
        return False
    inputs = [unit.node.inputs[0], *_operands(graph, unit), *_output(graph, unit)]
    _replace(graph, unit, "QLinearWhere", inputs, MICROSOFT)
    return True


def _has_one_byte_type(graph: Graph, unit: Unit, num_dequantised: int) -> bool:
    kinds = {elem_type(graph, node) for node in (*unit.dequantisers, *unit.quantisers)}
    return len(kinds) == 1 and kinds <= BYTES and is_closed(graph, unit, num_dequantised)


def replace_conv(graph: Graph, unit: Unit) -> bool:
    """Conv: on x86 activations are uint8, and weights of either sign; on ARM all may be int8."""
    if not is_closed(graph, unit):
        return False
    data, weight, *bias = unit.dequantisers
    kinds = {elem_type(graph, data), elem_type(graph, unit.quantisers[0])}
    if kinds != {UINT8} and not (graph.cpu.is_arm and kinds == {INT8}):
        return False
    if not _fits_data(graph, data, weight):
        return False
    if bias and (elem_type(graph, bias[0]) != INT32 or not _bias_fits(graph, unit)):
        return False
    inputs = [*_operands(graph, unit, 2), *_output(graph, unit)]
    inputs += [node.inputs[0] for node in bias]
    _replace(graph, unit, "QLinearConv", inputs, "")
    return True


def _fits_data(graph: Graph, data: Node, weight: Node) -> bool:
    """Whether a kernel takes a product's sides: unsigned data on x86, on ARM also both in int8."""
    left, right = elem_type(graph, data), elem_type(graph, weight)
    if graph.cpu.is_arm and left == INT8:
        return right == INT8
    return left == UINT8 and right in BYTES


def _bias_fits(graph: Graph, unit: Unit) -> bool:
    """Whether a bias is scaled by a constant as the products are, around 0.

    Measured on onnxruntime 1.31.1. Scales whose elements are absent are taken to fit.
    """
    if not all(is_constant(graph, node.inputs[SCALE]) for node in unit.dequantisers):
        return False
    zero = graph.array(unit.dequantisers[_BIAS].input_at(ZERO_POINT))
    if zero is not None and zero.astype(np.int64).any():
        return False
    scales = [graph.array(node.inputs[SCALE]) for node in unit.dequantisers]
    data, weight, bias = (
        None if scale is None else scale.astype(np.float64).ravel() for scale in scales
    )
    if data is None or weight is None or bias is None:
        return True
    wanted = data * weight
    return bool(np.all(np.abs(bias - wanted) <= _ABSOLUTE + _RELATIVE * wanted))


def replace_matmul(graph: Graph, unit: Unit) -> bool:
    """MatMul of two dequantised sides: QLinearMatMul, or one with a float result.

    Without a QuantizeLinear behind it the DequantizeLinear nodes may have other readers. On x86
    the left side is unsigned.
    """
    kinds = [elem_type(graph, node) for node in unit.dequantisers]
    if len(kinds) != len(unit.node.inputs) or not _fits_data(graph, *unit.dequantisers):
        return False
    if not unit.quantisers:
        a, b = (_triple(graph, node) for node in unit.dequantisers)
        inputs = [name for pair in zip(a, b, strict=True) for name in pair]
        _replace(graph, unit, "MatMulIntegerToFloat", inputs, MICROSOFT)
        return True
    if not is_closed(graph, unit) or elem_type(graph, unit.quantisers[0]) != kinds[0]:
        return False
    if not _scales_fit_matmul(graph, unit):
        return False
    inputs = [*_operands(graph, unit), *_output(graph, unit)]
    _replace(graph, unit, "QLinearMatMul", inputs, "")
    return True


def _scales_fit_matmul(graph: Graph, unit: Unit) -> bool:
    """Whether QLinearMatMul takes the scales: one for each tensor, or for each column of a matrix.

    Measured on onnxruntime 1.32.0; releases before replaced the node whatever the scales were.
    """
    data, weight = unit.dequantisers
    if not all(is_scalar(graph, node.inputs[SCALE]) for node in (data, *unit.quantisers)):
        return False
    if is_scalar(graph, weight.inputs[SCALE]):
        return True
    dims, scales = (graph.dims_of(name) for name in weight.inputs[:ZERO_POINT])
    if dims is None or len(dims) != _MATRIX or integer(weight, "axis", 1) not in {1, -1}:
        return False
    return isinstance(dims[1], int) and scales == (dims[1],)


def replace_gemm(graph: Graph, unit: Unit) -> bool:
    """Gemm, with a result of floats or of integers."""
    if not is_closed(graph, unit, may_be_float=True):
        return False
    data, weight, *bias = unit.dequantisers
    left, right = elem_type(graph, data), elem_type(graph, weight)
    if not {left, right} <= BYTES or (left == INT8 and right != INT8):
        return False
    if any(elem_type(graph, end) != left for end in unit.quantisers):
        return False
    if bias and (elem_type(graph, bias[0]) != INT32 or not _is_plain_sum(unit.node)):
        return False
    if not _scales_fit_gemm(graph, unit):
        return False
    inputs = [*_operands(graph, unit, 2), bias[0].inputs[0] if bias else ""]
    inputs += _output(graph, unit) if unit.quantisers else []
    made = _replace(graph, unit, "QGemm", inputs, MICROSOFT)
    made.attributes.pop("beta", None)
    return True


def _is_plain_sum(gemm: Node) -> bool:
    return number(gemm, "alpha", 1.0) == 1.0 == number(gemm, "beta", 1.0)


def _scales_fit_gemm(graph: Graph, unit: Unit) -> bool:
    """Whether a weight has one scale, or one for each column; measured on onnxruntime 1.31.1."""
    data, weight = unit.dequantisers[:2]
    if not all(node.input_at(ZERO_POINT) for node in (data, weight)):
        return False
    if not all(is_scalar(graph, node.inputs[SCALE]) for node in (data, *unit.quantisers)):
        return False
    if is_scalar(graph, weight.inputs[SCALE]):
        return True
    dims = graph.dims_of(weight.inputs[0])
    columns = 1 - integer(unit.node, "transB")
    return dims is not None and graph.dims_of(weight.inputs[SCALE]) == (dims[columns],)


def _operands(graph: Graph, unit: Unit, count: int | None = None) -> Iterator[str]:
    """Quantised inputs, each with its scale and zero point."""
    for node in unit.dequantisers[:count]:
        yield from _triple(graph, node)


def _output(graph: Graph, unit: Unit) -> list[str]:
    """Scale and zero point of the result."""
    return _triple(graph, unit.quantisers[0])[SCALE:]


def _triple(graph: Graph, node: Node) -> list[str]:
    """What a node reads: value, scale, and zero point, or the one that it means.

    Source: qdq_actions.cc, ``SetOptionalZeroPoint``: one constant of each type for all nodes.
    """
    zero = node.input_at(ZERO_POINT)
    if not zero:
        is_signed = is_dequantise(node) and elem_type(graph, node) == INT8
        dtype = np.dtype(np.int8 if is_signed else np.uint8)
        zero = f"init_optional_zero_point_{dtype}"
        if not graph.has_value(zero):
            add_array(graph, zero, np.zeros((), dtype))
    return [*node.inputs[:ZERO_POINT], zero]


def _replace(graph: Graph, unit: Unit, op_type: str, inputs: Sequence[str], domain: str) -> Node:
    node = unit.node
    end = unit.quantisers[0] if unit.quantisers else node
    outputs = list(end.outputs)
    made = add_node(
        graph, NewNode(op_type, _without_end(inputs), (), domain, node.name, dict(node.attributes))
    )
    for gone in (node, unit.cut, *unit.quantisers):
        if gone is not None:
            graph.remove(gone)
    graph.set_outputs(made, outputs)
    for maker in dict.fromkeys(unit.dequantisers):
        if not graph.num_edges(maker) and not graph.is_output(maker):
            graph.remove(maker)
    return made


def _without_end(inputs: Sequence[str]) -> list[str]:
    """Inputs up to the last that there is."""
    kept = list(inputs)
    while kept and not kept[-1]:
        kept.pop()
    return kept
