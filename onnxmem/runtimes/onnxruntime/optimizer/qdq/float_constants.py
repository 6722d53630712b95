"""Float weights and biases between quantised inputs and outputs are quantised too.

Source: onnxruntime/core/optimizer/qdq_transformer/weight_bias_quantization.cc. The nodes that it
adds are constant but for the last, and go when constants are folded.
"""

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    FLOAT,
    INT8,
    INT32,
    is_constant,
    is_scalar,
    rank_of,
)
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.qdq.units import SCALE, is_dequantise
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_array, add_node
from onnxmem.runtimes.onnxruntime.optimizer.value_types import TensorType

_OPERATORS = frozenset({"Conv", "ConvTranspose", "Gemm"})
_WEIGHT, _BIAS = 1, 2


def quantise_constants(graph: Graph) -> bool:
    """Quantise the float constants of Conv, ConvTranspose and Gemm with a dequantised input."""
    changed: list[bool] = []
    for node in walk(graph, quantise_constants, changed):
        if node.op_type in _OPERATORS:
            changed.append(_quantise(graph, node))
    return any(changed)


def _quantise(graph: Graph, node: Node) -> bool:
    data, weight = graph.parent(node, 0), graph.parent(node, _WEIGHT)
    if data is None or not is_dequantise(data) or not is_scalar(graph, data.inputs[SCALE]):
        return False
    dequantised = weight if is_dequantise(weight) else None
    if dequantised is None and not _is_float_constant(graph, node.inputs[_WEIGHT]):
        return False
    bias = node.input_at(_BIAS)
    if bias and (not is_constant(graph, bias) or len(graph.dims_of(bias) or ()) != 1):
        return False
    if dequantised is not None and not (bias and _fits(graph, node, dequantised)):
        return False
    if not _leads_to_quantise(graph, node):
        return False
    scale = dequantised.inputs[SCALE] if dequantised is not None else _add_weight(graph, node)
    if bias:
        _add_bias(graph, node, data.inputs[SCALE], scale)
    return True


def _is_float_constant(graph: Graph, name: str) -> bool:
    """Whether a value is a constant of this very graph, not of one around it."""
    tensor = graph.constant(name) if name in graph.initializers else None
    return tensor is not None and tensor.data_type == FLOAT


def _leads_to_quantise(graph: Graph, node: Node) -> bool:
    """Whether one node alone reads the output, at the end of Relus and Clips a QuantizeLinear."""
    while len(readers := graph.readers(node.outputs[0])) == 1:
        node = readers[0]
        if node.op_type not in {"Relu", "Clip"}:
            return node.op_type == "QuantizeLinear"
    return False


def _fits(graph: Graph, node: Node, weight: Node) -> bool:
    """Whether the weight has one scale, or one for each element of the bias."""
    scale = weight.inputs[SCALE]
    if is_scalar(graph, scale):
        return True
    if graph.dims_of(scale) != graph.dims_of(node.inputs[_BIAS]) or integer(weight, "block_size"):
        return False
    axis, rank = integer(weight, "axis", 1), rank_of(graph, weight.inputs[0])
    if axis < 0 and rank is None:
        return False
    return axis % (rank or axis + 1) == _axis_of_outputs(node)


def _axis_of_outputs(node: Node) -> int:
    """The axis of a weight along which outputs or output channels lie."""
    if node.op_type == "Gemm":
        return 1 - integer(node, "transB")
    return int(node.op_type == "ConvTranspose")


def _add_weight(graph: Graph, node: Node) -> str:
    """Quantise a weight to int8 with one scale: the scale's name."""
    source = node.inputs[_WEIGHT]
    value = graph.array(source)
    largest = 1.0 if value is None or not value.size else float(np.abs(value).max())
    step = np.array(largest / np.iinfo(np.int8).max, np.float32)
    scale = add_array(graph, graph.fresh_name(f"{node.name}_weight_scale"), step)
    zero = add_array(graph, graph.fresh_name(f"{node.name}_weight_zp"), np.zeros((), np.int8))
    middle = graph.fresh_name(f"{node.name}_weight_q")
    name = graph.fresh_name(f"{node.name}_weight_q")
    add_node(graph, NewNode("QuantizeLinear", [source, scale, zero], [middle], node.domain, name))
    target = graph.fresh_name(f"{node.name}_weight_dq")
    name = graph.fresh_name(f"{node.name}_weight_dq")
    inputs = [middle, scale, zero]
    add_node(graph, NewNode("DequantizeLinear", inputs, [target], node.domain, name))
    dims = graph.dims_of(source)
    graph.types[middle], graph.types[target] = TensorType(INT8, dims), TensorType(FLOAT, dims)
    graph.set_input(node, _WEIGHT, target)
    return scale


def _add_bias(graph: Graph, node: Node, data_scale: str, weight_scale: str) -> None:
    """Quantise a bias to int32 with the product of the scales."""
    scale = _add(graph, node, "Mul", [data_scale, weight_scale], ("_bias_scale", "_scale"))
    quotient = _add(graph, node, "Div", [node.inputs[_BIAS], scale], ("_bias_div", "_bias_div"))
    suffix = "_bias_div_round"
    rounded = _add(graph, node, "Round", [quotient], (suffix, suffix))
    whole = _add(graph, node, "Cast", [rounded], ("_bias_int32", "_bias_int32"))
    put(graph.makers[whole], "to", INT32)
    target = _add(graph, node, "DequantizeLinear", [whole, scale], ("_bias_dq", "_bias_dq"))
    if not is_scalar(graph, weight_scale):
        put(graph.makers[target], "axis", 0)
    graph.set_input(node, _BIAS, target)


def _add(
    graph: Graph, node: Node, op_type: str, inputs: list[str], suffixes: tuple[str, str]
) -> str:
    """Add a node; suffixes of its output's and of its own name."""
    target = graph.fresh_name(node.name + suffixes[0])
    name = graph.fresh_node_name(node.name + suffixes[1])
    add_node(graph, NewNode(op_type, inputs, [target], node.domain, name))
    return target
