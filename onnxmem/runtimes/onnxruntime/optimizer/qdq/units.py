"""Units of a QDQ network: an operator, what dequantises its inputs and quantises its output.

Source: onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selectors.cc
(``NodeGroupSelector``), shared/shared_utils.cc and qdq_util.cc.
"""

from dataclasses import dataclass

import numpy as np

from onnxmem.runtimes.onnxruntime.cpu import Cpu
from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import UINT8, clip_bounds, is_scalar

_DOMAINS = ("", "com.microsoft")
SCALE, ZERO_POINT = 1, 2
_CUTTING = frozenset({"Relu", "Clip"})
_INT32 = np.iinfo(np.int32)
RANGES = {2: (0, 255), 3: (-128, 127), 4: (0, 65535), 5: (-32768, 32767)}
"""Least and largest number of the element types of 8 and 16 bits."""


def is_dequantise(node: Node | None) -> bool:
    """Whether a node is DequantizeLinear."""
    return _is_scaled(node, "DequantizeLinear")


def is_quantise(node: Node | None) -> bool:
    """Whether a node is QuantizeLinear."""
    return _is_scaled(node, "QuantizeLinear")


def _is_scaled(node: Node | None, op_type: str) -> bool:
    return node is not None and node.op_type == op_type and node.domain in _DOMAINS


@dataclass(frozen=True, slots=True)
class Unit:
    """An operator with the nodes around it."""

    node: Node
    dequantisers: tuple[Node, ...]
    """Those that write its inputs, by place; inputs without one are left out."""
    quantisers: tuple[Node, ...]
    """Those that read its outputs, or what ``cut`` makes of its output."""
    cut: Node | None
    """A Relu or Clip in between, which cuts off no more than the quantisation behind it."""


def unit_of(graph: Graph, node: Node) -> Unit | None:
    """The unit around a node; ``None`` where a Relu or Clip behind it has an effect of its own."""
    makers = [graph.makers.get(name) for name in node.inputs if name]
    dequantisers = tuple(maker for maker in makers if maker is not None and is_dequantise(maker))
    cut = _cut_behind(graph, node)
    readers = graph.children(node if cut is None else cut)
    quantisers = tuple(reader for reader in readers if is_quantise(reader))
    if cut is not None and not (quantisers and _cuts_nothing(graph, cut, quantisers[0])):
        return None
    return Unit(node, dequantisers, quantisers, cut)


def _cut_behind(graph: Graph, node: Node) -> Node | None:
    """A Relu or Clip that alone reads a node, and is itself read once."""
    readers = graph.children(node)
    if len(readers) != 1 or readers[0].op_type not in _CUTTING:
        return None
    is_inner = graph.num_edges(readers[0]) == 1 and not graph.is_output(readers[0])
    return readers[0] if is_inner else None


def is_closed(
    graph: Graph, unit: Unit, num_dequantised: int | None = None, *, may_be_float: bool = False
) -> bool:
    """Whether the nodes of a unit serve it alone (``CheckQDQNodes``).

    That each DequantizeLinear has one reader is seen to before (``unique_dequantise``).

    :param num_dequantised: how many of the inputs are to be dequantised; all, if it is ``None``.
    :param may_be_float: whether the output may go on unquantised.
    """
    node = unit.node
    wanted = sum(map(bool, node.inputs)) if num_dequantised is None else num_dequantised
    if len(unit.dequantisers) != wanted:
        return False
    if not unit.quantisers:
        return may_be_float
    num_outputs = sum(map(bool, node.outputs))
    is_whole = num_outputs == len(unit.quantisers) == graph.num_edges(node)
    return is_whole and not graph.is_output(node)


def _cuts_nothing(graph: Graph, cut: Node, quantise: Node) -> bool:
    """Whether quantisation cuts off as much as a Relu or Clip (``IsClipMadeRedundantByQ``)."""
    scale, zero = graph.array(quantise.inputs[SCALE]), _constant_zero(graph, quantise)
    if scale is None or scale.ndim or scale.dtype != np.float32 or zero is None:
        return False
    origin, lowest, highest = zero
    if cut.op_type == "Relu":
        return origin == lowest
    bounds = clip_bounds(graph, cut)
    if bounds is None or not scale.item():
        return False
    low, high = (_whole(bound / scale.item(), graph.cpu) + origin for bound in bounds)
    return low <= lowest and high >= highest


def _constant_zero(graph: Graph, quantise: Node) -> tuple[int, int, int] | None:
    """The zero point of a QuantizeLinear, with the least and the largest number of its type."""
    name = quantise.input_at(ZERO_POINT)
    if not name:
        held = RANGES.get(integer(quantise, "output_dtype") or UINT8)
        return None if held is None else (0, *held)
    zero, held = graph.array(name), RANGES.get(graph.elem_type_of(name))
    if zero is None or zero.ndim or held is None:
        return None
    return (int(zero.item()), *held)


def _whole(number: float, cpu: Cpu) -> int:
    """C++'s conversion to int32: what does not fit becomes the least number on x86, the nearest
    on ARM.
    """
    if _INT32.min <= number <= _INT32.max:
        return round(number)
    return int(_INT32.max if cpu.is_arm and number > 0 else _INT32.min)


def same_quantisation(graph: Graph, one: Node, other: Node) -> bool:
    """Whether two nodes have equal constant scales and zero points (``IsQDQPairSupported``).

    A pair without a zero point counts as different, though 0 would be meant on both sides.
    """
    pairs = [(one.input_at(place), other.input_at(place)) for place in (SCALE, ZERO_POINT)]
    return all(_same_scalar(graph, *pair) for pair in pairs)


def _same_scalar(graph: Graph, name: str, other: str) -> bool:
    if not is_scalar(graph, name) or not is_scalar(graph, other):
        return False
    if graph.elem_type_of(name) != graph.elem_type_of(other):
        return False
    value, second = graph.array(name), graph.array(other)
    return value is not None and second is not None and bool(value.item() == second.item())


def elem_type(graph: Graph, node: Node) -> int:
    """The quantised type that a DequantizeLinear reads or a QuantizeLinear writes."""
    return graph.elem_type_of(node.inputs[0] if is_dequantise(node) else node.outputs[0])


def has_positive_scale(graph: Graph, node: Node) -> bool:
    """Whether a scale is a constant scalar above 0 (``IsQOrDQScalePositiveConstantScalar``)."""
    name = node.inputs[SCALE]
    value = graph.array(name) if is_scalar(graph, name) else None
    return value is not None and value.item() > 0
