"""Transposes put before a node's inputs and behind its outputs.

A constant is transposed in place; in a QDQ network the Transpose goes outside of the unit, and what
that leaves open is closed again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from onnxmem.runtimes.onnxruntime.optimizer.constants import forget_content
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node, TensorType, execution_order
from onnxmem.runtimes.onnxruntime.optimizer.matching import axes_of, integer, integers, put, rank_of
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    NewNode,
    add_absent,
    add_array,
    add_node,
)

# --------------------------------------------------------------------------------------------------
# Orders of dims.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc.


Order = tuple[int, ...]


def order_of(node: Node | None) -> Order | None:
    """The order that a Transpose brings dims into; ``None`` if it states none, and of others."""
    if node is None or node.op_type != "Transpose" or node.domain:
        return None
    order = integers(node, "perm")
    return tuple(order) if order and sorted(order) == list(range(len(order))) else None


def inverse(order: Order) -> Order:
    """The order that undoes one."""
    return tuple(order.index(place) for place in range(len(order)))


def composed(first: Order, second: Order) -> Order:
    """One order for two Transposes in a row."""
    return tuple(first[place] for place in second)


def squeezed(order: Order, axes: Sequence[int]) -> Order:
    """An order without some axes of the value before the Transpose."""
    left = [axis for axis in range(len(order)) if axis not in axes]
    return tuple(left.index(axis) for axis in order if axis not in axes)


def unsqueezed(order: Order, axes: Sequence[int]) -> Order:
    """An order with further axes that stay where they are."""
    places = [place for place in range(len(order) + len(axes)) if place not in axes]
    moved = iter(places[axis] for axis in order)
    total = range(len(order) + len(axes))
    return tuple(place if place in axes else next(moved) for place in total)


def positive(axes: Sequence[int], rank: int) -> list[int] | None:
    """Axes counted from the start; ``None`` where one is out of range."""
    found = [axis + rank if axis < 0 else axis for axis in axes]
    return found if all(0 <= axis < rank for axis in found) else None


# --------------------------------------------------------------------------------------------------
# DequantizeLinear nodes that a Transpose is seen through, as if they were not there.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
# ``DQToLookPast`` and ``GetQuantizationInfo``.


_SCALE = 1
_DEFAULT_AXIS = 1


@dataclass(frozen=True, slots=True)
class Quantization:
    """How many scales a quantized value has."""

    axis: int
    """Counted from the start; 1 where it means nothing."""
    is_per_axis: bool


def is_dequantize(node: Node | None) -> bool:
    """Whether a node is DequantizeLinear of either domain."""
    return node is not None and node.op_type == "DequantizeLinear"


def quantization_of(graph: Graph, node: Node) -> Quantization | None:
    """The quantization of a QuantizeLinear or DequantizeLinear; ``None`` where it is in blocks."""
    dims = graph.dims_of(node.inputs[_SCALE])
    if dims is None:
        return None
    if dims in ((), (1,)):
        return Quantization(_DEFAULT_AXIS, is_per_axis=False)
    rank = rank_of(graph, node.inputs[0])
    if rank is None or integer(node, "block_size"):
        return None
    axis = integer(node, "axis", _DEFAULT_AXIS)
    axis += rank if axis < 0 else 0
    return Quantization(axis, is_per_axis=True) if 0 <= axis < rank else None


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
    node = graph.producers.get(name)
    if node is None or not is_dequantize(node) or quantization_of(graph, node) is None:
        return None
    source = node.inputs[0]
    if graph.constant(source) is None or not is_comprehensive(graph, source):
        return None
    return node if single_reader(graph, name) is not None else None


def read_moved(graph: Graph, node: Node, source: str, places: tuple[int, ...]) -> None:
    """Make a DequantizeLinear read a value whose axis ``a`` is where its input's ``places[a]`` was.

    Its axis and the dims of its output follow.
    """
    known = quantization_of(graph, node)
    graph.set_input(node, 0, source)
    if known is not None and known.is_per_axis:
        put(node, "axis", places.index(known.axis))
    made = node.outputs[0]
    graph.types[made] = TensorType(graph.elem_type_of(made), graph.dims_of(source))


# --------------------------------------------------------------------------------------------------
# Constants brought into another order or rank, in place.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc, the first case
# of ``TransposeInputImpl`` and of ``UnsqueezeInput``. Other readers of the constant get a
# Transpose or Squeeze that undoes the change; it is folded later.


_AXES_INPUT = 13
"""Operator set from which Squeeze and Unsqueeze read their axes."""


def transpose_constant(graph: Graph, node: Node, place: int, order: Order) -> bool:
    """Bring a constant input into an order; false where the input is none."""
    found = _held(graph, node.inputs[place])
    if found is None:
        return False
    name, dequantize = found
    holder = (node, place) if dequantize is None else (dequantize, 0)
    tensor = graph.initializers[name]
    if int(np.prod(tensor.dims, dtype=np.int64)) == 1:
        return True
    _undo_for_others(graph, holder, "Transpose", inverse(order))
    value = graph.array(name)
    if value is not None:
        add_array(graph, name, value.transpose(order))
    else:
        _redim(graph, name, [tensor.dims[axis] for axis in order])
    if dequantize is not None:
        read_moved(graph, dequantize, name, order)
    return True


def unsqueeze_constant(graph: Graph, node: Node, place: int, num_dims: int) -> bool:
    """Give a constant input leading dims of 1; false where the input is none."""
    found = _held(graph, node.inputs[place])
    if found is None:
        return False
    name, dequantize = found
    holder = (node, place) if dequantize is None else (dequantize, 0)
    _undo_for_others(graph, holder, "Squeeze", list(range(num_dims)))
    dims = list(graph.initializers[name].dims)
    _redim(graph, name, [1] * num_dims + dims)
    if dequantize is not None:
        added = [-1] * num_dims
        read_moved(graph, dequantize, name, (*added, *range(len(dims))))
    return True


def is_constant_input(graph: Graph, name: str) -> bool:
    """Whether a value is a constant, or dequantized from one for a single reader."""
    return graph.constant(name) is not None or constant_before(graph, name) is not None


def _held(graph: Graph, name: str) -> tuple[str, Node | None] | None:
    dequantize = None
    if name in graph.producers:
        dequantize = constant_before(graph, name)
        if dequantize is None:
            return None
        name = dequantize.inputs[0]
    is_local = name in graph.initializers and graph.constant(name) is not None
    return (name, dequantize) if is_local and is_comprehensive(graph, name) else None


def _undo_for_others(
    graph: Graph, holder: tuple[Node, int], op_type: str, values: Sequence[int]
) -> None:
    """Make the other readers of a constant read it through an operator that undoes its change."""
    node, place = holder
    name = node.inputs[place]
    graph.set_input(node, place, "")
    others = graph.readers(name)
    if others:
        target = add_moving(graph, op_type, name, values)
        graph.types[target] = graph.types[name]
        for reader in others:
            names = [target if read == name else read for read in reader.inputs]
            graph.set_inputs(reader, names)
    graph.set_input(node, place, name)


def add_moving(graph: Graph, op_type: str, source: str, values: Sequence[int]) -> str:
    """Add a Transpose with its order, or a Squeeze or Unsqueeze with its axes: the new value."""
    inputs, attribute = [source], "perm" if op_type == "Transpose" else "axes"
    is_read = attribute == "axes" and graph.opsets.get("", 1) >= _AXES_INPUT
    if is_read:
        inputs.append(add_integers(graph, values))
    name = graph.fresh_node_name(op_type)
    target = graph.fresh_name(f"{name}_out0")
    made = add_node(graph, NewNode(op_type, inputs, [target], "", name))
    if not is_read:
        put(made, attribute, list(values))
    return target


def add_integers(graph: Graph, values: Sequence[int], dtype: type = np.int64) -> str:
    """Add a constant of integers."""
    name = graph.fresh_name("const_transpose_optimizer")
    return add_array(graph, name, np.array(list(values), dtype))


def _redim(graph: Graph, name: str, dims: Sequence[int]) -> None:
    """Change the dims of a constant, not its elements."""
    made = onnx.TensorProto()
    made.CopyFrom(graph.initializers[name])
    del made.dims[:]
    made.dims.extend(dims)
    forget_content(made)
    graph.add_initializer(made)


# --------------------------------------------------------------------------------------------------
# Units of a QDQ network that a moved Transpose left open are closed, and empty ones go.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
# ``MakeQDQNodeUnit``, ``FixQDQNodeUnits`` and ``TryConstantFoldNode``.


_ZERO_POINT = 2


def close_unit(graph: Graph, dequantize: Node) -> bool:
    """After the only reader, a Transpose or Unsqueeze, quantize and dequantize again."""
    reader = single_reader(graph, dequantize.outputs[0])
    known = quantization_of(graph, dequantize)
    if reader is None or known is None:
        return False
    axis = known.axis
    if known.is_per_axis:
        axis = _axis_after(graph, reader, axis)
    _insert_pair(graph, dequantize, reader, reader.outputs[0], axis)
    return True


def _axis_after(graph: Graph, node: Node, axis: int) -> int:
    """An axis after a Transpose, or after an Unsqueeze that adds leading dims."""
    order = order_of(node)
    return axis + len(axes_of(graph, node) or ()) if order is None else inverse(order)[axis]


def _insert_pair(graph: Graph, like: Node, producer: Node, target: str, axis: int) -> None:
    """Between a node and who reads an output of it; the readers keep the name."""
    parameters = [name for name in like.inputs[1:] if name]
    known, quantized = (
        TensorType(graph.elem_type_of(target), graph.dims_of(target)),
        like.outputs[0],
    )
    if is_dequantize(like):
        quantized = like.inputs[0]
    middle, quantize = _add(graph, "QuantizeLinear", ["", *parameters], axis, like.domain)
    _, dequantize = _add(graph, "DequantizeLinear", [middle, *parameters], axis, like.domain)
    source = graph.fresh_name(producer.name)
    graph.set_outputs(producer, [source if name == target else name for name in producer.outputs])
    graph.set_outputs(dequantize, [target])
    graph.set_input(quantize, 0, source)
    graph.types[source] = known
    graph.types[middle] = TensorType(graph.elem_type_of(quantized), known.dims)


def _add(
    graph: Graph, op_type: str, inputs: Sequence[str], axis: int, domain: str
) -> tuple[str, Node]:
    name = graph.fresh_node_name(op_type)
    target = graph.fresh_name(f"{name}_out0")
    made = add_node(graph, NewNode(op_type, inputs, [target], domain, name))
    if axis != 1:
        put(made, "axis", axis)
    return target, made


def mend_units(graph: Graph) -> bool:
    """Fold constants that were moved back, drop empty units, close open ones."""
    changed = False
    for node in execution_order(graph):
        changed |= _fold(graph, node)
    for node in execution_order(graph):
        if node.op_type == "QuantizeLinear":
            changed |= _drop_empty(graph, node)
        elif order_of(node) is not None:
            changed |= _close_after(graph, node) or _close_before(graph, node)
    return changed


def _fold(graph: Graph, node: Node) -> bool:
    if node.op_type not in {"Transpose", "Squeeze"}:
        return False
    source, target = node.inputs[0], node.outputs[0]
    tensor, readers = graph.initializers.get(source), graph.readers(target)
    if tensor is None or graph.constant(source) is None or not readers:
        return False
    places = order_of(node)
    if places is None:
        axes = axes_of(graph, node) or []
        places = tuple(a for a in range(len(tensor.dims)) if a not in axes)
    dims = [tensor.dims[axis] for axis in places]
    value = graph.array(source)
    name = graph.fresh_name("const_transpose_optimizer")
    if value is None:
        add_absent(graph, name, tensor.data_type, dims)
    else:
        is_squeezed = len(places) < value.ndim
        add_array(graph, name, value.reshape(dims) if is_squeezed else value.transpose(places))
    for reader in readers:
        graph.set_inputs(reader, [name if read == target else read for read in reader.inputs])
    if target not in graph.outputs and not graph.readers(target):
        graph.remove(node)
    return True


def _drop_empty(graph: Graph, quantize: Node) -> bool:
    first = graph.producers.get(quantize.inputs[0])
    if first is None or not is_dequantize(first) or not _matches(graph, first, quantize):
        return False
    if single_reader(graph, first.outputs[0]) is not quantize:
        return False
    source, target = first.inputs[0], quantize.outputs[0]
    reader = single_reader(graph, target)
    if reader is not None:
        names = [source if read == target else read for read in reader.inputs]
        graph.set_inputs(reader, names)
    elif target in graph.outputs and not graph.readers(target):
        producer = graph.producers.get(source)
        if producer is None or single_reader(graph, source) is not first:
            return False
        graph.remove(first)
        graph.remove(quantize)
        outputs = [target if name == source else name for name in producer.outputs]
        graph.set_outputs(producer, outputs)
        return True
    else:
        return False
    graph.remove(first)
    graph.remove(quantize)
    return True


def _matches(graph: Graph, dequantize: Node, quantize: Node) -> bool:
    """Equal types, scales and zero points (``CheckQDQNodePairMatch``)."""
    kinds = graph.elem_type_of(dequantize.inputs[0]), graph.elem_type_of(quantize.outputs[0])
    if dequantize.domain != quantize.domain or kinds[0] != kinds[1] or not kinds[0]:
        return False
    places = range(1, _ZERO_POINT + 1)
    return all(_equal(graph, dequantize.input_at(p), quantize.input_at(p)) for p in places)


def _equal(graph: Graph, one: str, other: str) -> bool:
    """Whether two constants have the same elements; a zero point that is left out is nought."""
    if one == other:
        return True
    values = [graph.array(name) for name in (one, other) if name]
    known = [value.ravel() for value in values if value is not None]
    if len(known) < len(values):
        return False
    return bool(np.array_equal(known[0], known[1]) if len(known) > 1 else not known[0].any())


def _close_after(graph: Graph, transpose: Node) -> bool:
    first = graph.producers.get(transpose.inputs[0])
    if first is None or not is_dequantize(first):
        return False
    readers = graph.readers(transpose.outputs[0])
    if len(readers) > 1 or any(reader.op_type == "QuantizeLinear" for reader in readers):
        return False
    return close_unit(graph, first)


def _close_before(graph: Graph, transpose: Node) -> bool:
    quantize = single_reader(graph, transpose.outputs[0])
    if quantize is None or quantize.op_type != "QuantizeLinear":
        return False
    source = transpose.inputs[0]
    producer = graph.producers.get(source)
    if producer is None or is_dequantize(producer) or len(graph.readers(source)) != 1:
        return False
    known, order = quantization_of(graph, quantize), order_of(transpose)
    if known is None or order is None:
        return False
    axis = order[known.axis] if known.is_per_axis else known.axis
    _insert_pair(graph, quantize, producer, source, axis)
    return True


# --------------------------------------------------------------------------------------------------
# Transposes put before a node's inputs and after its outputs.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
# ``TransposeInput``, ``TransposeOutput``; names by
# onnxruntime/core/optimizer/transpose_optimization/ort_optimizer_api_impl.cc.


@dataclass(frozen=True, slots=True)
class Push:
    """A Transpose before a node that wants to be after it."""

    graph: Graph
    transpose: Node
    node: Node
    order: Order
    """The order that the Transpose brings dims into."""
    inputs: Sequence[int]
    """The node's inputs that must be transposed back."""
    is_assigned: bool
    """The CPU provider runs the node, and onnxruntime knows it by now."""

    @property
    def rank(self) -> int:
        """Dims of the transposed value."""
        return len(self.order)


def push_simply(push: Push) -> bool:
    """Transposes from all inputs to all outputs."""
    undo_inputs(push)
    redo_outputs(push, push.order)
    return True


def undo_inputs(push: Push) -> None:
    """Bring each input into the order that it had before the Transpose."""
    for place in push.inputs:
        transpose_input(push.graph, push.node, place, inverse(push.order))


def redo_outputs(push: Push, order: Order) -> None:
    """Bring each output into an order after the node."""
    if order == tuple(range(len(order))):
        return
    for place, name in enumerate(list(push.node.outputs)):
        if name:
            transpose_output(push.graph, push.node, place, order)


def transpose_input(graph: Graph, node: Node, place: int, order: Order) -> None:
    """Make a node read an input in another order, with as few Transposes as can be."""
    if transpose_constant(graph, node, place, order):
        return
    name = node.inputs[place]
    if _use_transpose_above(graph, (node, place), order):
        return
    existing = next((r for r in graph.readers(name) if order_of(r) == order), None)
    if existing is not None:
        graph.set_input(node, place, existing.outputs[0])
        return
    graph.set_input(node, place, "")
    target = _add_transpose(graph, name, order)
    graph.set_input(node, place, target)
    producer = graph.producers.get(name)
    if producer is not None and is_dequantize(producer):
        close_unit(graph, producer)


def producer_above(graph: Graph, name: str) -> tuple[str, Node | None, Node | None]:
    """The tensor that is read, its producer, and the DequantizeLinear between the two, if any."""
    producer = graph.producers.get(name)
    if producer is None or not is_dequantize(producer) or quantization_of(graph, producer) is None:
        return name, producer, None
    source = producer.inputs[0]
    return source, graph.producers.get(source), producer


def _use_transpose_above(graph: Graph, use: tuple[Node, int], order: Order) -> bool:
    """Cancel a Transpose above an input, or join with it; a DequantizeLinear may be between."""
    node, place = use
    name, producer, dequantize = producer_above(graph, node.inputs[place])
    before = order_of(producer)
    if producer is None or before is None or len(before) != len(order):
        return False
    source, cancels = producer.inputs[0], before == inverse(order)
    if dequantize is not None:
        if not cancels:
            return False
        read_moved(graph, dequantize, source, order)
    else:
        graph.set_input(node, place, "")
        joined = source if cancels else _add_transpose(graph, source, composed(before, order))
        graph.set_input(node, place, joined)
    if name not in graph.outputs and not graph.readers(name):
        graph.remove(producer)
    return True


def _add_transpose(graph: Graph, source: str, order: Order) -> str:
    target = add_moving(graph, "Transpose", source, order)
    graph.types[target] = _permuted_type(graph, source, order)
    return target


def transpose_output(graph: Graph, node: Node, place: int, order: Order) -> str:
    """Put a Transpose after an output, which it writes in its stead."""
    name = graph.fresh_node_name("Transpose")
    target = node.outputs[place]
    source = graph.fresh_name(node.name)
    made = add_node(graph, NewNode("Transpose", [source], [], "", name))
    put(made, "perm", order)
    outputs = list(node.outputs)
    outputs[place] = source
    graph.set_outputs(node, outputs)
    graph.set_outputs(made, [target])
    graph.types[source] = _permuted_type(graph, target, inverse(order))
    return target


def _permuted_type(graph: Graph, name: str, order: Order) -> TensorType:
    dims = graph.dims_of(name)
    permuted = None if dims is None else tuple(dims[axis] for axis in order)
    return TensorType(graph.elem_type_of(name), permuted)


def move_output(graph: Graph, node: Node, new: Node) -> str:
    """Give a node's output to a new one that follows it: the name under which it is read."""
    target = node.outputs[0]
    source = graph.fresh_name(node.name)
    graph.set_outputs(node, [source])
    graph.set_outputs(new, [target])
    return source


def permute_input(push: Push, place: int, order: Order) -> None:
    """Bring the elements of an input of rank 1 into an order (``PermuteInput``)."""
    graph, node = push.graph, push.node
    name = node.inputs[place]
    value = graph.array(name)
    if value is not None and value.shape in ((0,), (len(order),)):
        made = graph.fresh_name("const_transpose_optimizer")
        moved = value[np.array(order)] if value.size else value
        graph.set_input(node, place, add_array(graph, made, moved))
        return
    inputs = [name, add_integers(graph, order)]
    node_name = graph.fresh_node_name("Gather")
    target = graph.fresh_name(f"{node_name}_out0")
    put(add_node(graph, NewNode("Gather", inputs, [target], "", node_name)), "axis", 0)
    graph.types[target] = TensorType(graph.elem_type_of(name), graph.dims_of(name))
    graph.set_input(node, place, target)
