"""Fusion of Reshapes with computed targets, and of Gathers and Slices that split a value."""

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
# onnxruntime/core/optimizer/reshape_fusion.cc (``Fuse_Subgraph``, ``FuseContiguousReshapes``). A
# copied dim becomes 0 in the target, and one unknown dim -1. Consecutive Reshapes with known output
# shapes become one.


_RESHAPE = frozenset({5, 13, 14, 19, 21, 23, 24, 25})
_CONCAT = frozenset({1, 4, 11, 13})
_SQUEEZE = frozenset({1, 11, 13, 21, 23, 24, 25})


def fuse_reshapes(graph: Graph) -> bool:
    """Fold the target of every Reshape, and merge it with the Reshapes after it."""
    changed: list[bool] = []
    for node in walk(graph, fuse_reshapes, changed):
        if _is_plain_reshape(node):
            changed.append(_fold_target(graph, node))
            changed.append(_merge_following(graph, node))
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
    # One parent may write several inputs, and then is gone when the second of them is visited.
    for parent in [graph.parent(concat, index) for index in range(len(concat.inputs))]:
        if parent is not None and parent.index in graph.nodes:
            remove_upwards(graph, parent)
    graph.remove(concat)
    add_array(graph, concat.outputs[0], np.array(target, np.int64))
    return True


def _target(graph: Graph, reshape: Node, concat: Node) -> list[int] | None:
    """The constant target; ``None`` if a part of the Concat matches no pattern."""
    target: list[int] = []
    # A part that is the input's dim at its own position in the target can be written as 0.
    for index, name in enumerate(concat.inputs):
        constant = integers_of(graph, name)
        if constant is not None:
            target.extend(constant)
        elif is_dim_of(graph, concat, index, (reshape.inputs[0], len(target))):
            target.append(0)
        elif is_one_element(graph, concat, index, reshape.inputs[0]):
            target.append(-1)
        else:
            return None
    return target


def _merge_following(graph: Graph, reshape: Node) -> bool:
    # Elements keep their order through any chain of reshapes, so that the last shape alone counts.
    # A second reader of a shape between them would lose it.
    chain = [reshape]
    while has_single_reader(graph, chain[-1]):
        following = graph.children(chain[-1])[0]
        if not _is_reshaping(following) or known_size(graph, following.outputs[0]) is None:
            break
        if following.inputs[0] != chain[-1].outputs[0]:
            break
        chain.append(following)
    if len(chain) == 1:
        return False
    dims = [dim for dim in graph.dims_of(chain[-1].outputs[0]) or () if isinstance(dim, int)]
    shape = add_array(
        graph, graph.fresh_name(f"{reshape.name}_new_shape"), np.array(dims, np.int64)
    )
    merged = add_node(
        graph,
        NewNode("Reshape", [reshape.inputs[0], shape], (), "", f"{reshape.name}_new_reshape"),
    )
    replace_chain(graph, chain, merged)
    return True


def _is_reshaping(node: Node) -> bool:
    return (
        _is_plain_reshape(node)
        or is_op(node, "Squeeze", _SQUEEZE)
        or is_op(node, "Unsqueeze", _SQUEEZE)
    )


def _is_plain_reshape(node: Node) -> bool:
    """Whether a node is a Reshape in whose target 0 means the input's dim."""
    return is_op(node, "Reshape", _RESHAPE) and not integer(node, "allowzero")


# --------------------------------------------------------------------------------------------------
# The subgraphs with which exporters compute one element of a Reshape's target.
#
# onnxruntime/core/optimizer/reshape_fusion.cc, ``Match_One_Element_Output_Subgraph_1`` and ``_2``,
# ``Is_One_Element_Output_Subgraph``, ``Match_Shape``.


_UNSQUEEZE = frozenset({1, 11, 13, 21, 23, 24, 25})
_GATHER = frozenset({1, 11, 13})
_SHAPE = frozenset({1, 13, 15, 19, 21, 23, 24, 25})
_TO_THE_END = 2**31 - 1


def is_dim_of(graph: Graph, concat: Node, input_index: int, wanted: tuple[str, int]) -> bool:
    """Whether an input is a dim of a value: Shape, Gather, Unsqueeze.

    :param wanted: the value and the axis of the dim.
    """
    path = _gather_path(graph, concat, input_index)
    if path is None:
        return False
    gather, shape = path
    value, axis = wanted
    if integers_of(graph, gather.inputs[1]) != [axis]:
        return False
    return shape.inputs[0] == value or _has_same_dim(graph, shape.inputs[0], value, axis)


def _gather_path(graph: Graph, node: Node, input_index: int) -> tuple[Node, Node] | None:
    unsqueeze = _unsqueeze(graph, node, input_index)
    gather = None if unsqueeze is None else graph.parent(unsqueeze, 0)
    if gather is None or not is_op(gather, "Gather", _GATHER):
        return None
    shape = graph.parent(gather, 0)
    if shape is None or not is_op(shape, "Shape", _SHAPE):
        return None
    return gather, shape


def _unsqueeze(graph: Graph, node: Node, input_index: int) -> Node | None:
    """The Unsqueeze that makes a scalar a vector of one element, if an input is one."""
    unsqueeze = graph.parent(node, input_index)
    if unsqueeze is None or not is_op(unsqueeze, "Unsqueeze", _UNSQUEEZE):
        return None
    return unsqueeze if axes_of(graph, unsqueeze) == [0] else None


def _has_same_dim(graph: Graph, measured: str, value: str, axis: int) -> bool:
    one, other = graph.dims_of(measured), graph.dims_of(value)
    if one is None or other is None or axis >= min(len(one), len(other)):
        return False
    return one[axis] is not None and one[axis] == other[axis]


def is_one_element(graph: Graph, concat: Node, input_index: int, value: str) -> bool:
    """Whether an input of a Concat is sure to have exactly one element."""
    if known_size(graph, concat.inputs[input_index]) == 1:
        return True
    path = _gather_path(graph, concat, input_index)
    if path is not None and known_size(graph, path[0].inputs[1]) == 1:
        return True
    unsqueeze = _unsqueeze(graph, concat, input_index)
    if unsqueeze is None:
        return False
    source = graph.parent(unsqueeze, 0)
    if source is not None and (
        is_op(source, "Div", {7, 13, 14}) or is_op(source, "Mul", {7, 13, 14})
    ):
        return all(_is_single(graph, source, operand, value) for operand in (0, 1))
    return _is_single(graph, unsqueeze, 0, value)


def _is_single(graph: Graph, node: Node, input_index: int, value: str) -> bool:
    """Whether an input has one element, or is one dim of a value: Shape, Slice, Squeeze."""
    if known_size(graph, node.inputs[input_index]) == 1:
        return True
    squeeze = graph.parent(node, input_index)
    if squeeze is None or not is_op(squeeze, "Squeeze", _UNSQUEEZE):
        return False
    slicing = graph.parent(squeeze, 0)
    if slicing is None or not is_op(slicing, "Slice", {1, 10, 11, 13}):
        return False
    shape = graph.parent(slicing, 0)
    if shape is None or not is_op(shape, "Shape", _SHAPE) or shape.inputs[0] != value:
        return False
    # onnxruntime reads the attributes only, so bounds that are inputs (version 10 on) do not match.
    starts, ends = integers(slicing, "starts") or [], integers(slicing, "ends") or []
    if len(starts) != 1 or len(ends) != 1:
        return False
    return (ends[0] >= _TO_THE_END and starts[0] == -1) or abs(ends[0] - starts[0]) == 1


# --------------------------------------------------------------------------------------------------
# Gathers and Slices that together take all of a value become one Split, and a Gather of a Range
# becomes a Slice.
#
# onnxruntime/core/optimizer/gather_fusion.cc, ``GatherSliceToSplitFusion`` and
# ``GatherToSliceFusion``.


# Squeeze and Split got inputs in place of attributes then: onnxruntime writes the later form only.
_MIN_OPSET = 13
_MIN_PARTS = 2
_STARTS, _ENDS, _AXES, _STEPS = 1, 2, 3, 4
_INT64 = 7


@dataclass(frozen=True, slots=True)
class _Part:
    """A consecutive part of a value along the axis."""

    node: Node
    start: int
    size: int
    is_squeezed: bool
    """A Gather with a scalar index, which removes the axis."""


def fuse_gathers_to_split(graph: Graph) -> bool:
    """Replace the Gathers and Slices that together take all of a value along one axis."""
    changed: list[bool] = []
    if graph.opsets.get("", 1) < _MIN_OPSET:
        return False
    # onnxruntime visits graph inputs, then initializers, then the outputs of nodes.
    constants = [name for name in graph.initializers if len(graph.readers(name)) > 1]
    inputs = [name for name in graph.inputs if name not in constants]
    names = [name for name in inputs if len(graph.readers(name)) > 1] + constants
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
    # The first reader decides the axis; all others must take their part along it.
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
    """Whether consecutive parts cover the axis without gap or overlap."""
    offset = 0
    for part in parts:
        if part.start != offset:
            return False
        offset += part.size
    return offset == size


def _axis(graph: Graph, node: Node, rank: int) -> int | None:
    axis = integer(node, "axis") if node.op_type == "Gather" else _element(graph, node, _AXES)
    return None if axis is None else axis + rank * (axis < 0)


def _element(graph: Graph, node: Node, input_index: int) -> int | None:
    """The element of an input that is a constant int64 scalar."""
    name = node.input_at(input_index)
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
        offset = _element(graph, node, 1)
        if offset is None or not -size <= offset < size:
            return None
        is_squeezed = graph.dims_of(node.inputs[1]) == ()
        return _Part(node, offset % size, 1, is_squeezed)
    return _sliced(graph, node, size) if is_op(node, "Slice", {13}) else None


def _sliced(graph: Graph, node: Node, size: int) -> _Part | None:
    start, end = (_element(graph, node, bound) for bound in (_STARTS, _ENDS))
    if start is None or end is None:
        return None
    if len(node.inputs) > _STEPS and _element(graph, node, _STEPS) != 1:
        return None
    first, last = (min(max(e + size if e < 0 else e, 0), size) for e in (start, end))
    return _Part(node, first, last - first, is_squeezed=False) if first < last else None


def _replace(graph: Graph, name: str, parts: list[_Part], axis: int) -> None:
    outputs = []
    squeezes: list[tuple[Node, str]] = []
    for part in parts:
        target = part.node.outputs[0]
        if part.is_squeezed:
            piece = _split_output(graph, name, axis)
            axes = add_array(graph, graph.fresh_name("squeeze_axes"), np.array([axis], np.int64))
            squeeze = add_node(graph, NewNode("Squeeze", [piece, axes], (), "", "Squeeze"))
            squeezes.append((squeeze, target))
            outputs.append(piece)
        else:
            outputs.append(target)
    sizes = np.array([part.size for part in parts], np.int64)
    splits = add_array(graph, graph.fresh_name("splits"), sizes)
    split = add_node(graph, NewNode("Split", [name, splits], (), "", "Split"))
    put(split, "axis", axis)
    # A value has one producer, so the parts go before the new nodes write their outputs.
    for part in parts:
        graph.remove(part.node)
    for squeeze, target in squeezes:
        graph.set_outputs(squeeze, [target])
    graph.set_outputs(split, outputs)


def _split_output(graph: Graph, name: str, axis: int) -> str:
    """A new value for an output of the Split that is one element long."""
    output = graph.fresh_name("split_output")
    dims: Dims = graph.dims_of(name) or ()
    graph.types[output] = TensorType(
        graph.elem_type_of(name), tuple(1 if a == axis else d for a, d in enumerate(dims))
    )
    return output


def fuse_gather_ranges(graph: Graph) -> bool:
    """Replace a Gather of a Range by a Slice with the Range's inputs as start, end and step."""
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


def _slice_by(graph: Graph, ranged: Node, gather: Node) -> None:
    elem_type = graph.elem_type_of(ranged.outputs[0])
    bounds = [graph.fresh_name(f"unsqueeze_output_{index}") for index in range(3)]
    has_axes_input = graph.opsets.get("", 1) >= _MIN_OPSET
    axes = ""
    if has_axes_input:
        name = graph.fresh_name("UnsqueezeAxesInitializer")
        axes = add_array(graph, name, np.array([0], np.int64))
    for index, bound in enumerate(bounds):
        inputs = [ranged.inputs[index], axes] if has_axes_input else [ranged.inputs[index]]
        new = NewNode("Unsqueeze", inputs, [bound], "", f"Unsqueeze_{index}")
        unsqueeze = add_node(graph, new)
        graph.types[bound] = TensorType(elem_type, (1,))
        if not has_axes_input:
            put(unsqueeze, "axes", [0])
    # All index inputs of a Slice have one type.
    dtype = np.int32 if elem_type != _INT64 else np.int64
    axis = add_array(
        graph, graph.fresh_name("slice_axes"), np.array([integer(gather, "axis")], dtype)
    )
    inputs = [gather.inputs[0], bounds[0], bounds[1], axis, bounds[2]]
    outputs = list(gather.outputs)
    slicing = add_node(graph, NewNode("Slice", inputs, (), "", "Slice"))
    graph.remove(ranged)
    graph.remove(gather)
    graph.set_outputs(slicing, outputs)
