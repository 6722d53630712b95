"""Units of a QDQ network: an operator, what dequantises its inputs and quantises its output.

Source: onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selectors.cc and
shared_utils.cc (``CheckQDQNodes``, ``IsQDQPairSupported``).
"""

from dataclasses import dataclass

import numpy as np

from onnxmem.runtimes.onnxruntime.optimiser.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimiser.matching import is_scalar

_DOMAINS = ("", "com.microsoft")
SCALE, ZERO_POINT = 1, 2


def is_dequantise(node: Node | None) -> bool:
    """Whether a node is DequantizeLinear."""
    return node is not None and node.op_type == "DequantizeLinear" and node.domain in _DOMAINS


def is_quantise(node: Node | None) -> bool:
    """Whether a node is QuantizeLinear."""
    return node is not None and node.op_type == "QuantizeLinear" and node.domain in _DOMAINS


@dataclass(frozen=True, slots=True)
class Unit:
    """An operator with the nodes around it."""

    node: Node
    dequantisers: tuple[Node | None, ...]
    """One for each input; ``None`` where an input is not dequantised."""
    quantisers: tuple[Node, ...]
    """One for each reader of the outputs; none where the output stays float."""

    @property
    def all_dequantised(self) -> bool:
        """Whether every input comes out of a DequantizeLinear."""
        return None not in self.dequantisers

    def operand(self, place: int) -> list[str]:
        """A quantised input with its scale and zero point."""
        node = self.dequantisers[place]
        return ["", "", ""] if node is None else triple(node)


def triple(node: Node) -> list[str]:
    """What a DequantizeLinear reads: value, scale and zero point, ``""`` where it has none."""
    return [node.input_at(place) for place in range(ZERO_POINT + 1)]


def unit_of(graph: Graph, node: Node) -> Unit | None:
    """The unit around a node; ``None`` where some reader of its output is no QuantizeLinear."""
    makers = [graph.makers.get(name) for name in node.inputs if name]
    dequantisers = tuple(maker if is_dequantise(maker) else None for maker in makers)
    readers = graph.children(node)
    quantisers = tuple(reader for reader in readers if is_quantise(reader))
    num_outputs = sum(bool(name) for name in node.outputs)
    if not any(dequantisers) or graph.is_output(node):
        return None
    is_closed = len(quantisers) == len(readers) == num_outputs
    if not is_closed and quantisers:
        return None
    return Unit(node, dequantisers, quantisers if is_closed else ())


def same_quantisation(graph: Graph, one: Node, other: Node) -> bool:
    """Whether two nodes have equal constant scales and zero points (``IsQDQPairSupported``)."""
    pairs = [(one.input_at(place), other.input_at(place)) for place in (SCALE, ZERO_POINT)]
    for name, second in pairs:
        if bool(name) != bool(second):
            return False
        if not name:
            continue
        values = [graph.array(name), graph.array(second)]
        if any(value is None for value in values) or not is_scalar(graph, name):
            return False
        if graph.elem_type_of(name) != graph.elem_type_of(second):
            return False
        if not np.array_equal(np.ravel(values[0]), np.ravel(values[1])):  # type: ignore[arg-type]
            return False
    return True


def elem_type(graph: Graph, node: Node | None) -> int:
    """The quantised type that a DequantizeLinear reads or a QuantizeLinear writes."""
    if node is None:
        return 0
    return graph.elem_type_of(node.inputs[0] if is_dequantise(node) else node.outputs[0])


def is_per_tensor(graph: Graph, node: Node) -> bool:
    """Whether one scale holds for all elements."""
    return is_scalar(graph, node.inputs[SCALE])
