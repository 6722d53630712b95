"""DequantizeLinear nodes that a Transpose is seen through, as if they were not there.

Source: onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
``DQToLookPast`` and ``GetQuantizationInfo``.
"""

from dataclasses import dataclass

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import rank_of
from onnxmem.runtimes.onnxruntime.optimizer.value_types import TensorType

_SCALE = 1
_DEFAULT_AXIS = 1


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How many scales a quantised value has."""

    axis: int
    """Counted from the start; 1 where it means nothing."""
    is_per_axis: bool


def is_dequantise(node: Node | None) -> bool:
    """Whether a node is DequantizeLinear of either domain."""
    return node is not None and node.op_type == "DequantizeLinear"


def quantisation_of(graph: Graph, node: Node) -> Quantisation | None:
    """The quantisation of a QuantizeLinear or DequantizeLinear; ``None`` where it is in blocks."""
    dims = graph.dims_of(node.inputs[_SCALE])
    if dims is None:
        return None
    if dims in ((), (1,)):
        return Quantisation(_DEFAULT_AXIS, is_per_axis=False)
    rank = rank_of(graph, node.inputs[0])
    if rank is None or integer(node, "block_size"):
        return None
    axis = integer(node, "axis", _DEFAULT_AXIS)
    axis += rank if axis < 0 else 0
    return Quantisation(axis, is_per_axis=True) if 0 <= axis < rank else None


def is_comprehensive(graph: Graph, name: str) -> bool:
    """Whether a value's uses are all inputs of nodes: no graph output, nothing in a subgraph."""
    if name in graph.outputs:
        return False
    return not any(name in reader.implicit for reader in graph.readers(name))


def single_reader(graph: Graph, name: str) -> Node | None:
    """The only node that reads a value, where there is nothing else."""
    readers = graph.readers(name)
    return readers[0] if len(readers) == 1 and is_comprehensive(graph, name) else None


def constant_before(graph: Graph, name: str) -> Node | None:
    """The DequantizeLinear that makes a value of a constant, for one reader only."""
    node = graph.makers.get(name)
    if node is None or not is_dequantise(node) or quantisation_of(graph, node) is None:
        return None
    source = node.inputs[0]
    if graph.constant(source) is None or not is_comprehensive(graph, source):
        return None
    return node if single_reader(graph, name) is not None else None


def read_moved(graph: Graph, node: Node, source: str, places: tuple[int, ...]) -> None:
    """Make a DequantizeLinear read a value whose axis ``a`` is where its input's ``places[a]`` was.

    Its axis and the dims of its output follow.
    """
    known = quantisation_of(graph, node)
    graph.set_input(node, 0, source)
    if known is not None and known.is_per_axis:
        put(node, "axis", places.index(known.axis))
    made = node.outputs[0]
    graph.types[made] = TensorType(graph.elem_type_of(made), graph.dims_of(source))
