"""Gathers and Slices that cut a value into its parts become one Split.

Source: onnxruntime/core/optimizer/gather_fusion.cc, ``GatherSliceToSplitFusion`` and
``GatherToSliceFusion``.
"""

from dataclasses import dataclass

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.kernels import has_kernel
from onnxmem.runtimes.onnxruntime.optimizer.matching import is_op, is_scalar
from onnxmem.runtimes.onnxruntime.optimizer.order import walk
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_array, add_node
from onnxmem.runtimes.onnxruntime.optimizer.value_types import Dims, TensorType

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


def split_gathers(graph: Graph) -> bool:
    """Replace the readers of each value that together take all of it along one axis."""
    changed: list[bool] = []
    if graph.opsets.get("", 1) < _MIN_OPSET:
        return False
    constants = [name for name in graph.initializers if len(graph.readers(name)) > 1]
    given = [name for name in graph.inputs if name not in constants]
    names = [name for name in given if len(graph.readers(name)) > 1] + constants
    for node in walk(graph, split_gathers, changed):
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


def slice_ranges(graph: Graph) -> bool:
    """A Gather by a Range becomes a Slice from, to and in steps of the Range's inputs."""
    changed: list[bool] = []
    for node in walk(graph, slice_ranges, changed):
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
