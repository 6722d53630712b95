"""Pairs of QuantizeLinear and DequantizeLinear of int8 become pairs of uint8.

Source: onnxruntime/core/optimizer/qdq_transformer/qdq_s8_to_u8.cc. It runs on processors whose
8-bit products saturate less with an unsigned side: all of x86 (``QDQIsInt8Allowed``).
"""

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import UINT8, has_single_reader
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.qdq.units import (
    ZERO_POINT,
    is_dequantise,
    is_quantise,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import add_array
from onnxmem.runtimes.onnxruntime.optimizer.value_types import TensorType

_OFFSET = 128
"""From int8 to uint8."""


def make_unsigned(graph: Graph) -> bool:
    """Convert each pair with equal constant zero points; ARM multiplies int8 as it is."""
    if graph.cpu.is_arm:
        return False
    changed: list[bool] = []
    for node in walk(graph, make_unsigned, changed):
        if is_quantise(node) and has_single_reader(graph, node):
            changed.append(_convert(graph, node, graph.children(node)[0]))
    return any(changed)


def _convert(graph: Graph, quantise: Node, dequantise: Node) -> bool:
    if not is_dequantise(dequantise) or not quantise.input_at(ZERO_POINT):
        return False
    zero = graph.array(quantise.inputs[ZERO_POINT])
    if zero is None or zero.size != 1 or zero.dtype != np.int8:
        return False
    other = 0
    if dequantise.input_at(ZERO_POINT):
        stated = graph.array(dequantise.inputs[ZERO_POINT])
        if stated is None or stated.size != 1 or stated.dtype != np.int8:
            return False
        other = int(stated.ravel()[0])
    value = int(zero.ravel()[0])
    if value != other:
        return False
    name = graph.fresh_name("qdq_s8_to_u8_zp_conversion")
    moved = add_array(graph, name, np.array(value + _OFFSET, np.uint8))
    middle = graph.fresh_name("qdq_s8_to_u8_quant")
    dims = graph.dims_of(quantise.outputs[0])
    graph.set_outputs(quantise, [middle])
    graph.types[middle] = TensorType(UINT8, dims)
    graph.set_input(dequantise, 0, middle)
    graph.set_input(quantise, ZERO_POINT, moved)
    graph.set_input(dequantise, ZERO_POINT, moved)
    return True
