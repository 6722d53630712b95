"""A number that Where takes beside a dequantised branch is written as a quantised one.

Source: onnxruntime/core/optimizer/qdq_transformer/where_dummy_dq.cc.
"""

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import FLOAT
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.qdq.units import (
    SCALE,
    ZERO_POINT,
    elem_type,
    is_dequantise,
    is_quantise,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    NewNode,
    add_absent,
    add_array,
    add_node,
)
from onnxmem.runtimes.onnxruntime.optimizer.value_types import TensorType

_BRANCHES = (1, 2)


def dequantise_numbers(graph: Graph) -> bool:
    """Put a DequantizeLinear before such a number; true if there was one."""
    changed: list[bool] = []
    for node in walk(graph, dequantise_numbers, changed):
        if node.op_type == "Where":
            changed.extend(_dequantise(graph, node, place) for place in _BRANCHES)
    return any(changed)


def _dequantise(graph: Graph, node: Node, place: int) -> bool:
    number = graph.constant(node.inputs[place])
    other = graph.parent(node, sum(_BRANCHES) - place)
    if number is None or number.dims or number.data_type != FLOAT:
        return False
    readers = graph.readers(node.outputs[0])
    if other is None or not is_dequantise(other) or len(readers) != 1:
        return False
    if not is_quantise(readers[0]) or not _fits(graph, other, readers[0]):
        return False
    _add(graph, node, place, other)
    return True


def _fits(graph: Graph, other: Node, end: Node) -> bool:
    """Whether the other branch has constant parameters, and the type of the result."""
    names = [other.input_at(at) for at in (SCALE, ZERO_POINT)]
    if any(graph.constant(name) is None for name in names):
        return False
    is_float = graph.elem_type_of(names[0]) == FLOAT
    return is_float and elem_type(graph, other) == elem_type(graph, end)


def _add(graph: Graph, node: Node, place: int, other: Node) -> None:
    kind = elem_type(graph, other)
    base = f"{node.name}_dummy"
    value = add_absent(graph, graph.fresh_name(f"{base}_xq"), kind, ())
    scale = add_array(graph, graph.fresh_name(f"{base}_scale"), np.ones((), np.float32))
    zero = add_absent(graph, graph.fresh_name(f"{base}_zp"), kind, ())
    target, name = (graph.fresh_name(f"{base}_dq") for _ in range(2))
    new = NewNode("DequantizeLinear", [value, scale, zero], [target], other.domain, name)
    add_node(graph, new)
    graph.types[target] = TensorType(FLOAT, ())
    graph.set_input(node, place, target)
