"""Inputs of lower rank brought to the rank of the others.

Source: onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
``NormalizeInputRanks`` and ``UnsqueezeInput``.
"""

from onnxmem.runtimes.onnxruntime.optimizer.attributes import axes_of
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import rank_of
from onnxmem.runtimes.onnxruntime.optimizer.transposes.constants import (
    add_moving,
    unsqueeze_constant,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.dequantised import (
    is_dequantise,
    quantisation_of,
    read_moved,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.moving import (
    Push,
    transpose_input,
    transpose_output,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.node_units import close_unit
from onnxmem.runtimes.onnxruntime.optimizer.transposes.permutations import (
    inverse,
    order_of,
    unsqueezed,
)
from onnxmem.runtimes.onnxruntime.optimizer.value_types import TensorType


def equalise_ranks(push: Push) -> bool:
    """Give inputs of lower rank leading dims of 1; false where a rank is unknown or higher."""
    graph, node = push.graph, push.node
    ranks = [rank_of(graph, node.inputs[place]) for place in push.inputs]
    if any(rank is None or rank > push.rank for rank in ranks):
        return False
    for place, rank in zip(push.inputs, ranks, strict=True):
        if rank is not None and rank < push.rank:
            _unsqueeze_input(graph, node, place, push.rank - rank)
    return True


def _unsqueeze_input(graph: Graph, node: Node, place: int, num_dims: int) -> None:
    if unsqueeze_constant(graph, node, place, num_dims):
        return
    if _use_squeeze_above(graph, (node, place), list(range(num_dims))):
        return
    name = node.inputs[place]
    maker = graph.makers.get(name)
    graph.set_input(node, place, "")
    target = add_moving(graph, "Unsqueeze", name, range(num_dims))
    dims = (*[1] * num_dims, *(graph.dims_of(name) or ()))
    graph.types[target] = TensorType(graph.elem_type_of(name), dims)
    order = order_of(maker)
    unsqueeze = graph.makers[target]
    if order is not None:
        transpose_input(graph, unsqueeze, 0, inverse(order))
        target = transpose_output(graph, unsqueeze, 0, unsqueezed(order, range(num_dims)))
    graph.set_input(node, place, target)
    if maker is not None and is_dequantise(maker):
        close_unit(graph, maker)


def _use_squeeze_above(graph: Graph, use: tuple[Node, int], axes: list[int]) -> bool:
    """Cancel a Squeeze above an input; a DequantizeLinear may be between."""
    node, place = use
    name = node.inputs[place]
    maker = graph.makers.get(name)
    dequantise = None
    if maker is not None and is_dequantise(maker) and quantisation_of(graph, maker) is not None:
        dequantise, name = maker, maker.inputs[0]
        maker = graph.makers.get(name)
    if maker is None or maker.op_type != "Squeeze" or axes_of(graph, maker) != axes:
        return False
    source = maker.inputs[0]
    if dequantise is not None:
        rank = rank_of(graph, name) or 0
        read_moved(graph, dequantise, source, (*[-1] * len(axes), *range(rank)))
    else:
        graph.set_input(node, place, source)
    if name not in graph.outputs and not graph.readers(name):
        graph.remove(maker)
    return True
