"""Operators between DequantizeLinear and QuantizeLinear become integer operators.

Source: onnxruntime/core/optimizer/qdq_transformer/selectors_actions/
qdq_selector_action_transformer.cc: the selectors, in the order of their registration, and what they
put in the place of a unit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from onnxmem.runtimes.onnxruntime.optimiser.attributes import text
from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimiser.matching import (
    BYTES,
    FLOAT,
    INT8,
    INT32,
    MICROSOFT,
    UINT8,
    has_single_reader,
)
from onnxmem.runtimes.onnxruntime.optimiser.order import walk
from onnxmem.runtimes.onnxruntime.optimiser.qdq.matmul_nbits import fuse_blocked_matmul
from onnxmem.runtimes.onnxruntime.optimiser.qdq.units import (
    SCALE,
    Unit,
    elem_type,
    is_per_tensor,
    same_quantisation,
    triple,
    unit_of,
)
from onnxmem.runtimes.onnxruntime.optimiser.rewriting import NewNode, add_node

_MOVING = frozenset(
    "DepthToSpace Expand Flatten Gather MaxPool Reshape Resize Slice Split Squeeze Tile Transpose "
    "Unsqueeze".split()
)
"""They work on integers as they do on floats."""
_UNARY = frozenset({"AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax"})
_BINARY = frozenset({"Add", "Mul"})
_BIAS = 2
_ABSOLUTE, _RELATIVE = 1e-6, 1e-2
"""By how much the scale of a bias may be off."""


def select_units(graph: Graph) -> bool:
    """Replace every unit that has an integer operator."""
    changed: list[bool] = []
    for node in walk(graph, select_units, changed):
        rule = None if node.domain else _RULES.get(node.op_type)
        if rule is not None:
            changed.append(fuse_blocked_matmul(graph, node))
            unit = unit_of(graph, node) if node.index in graph.nodes else None
            changed.append(unit is not None and rule(graph, unit))
    return any(changed)


_UnitRule = Callable[[Graph, Unit], bool]


def _drop(graph: Graph, unit: Unit) -> bool:
    """Let an operator that only moves elements read and write integers."""
    first = unit.dequantisers[0]
    if first is None or not unit.quantisers or any(unit.dequantisers[1:]):
        return False
    if text(unit.node, "mode", "nearest") != "nearest":
        return False
    if not all(same_quantisation(graph, first, quantiser) for quantiser in unit.quantisers):
        return False
    node = unit.node
    outputs = list(node.outputs)
    for quantiser in unit.quantisers:
        place = outputs.index(quantiser.inputs[0])
        outputs[place] = quantiser.outputs[0]
        graph.remove(quantiser)
    graph.set_input(node, 0, first.inputs[0])
    graph.set_outputs(node, outputs)
    _drop_unread(graph, [first])
    return True


def _drop_unread(graph: Graph, nodes: Sequence[Node | None]) -> None:
    for node in dict.fromkeys(nodes):
        if node is not None and has_single_reader(graph, node, 0):
            graph.remove(node)


def _replace(graph: Graph, unit: Unit, op_type: str, inputs: Sequence[str], domain: str) -> bool:
    node = unit.node
    end = unit.quantisers[0] if unit.quantisers else node
    outputs = list(end.outputs)
    made = add_node(
        graph, NewNode(op_type, list(inputs), (), domain, node.name, dict(node.attributes))
    )
    graph.remove(node)
    for quantiser in unit.quantisers:
        graph.remove(quantiser)
    graph.set_outputs(made, outputs)
    _drop_unread(graph, unit.dequantisers)
    return True


def _output(unit: Unit) -> list[str]:
    """Scale and zero point of the result."""
    return [unit.quantisers[0].input_at(place) for place in (1, 2)]


def _has_byte_types(graph: Graph, unit: Unit) -> bool:
    kinds = {elem_type(graph, node) for node in (*unit.dequantisers, *unit.quantisers)}
    return len(kinds) == 1 and kinds <= BYTES


def _unary(graph: Graph, unit: Unit) -> bool:
    if not unit.quantisers or not unit.all_dequantised or not _has_byte_types(graph, unit):
        return False
    inputs = [*unit.operand(0), *_output(unit)]
    return _replace(graph, unit, f"QLinear{unit.node.op_type}", inputs, MICROSOFT)


def _binary(graph: Graph, unit: Unit) -> bool:
    if not unit.quantisers or not unit.all_dequantised or not _has_byte_types(graph, unit):
        return False
    inputs = [*unit.operand(0), *unit.operand(1), *_output(unit)]
    return _replace(graph, unit, f"QLinear{unit.node.op_type}", inputs, MICROSOFT)


def _concat(graph: Graph, unit: Unit) -> bool:
    if not unit.quantisers or not unit.all_dequantised or not _has_byte_types(graph, unit):
        return False
    parts = [name for place in range(len(unit.dequantisers)) for name in unit.operand(place)]
    return _replace(graph, unit, "QLinearConcat", [*_output(unit), *parts], MICROSOFT)


def _where(graph: Graph, unit: Unit) -> bool:
    branches = unit.dequantisers[1:]
    if not unit.quantisers or unit.dequantisers[0] is not None or None in branches:
        return False
    kinds = {elem_type(graph, node) for node in (*branches, *unit.quantisers)}
    if len(kinds) != 1 or not kinds <= BYTES:
        return False
    inputs = [unit.node.inputs[0], *unit.operand(1), *unit.operand(2), *_output(unit)]
    return _replace(graph, unit, "QLinearWhere", inputs, MICROSOFT)


def _conv(graph: Graph, unit: Unit) -> bool:
    """On x86 activations are uint8, and weights of either sign."""
    if not unit.quantisers or not unit.all_dequantised:
        return False
    data, weight, *bias = unit.dequantisers
    if elem_type(graph, data) != UINT8 or elem_type(graph, unit.quantisers[0]) != UINT8:
        return False
    if elem_type(graph, weight) not in BYTES:
        return False
    if bias and (elem_type(graph, bias[0]) != INT32 or not _bias_fits(graph, unit)):
        return False
    inputs = [*unit.operand(0), *unit.operand(1), *_output(unit)]
    inputs += [triple(node)[0] for node in bias if node is not None]
    return _replace(graph, unit, "QLinearConv", inputs, "")


def _bias_fits(graph: Graph, unit: Unit) -> bool:
    """Whether a bias is scaled as the products are; measured on onnxruntime 1.31.1.

    Scales whose elements are absent are taken to fit.
    """
    scales = [graph.array(node.inputs[SCALE]) for node in unit.dequantisers if node is not None]
    data, weight, bias = (None if scale is None else np.ravel(scale) for scale in scales)
    if data is None or weight is None or bias is None:
        return True
    return bool(np.all(np.abs(bias - data * weight) <= _ABSOLUTE + _RELATIVE * data * weight))  # type: ignore[operator]


def _matmul(graph: Graph, unit: Unit) -> bool:
    left, right = (elem_type(graph, node) for node in unit.dequantisers[:2])
    if not unit.all_dequantised or left not in BYTES or right not in BYTES:
        return False
    if left == INT8 and right != INT8:
        return False
    if unit.quantisers:
        if elem_type(graph, unit.quantisers[0]) != left:
            return False
        inputs = [*unit.operand(0), *unit.operand(1), *_output(unit)]
        return _replace(graph, unit, "QLinearMatMul", inputs, "")
    a, b = unit.operand(0), unit.operand(1)
    if graph.elem_type_of(unit.node.outputs[0]) != FLOAT:
        return False
    inputs = [a[0], b[0], a[1], b[1], a[2], b[2]]
    return _replace(graph, unit, "MatMulIntegerToFloat", inputs, MICROSOFT)


def _gemm(graph: Graph, unit: Unit) -> bool:
    data, weight, *bias = unit.dequantisers
    kinds = elem_type(graph, data), elem_type(graph, weight)
    if data is None or weight is None or not set(kinds) <= BYTES or None in bias:
        return False
    if unit.quantisers and elem_type(graph, unit.quantisers[0]) != kinds[0]:
        return False
    if kinds[0] == INT8 and kinds[1] != INT8:
        return False
    if bias and elem_type(graph, bias[0]) != INT32:
        return False
    if bias and bias[0] is not None and not is_per_tensor(graph, data):
        return False
    inputs = [*unit.operand(0), *unit.operand(1), triple(bias[0])[0] if bias and bias[0] else ""]
    inputs += _output(unit) if unit.quantisers else []
    while inputs and not inputs[-1]:
        inputs.pop()
    return _replace(graph, unit, "QGemm", inputs, MICROSOFT)


_RULES: Final[Mapping[str, _UnitRule]] = {
    **dict.fromkeys(_MOVING, _drop),
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_BINARY, _binary),
    "Concat": _concat,
    "Where": _where,
    "Conv": _conv,
    "MatMul": _matmul,
    "Gemm": _gemm,
}
