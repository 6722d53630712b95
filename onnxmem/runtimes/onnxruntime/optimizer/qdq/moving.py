"""Operators that only move or pick elements work on integers as they do on floats.

Source: onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selectors.cc
(``DropQDQNodeGroupSelector``, ``SplitNodeGroupSelector``, ``DropDQNodeGroupSelector``) and
qdq_actions.cc (``SplitReplacer``).
"""

from onnxmem.runtimes.onnxruntime.optimizer.attributes import text
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    INT4,
    INT16,
    UINT4,
    UINT16,
    is_constant,
    is_scalar,
)
from onnxmem.runtimes.onnxruntime.optimizer.qdq.units import (
    SCALE,
    ZERO_POINT,
    Unit,
    elem_type,
    has_positive_scale,
    is_closed,
    same_quantisation,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node

_WIDE = frozenset({INT16, UINT16})
_NARROW = frozenset({INT4, UINT4})


def drop_pair(graph: Graph, unit: Unit) -> bool:
    """Let an operator read and write integers of equal scale and zero point."""
    if unit.cut is not None or not is_closed(graph, unit, 1):
        return False
    first, end = unit.dequantisers[0], unit.quantisers[0]
    if not same_quantisation(graph, end, first):
        return False
    node = unit.node
    outputs = list(end.outputs)
    graph.remove(end)
    graph.set_input(node, node.inputs.index(first.outputs[0]), first.inputs[0])
    graph.set_outputs(node, outputs)
    graph.remove(first)
    return True


def drop_byte_pair(graph: Graph, unit: Unit) -> bool:
    """The same for operators whose kernels have no integers of 16 bits."""
    return not _reads(graph, unit) & _WIDE and drop_pair(graph, unit)


def drop_resized_pair(graph: Graph, unit: Unit) -> bool:
    """The same for Resize, as long as it picks elements and makes none."""
    return text(unit.node, "mode") == "nearest" and drop_byte_pair(graph, unit)


def drop_ordered_pair(graph: Graph, unit: Unit) -> bool:
    """The same where elements are compared: a negative scale would turn their order around."""
    is_ordered = bool(unit.quantisers) and has_positive_scale(graph, unit.quantisers[0])
    return is_ordered and drop_byte_pair(graph, unit)


def drop_split(graph: Graph, unit: Unit) -> bool:
    """Split integers, where all parts keep the scale; another node takes the Split's place."""
    if unit.cut is not None or not is_closed(graph, unit, 1):
        return False
    first = unit.dequantisers[0]
    if not all(same_quantisation(graph, end, first) for end in unit.quantisers):
        return False
    node = unit.node
    ends = {end.inputs[0]: end for end in unit.quantisers}
    outputs = [ends[name].outputs[0] if name else "" for name in node.outputs]
    inputs = [first.inputs[0], *node.inputs[1:]]
    made = add_node(graph, NewNode("Split", inputs, (), "", node.name, dict(node.attributes)))
    for gone in (node, *unit.quantisers, first):
        graph.remove(gone)
    graph.set_outputs(made, outputs)
    return True


def drop_dequantiser(graph: Graph, unit: Unit) -> bool:
    """Let an operator read integers whose result is of another kind, a place."""
    if unit.cut is not None or len(unit.dequantisers) != 1:
        return False
    first = unit.dequantisers[0]
    parameters = [first.input_at(place) for place in (SCALE, ZERO_POINT)]
    if not all(is_scalar(graph, name) and is_constant(graph, name) for name in parameters):
        return False
    is_shared = graph.is_output(first) or graph.num_edges(first) != 1
    if is_shared or _reads(graph, unit) & (_WIDE | _NARROW):
        return False
    graph.set_input(unit.node, 0, first.inputs[0])
    graph.remove(first)
    return True


def _reads(graph: Graph, unit: Unit) -> set[int]:
    """Integer types that come in."""
    return {elem_type(graph, node) for node in unit.dequantisers}
