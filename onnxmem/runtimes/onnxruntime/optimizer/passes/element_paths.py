"""Ways in which exporters compute one element of a Reshape's target.

Source: onnxruntime/core/optimizer/reshape_fusion.cc, ``Match_One_Element_Output_Subgraph_1`` and
``_2``, ``Is_One_Element_Output_Subgraph``, ``Match_Shape``.
"""

from onnxmem.runtimes.onnxruntime.optimizer.attributes import axes_of, integers
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import integers_of, is_op, known_size

_UNSQUEEZE = frozenset({1, 11, 13, 21, 23, 24, 25})
_GATHER = frozenset({1, 11, 13})
_SHAPE = frozenset({1, 13, 15, 19, 21, 23, 24, 25})
_TO_THE_END = 2**31 - 1


def shape_gathered(graph: Graph, concat: Node, place: int, wanted: tuple[str, int]) -> bool:
    """Whether an input is the dim of a value at an index: Shape, Gather, Unsqueeze.

    ``wanted`` holds the value and the index.
    """
    path = _gather_path(graph, concat, place)
    if path is None:
        return False
    gather, shape = path
    value, index = wanted
    if integers_of(graph, gather.inputs[1]) != [index]:
        return False
    return shape.inputs[0] == value or _has_same_dim(graph, shape.inputs[0], value, index)


def _gather_path(graph: Graph, node: Node, place: int) -> tuple[Node, Node] | None:
    unsqueeze = graph.parent(node, place)
    if unsqueeze is None or not is_op(unsqueeze, "Unsqueeze", _UNSQUEEZE):
        return None
    if axes_of(graph, unsqueeze) != [0]:
        return None
    gather = graph.parent(unsqueeze, 0)
    if gather is None or not is_op(gather, "Gather", _GATHER):
        return None
    shape = graph.parent(gather, 0)
    if shape is None or not is_op(shape, "Shape", _SHAPE):
        return None
    return gather, shape


def _has_same_dim(graph: Graph, shown: str, value: str, index: int) -> bool:
    one, other = graph.dims_of(shown), graph.dims_of(value)
    if one is None or other is None or index >= min(len(one), len(other)):
        return False
    return one[index] is not None and one[index] == other[index]


def is_one_element(graph: Graph, concat: Node, place: int, value: str) -> bool:
    """Whether an input of a Concat is sure to hold exactly one element."""
    if known_size(graph, concat.inputs[place]) == 1:
        return True
    path = _gather_path(graph, concat, place)
    if path is not None and known_size(graph, path[0].inputs[1]) == 1:
        return True
    unsqueeze = graph.parent(concat, place)
    if unsqueeze is None or not is_op(unsqueeze, "Unsqueeze", _UNSQUEEZE):
        return False
    if axes_of(graph, unsqueeze) != [0]:
        return False
    source = graph.parent(unsqueeze, 0)
    if source is not None and (
        is_op(source, "Div", {7, 13, 14}) or is_op(source, "Mul", {7, 13, 14})
    ):
        return all(_is_single(graph, source, slot, value) for slot in (0, 1))
    return _is_single(graph, unsqueeze, 0, value)


def _is_single(graph: Graph, node: Node, place: int, value: str) -> bool:
    """One element by its shape, or one cut out of the value's own: Shape, Slice, Squeeze."""
    if known_size(graph, node.inputs[place]) == 1:
        return True
    squeeze = graph.parent(node, place)
    if squeeze is None or not is_op(squeeze, "Squeeze", _UNSQUEEZE):
        return False
    cut = graph.parent(squeeze, 0)
    if cut is None or not is_op(cut, "Slice", {1, 10, 11, 13}):
        return False
    shape = graph.parent(cut, 0)
    if shape is None or not is_op(shape, "Shape", _SHAPE) or shape.inputs[0] != value:
        return False
    # Bounds that are inputs, from version 10 on, are not looked at.
    starts, ends = integers(cut, "starts") or [], integers(cut, "ends") or []
    if len(starts) != 1 or len(ends) != 1:
        return False
    return (ends[0] >= _TO_THE_END and starts[0] == -1) or abs(ends[0] - starts[0]) == 1
