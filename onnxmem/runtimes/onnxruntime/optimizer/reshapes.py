"""Reshapes whose target is computed, and parts cut out of a value that become one Split."""

from dataclasses import dataclass

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.graph import Dims, Graph, Node, TensorType, walk
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    axes_of,
    has_kernel,
    has_single_reader,
    integer,
    integers,
    integers_of,
    is_op,
    is_scalar,
    known_size,
    put,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    NewNode,
    add_array,
    add_node,
    remove_upwards,
    replace_chain,
)

# --------------------------------------------------------------------------------------------------
# A Reshape whose target is computed from its own input's shape gets a constant target.
#
# onnxruntime/core/optimizer/reshape_fusion.cc. A dim that is copied becomes 0, one unknown dim -1;
# Reshapes in a row with known outputs become one.


_RESHAPE = frozenset({5, 13, 14, 19, 21, 23, 24, 25})
_CONCAT = frozenset({1, 4, 11, 13})
_SQUEEZE = frozenset({1, 11, 13, 21, 23, 24, 25})


def fuse_reshapes(graph: Graph) -> bool:
    """Both fusions on every Reshape; true if any was made."""
    changed: list[bool] = []
    for node in walk(graph, fuse_reshapes, changed):
        if _is_plain_reshape(node):
            changed.append(_fold_target(graph, node))
            changed.append(_merge_row(graph, node))
    return any(changed)


def _fold_target(graph: Graph, reshape: Node) -> bool:
    concat = graph.parent(reshape, 1)
    if concat is None or not is_op(concat, "Concat", _CONCAT):
        return False
    if not has_single_reader(graph, concat):
        return False
    target = _target(graph, reshape, concat)
    if target is None or target.count(-1) > 1:
        return False
    for parent in [graph.parent(concat, place) for place in range(len(concat.inputs))]:
        if parent is not None and parent.index in graph.nodes:
            remove_upwards(graph, parent)
    graph.remove(concat)
    add_array(graph, concat.outputs[0], np.array(target, np.int64))
    return True


def _target(graph: Graph, reshape: Node, concat: Node) -> list[int] | None:
    """The constant target, as far as every part of the Concat is understood."""
    target: list[int] = []
    for place, name in enumerate(concat.inputs):
        constant = integers_of(graph, name)
        if constant is not None:
            target.extend(constant)
        elif shape_gathered(graph, concat, place, (reshape.inputs[0], len(target))):
            target.append(0)
        elif is_one_element(graph, concat, place, reshape.inputs[0]):
            target.append(-1)
        else:
            return None
    return target


def _merge_row(graph: Graph, reshape: Node) -> bool:
    row = [reshape]
    while has_single_reader(graph, row[-1]):
        following = graph.children(row[-1])[0]
        if not _is_reshaping(following) or known_size(graph, following.outputs[0]) is None:
            break
        if following.inputs[0] != row[-1].outputs[0]:
            break
        row.append(following)
    if len(row) == 1:
        return False
    dims = [dim for dim in graph.dims_of(row[-1].outputs[0]) or () if isinstance(dim, int)]
    shape = add_array(
        graph, graph.fresh_name(f"{reshape.name}_new_shape"), np.array(dims, np.int64)
    )
    made = add_node(
        graph,
        NewNode("Reshape", [reshape.inputs[0], shape], (), "", f"{reshape.name}_new_reshape"),
    )
    replace_chain(graph, row, made)
    return True


def _is_reshaping(node: Node) -> bool:
    return (
        _is_plain_reshape(node)
        or is_op(node, "Squeeze", _SQUEEZE)
        or is_op(node, "Unsqueeze", _SQUEEZE)
    )


def _is_plain_reshape(node: Node) -> bool:
    """A 0 in the target stands for the input's dim."""
    return is_op(node, "Reshape", _RESHAPE) and not integer(node, "allowzero")


# --------------------------------------------------------------------------------------------------
# Ways in which exporters compute one element of a Reshape's target.
#
# onnxruntime/core/optimizer/reshape_fusion.cc, ``Match_One_Element_Output_Subgraph_1`` and ``_2``,
# ``Is_One_Element_Output_Subgraph``, ``Match_Shape``.


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


# --------------------------------------------------------------------------------------------------
# Gathers and Slices that cut a value into its parts become one Split.
#
# onnxruntime/core/optimizer/gather_fusion.cc, ``GatherSliceToSplitFusion`` and
# ``GatherToSliceFusion``.


_MIN_OPSET = 13
_MIN_PARTS = 2
_STARTS, _ENDS, _AXES, _STEPS = 1, 2, 3, 4
_INT64 = 7


@dataclass(frozen=True, slots=True)
class _Part:
    """One piece along the axis."""

    node: Node
    start: int
    size: int
    is_squeezed: bool
    """Gather by a scalar drops the axis."""


def fuse_gathers_to_split(graph: Graph) -> bool:
    """Replace the readers of each value that together take all of it along one axis."""
    changed: list[bool] = []
    if graph.opsets.get("", 1) < _MIN_OPSET:
        return False
    constants = [name for name in graph.initializers if len(graph.readers(name)) > 1]
    given = [name for name in graph.inputs if name not in constants]
    names = [name for name in given if len(graph.readers(name)) > 1] + constants
    for node in walk(graph, fuse_gathers_to_split, changed):
        is_single = node.op_type != "Shape" and len(node.outputs) == 1
        if is_single and graph.num_edges(node) > 1:
            names.append(node.outputs[0])
    changed.extend(_split(graph, name) for name in names)
    return any(changed)


def _split(graph: Graph, name: str) -> bool:
    dims = graph.dims_of(name)
    readers = [
        reader
        for reader in graph.readers(name)
        if reader.op_type in {"Gather", "Slice"} and reader.inputs[0] == name
    ]
    if dims is None or len(readers) < _MIN_PARTS:
        return False
    axis = _axis(graph, readers[0], len(dims))
    if axis is None or not 0 <= axis < len(dims):
        return False
    size = dims[axis]
    parts = [_part(graph, reader, (axis, size, len(dims))) for reader in readers]
    found = sorted((part for part in parts if part is not None), key=lambda part: part.start)
    if len(found) != len(readers) or not isinstance(size, int) or not _covers(found, size):
        return False
    _replace(graph, name, found, axis)
    return True


def _covers(parts: list[_Part], size: int) -> bool:
    """Whether the parts follow one another from the start to the end."""
    place = 0
    for part in parts:
        if part.start != place:
            return False
        place += part.size
    return place == size


def _axis(graph: Graph, node: Node, rank: int) -> int | None:
    axis = integer(node, "axis") if node.op_type == "Gather" else _element(graph, node, _AXES)
    return None if axis is None else axis + rank * (axis < 0)


def _element(graph: Graph, node: Node, place: int) -> int | None:
    """The element of a constant int64 scalar."""
    name = node.input_at(place)
    if not name or not is_scalar(graph, name) or graph.elem_type_of(name) != _INT64:
        return None
    value = graph.array(name)
    return None if value is None else int(value.ravel()[0])


def _part(graph: Graph, node: Node, wanted: tuple[int, int | str | None, int]) -> _Part | None:
    axis, size, rank = wanted
    if not isinstance(size, int) or _axis(graph, node, rank) != axis:
        return None
    if not has_kernel(graph, node):
        return None
    if is_op(node, "Gather", {13}):
        place = _element(graph, node, 1)
        if place is None or not -size <= place < size:
            return None
        is_squeezed = graph.dims_of(node.inputs[1]) == ()
        return _Part(node, place % size, 1, is_squeezed)
    return _cut(graph, node, size) if is_op(node, "Slice", {13}) else None


def _cut(graph: Graph, node: Node, size: int) -> _Part | None:
    start, end = (_element(graph, node, place) for place in (_STARTS, _ENDS))
    if start is None or end is None:
        return None
    if len(node.inputs) > _STEPS and _element(graph, node, _STEPS) != 1:
        return None
    first, last = (min(max(e + size if e < 0 else e, 0), size) for e in (start, end))
    return _Part(node, first, last - first, is_squeezed=False) if first < last else None


def _replace(graph: Graph, name: str, parts: list[_Part], axis: int) -> None:
    outputs = []
    made: list[tuple[Node, str]] = []
    for part in parts:
        target = part.node.outputs[0]
        if part.is_squeezed:
            piece = _piece(graph, name, axis)
            axes = add_array(graph, graph.fresh_name("squeeze_axes"), np.array([axis], np.int64))
            squeeze = add_node(graph, NewNode("Squeeze", [piece, axes], (), "", "Squeeze"))
            made.append((squeeze, target))
            outputs.append(piece)
        else:
            outputs.append(target)
    sizes = np.array([part.size for part in parts], np.int64)
    splits = add_array(graph, graph.fresh_name("splits"), sizes)
    split = add_node(graph, NewNode("Split", [name, splits], (), "", "Split"))
    put(split, "axis", axis)
    for part in parts:
        graph.remove(part.node)
    for squeeze, target in made:
        graph.set_outputs(squeeze, [target])
    graph.set_outputs(split, outputs)


def _piece(graph: Graph, name: str, axis: int) -> str:
    piece = graph.fresh_name("split_output")
    dims: Dims = graph.dims_of(name) or ()
    graph.types[piece] = TensorType(
        graph.elem_type_of(name), tuple(1 if a == axis else d for a, d in enumerate(dims))
    )
    return piece


def fuse_gather_ranges(graph: Graph) -> bool:
    """A Gather by a Range becomes a Slice from, to and in steps of the Range's inputs."""
    changed: list[bool] = []
    for node in walk(graph, fuse_gather_ranges, changed):
        if not is_op(node, "Range", {1, 11}) or graph.num_edges(node) != 1:
            continue
        gather = graph.children(node)[0]
        is_gather = is_op(gather, "Gather", {1, 11, 13}) and gather.inputs[1] == node.outputs[0]
        if is_gather and has_kernel(graph, gather) and not graph.is_output(node):
            _slice_by(graph, node, gather)
            changed.append(True)
    return any(changed)


def _slice_by(graph: Graph, numbers: Node, gather: Node) -> None:
    elem_type = graph.elem_type_of(numbers.outputs[0])
    bounds = [graph.fresh_name(f"unsqueeze_output_{place}") for place in range(3)]
    has_axes_input = graph.opsets.get("", 1) >= _MIN_OPSET
    axes = ""
    if has_axes_input:
        name = graph.fresh_name("UnsqueezeAxesInitializer")
        axes = add_array(graph, name, np.array([0], np.int64))
    for place, bound in enumerate(bounds):
        inputs = [numbers.inputs[place], axes] if has_axes_input else [numbers.inputs[place]]
        new = NewNode("Unsqueeze", inputs, [bound], "", f"Unsqueeze_{place}")
        unsqueeze = add_node(graph, new)
        graph.types[bound] = TensorType(elem_type, (1,))
        if not has_axes_input:
            put(unsqueeze, "axes", [0])
    dtype = np.int32 if elem_type != _INT64 else np.int64
    axis = add_array(
        graph, graph.fresh_name("slice_axes"), np.array([integer(gather, "axis")], dtype)
    )
    inputs = [gather.inputs[0], bounds[0], bounds[1], axis, bounds[2]]
    outputs = list(gather.outputs)
    made = add_node(graph, NewNode("Slice", inputs, (), "", "Slice"))
    graph.remove(numbers)
    graph.remove(gather)
    graph.set_outputs(made, outputs)
