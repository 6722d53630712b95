"""Inserting and removing Transposes before a node's inputs and after its outputs.

A constant is transposed in place. In a QDQ model, a moved Transpose gets a QuantizeLinear and a
DequantizeLinear around it, so that it is a unit of its own.
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
# Permutations of axes.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc (``InvertPerm``,
# ``ComposePerm``, ``SqueezePerm``, ``UnsqueezePerm``). As in ONNX, axis ``a`` of a transposed value
# is axis ``perm[a]`` of the value before.


Perm = tuple[int, ...]


def perm_of(node: Node | None) -> Perm | None:
    """The permutation of a Transpose; ``None`` for other nodes, or if it has no valid one."""
    if node is None or node.op_type != "Transpose" or node.domain:
        return None
    perm = integers(node, "perm")
    return tuple(perm) if perm and sorted(perm) == list(range(len(perm))) else None


def inverse_perm(perm: Perm) -> Perm:
    """The permutation that undoes another one."""
    return tuple(perm.index(axis) for axis in range(len(perm)))


def composed_perm(first: Perm, second: Perm) -> Perm:
    """The permutation of two consecutive Transposes."""
    return tuple(first[axis] for axis in second)


def squeezed_perm(perm: Perm, axes: Sequence[int]) -> Perm:
    """A permutation without some axes of the value before the Transpose."""
    remaining = [axis for axis in range(len(perm)) if axis not in axes]
    return tuple(remaining.index(axis) for axis in perm if axis not in axes)


def unsqueezed_perm(perm: Perm, axes: Sequence[int]) -> Perm:
    """A permutation with additional axes that stay at their index."""
    total = range(len(perm) + len(axes))
    old_axes = [axis for axis in total if axis not in axes]
    permuted = iter(old_axes[axis] for axis in perm)
    return tuple(axis if axis in axes else next(permuted) for axis in total)


def positive(axes: Sequence[int], rank: int) -> list[int] | None:
    """Axes counted from the start; ``None`` if one is out of range."""
    found = [axis + rank if axis < 0 else axis for axis in axes]
    return found if all(0 <= axis < rank for axis in found) else None


# --------------------------------------------------------------------------------------------------
# DequantizeLinear nodes that the optimizer looks past, to a Transpose or a constant before them.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
# ``DQToLookPast`` and ``GetQuantizationInfo``.


_SCALE = 1
_DEFAULT_AXIS = 1


@dataclass(frozen=True, slots=True)
class Quantization:
    """Whether a quantized value has one scale or one per index of an axis."""

    axis: int
    """Counted from the start; meaningless unless ``is_per_axis``."""
    is_per_axis: bool


def is_dequantize(node: Node | None) -> bool:
    """Whether a node is DequantizeLinear of either domain."""
    return node is not None and node.op_type == "DequantizeLinear"


def quantization_of(graph: Graph, node: Node) -> Quantization | None:
    """The quantization of a QuantizeLinear or DequantizeLinear; ``None`` if it is blocked."""
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


def has_only_node_readers(graph: Graph, name: str) -> bool:
    """Whether all readers of a value are nodes of this graph (``ValueConsumers::comprehensive``).

    It is not a graph output, and no subgraph reads it.
    """
    if name in graph.outputs:
        return False
    return not any(name in reader.implicit for reader in graph.readers(name))


def only_reader(graph: Graph, name: str) -> Node | None:
    """The node that is the only reader of a value; ``None`` if there are others."""
    readers = graph.readers(name)
    return readers[0] if len(readers) == 1 and has_only_node_readers(graph, name) else None


def constant_before(graph: Graph, name: str) -> Node | None:
    """The DequantizeLinear of a constant that produces a value with one reader."""
    node = graph.producers.get(name)
    if node is None or not is_dequantize(node) or quantization_of(graph, node) is None:
        return None
    source = node.inputs[0]
    if graph.constant(source) is None or not has_only_node_readers(graph, source):
        return None
    return node if only_reader(graph, name) is not None else None


def rewire_dequantize(graph: Graph, node: Node, source: str, source_axes: tuple[int, ...]) -> None:
    """Make a DequantizeLinear read a transposed or unsqueezed value; its axis and dims follow.

    :param source_axes: the present input's axis for each axis of ``source``; -1 for a new axis.
    """
    known = quantization_of(graph, node)
    graph.set_input(node, 0, source)
    if known is not None and known.is_per_axis:
        put(node, "axis", source_axes.index(known.axis))
    target = node.outputs[0]
    graph.types[target] = TensorType(graph.elem_type_of(target), graph.dims_of(source))


# --------------------------------------------------------------------------------------------------
# Constants that are transposed or unsqueezed in place.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc, the first case
# of ``TransposeInputImpl`` and of ``UnsqueezeInput``. Other readers of the constant get a
# Transpose or Squeeze that undoes the change; it is folded later.


_AXES_INPUT = 13
"""Operator set from which the axes of Squeeze and Unsqueeze are an input."""


def transpose_constant(graph: Graph, node: Node, input_index: int, perm: Perm) -> bool:
    """Transpose a constant input; false if the input is not one."""
    found = _own_constant(graph, node.inputs[input_index])
    if found is None:
        return False
    name, dequantize = found
    use = (node, input_index) if dequantize is None else (dequantize, 0)
    tensor = graph.initializers[name]
    # onnxruntime leaves a single element as it is, including its dims.
    if int(np.prod(tensor.dims, dtype=np.int64)) == 1:
        return True
    _undo_for_others(graph, use, "Transpose", inverse_perm(perm))
    value = graph.array(name)
    if value is not None:
        add_array(graph, name, value.transpose(perm))
    else:
        _set_dims(graph, name, [tensor.dims[axis] for axis in perm])
    if dequantize is not None:
        rewire_dequantize(graph, dequantize, name, perm)
    return True


def unsqueeze_constant(graph: Graph, node: Node, input_index: int, num_dims: int) -> bool:
    """Add leading dims of 1 to a constant input; false if the input is not one."""
    found = _own_constant(graph, node.inputs[input_index])
    if found is None:
        return False
    name, dequantize = found
    use = (node, input_index) if dequantize is None else (dequantize, 0)
    _undo_for_others(graph, use, "Squeeze", list(range(num_dims)))
    dims = list(graph.initializers[name].dims)
    _set_dims(graph, name, [1] * num_dims + dims)
    if dequantize is not None:
        added = [-1] * num_dims
        rewire_dequantize(graph, dequantize, name, (*added, *range(len(dims))))
    return True


def is_constant_input(graph: Graph, name: str) -> bool:
    """Whether a value is a constant, or dequantized from a constant and read once."""
    return graph.constant(name) is not None or constant_before(graph, name) is not None


def _own_constant(graph: Graph, name: str) -> tuple[str, Node | None] | None:
    """The constant of this very graph behind a value, and the DequantizeLinear between, if any.

    A constant of an outer graph, or one that a subgraph reads, cannot be changed in place.
    """
    dequantize = None
    if name in graph.producers:
        dequantize = constant_before(graph, name)
        if dequantize is None:
            return None
        name = dequantize.inputs[0]
    is_local = name in graph.initializers and graph.constant(name) is not None
    return (name, dequantize) if is_local and has_only_node_readers(graph, name) else None


def _undo_for_others(
    graph: Graph, use: tuple[Node, int], op_type: str, values: Sequence[int]
) -> None:
    """Make the other readers of a constant read it through an operator that undoes its change."""
    node, input_index = use
    name = node.inputs[input_index]
    # Without its own read, the node is among ``others`` only if it reads the constant twice.
    graph.set_input(node, input_index, "")
    others = graph.readers(name)
    if others:
        target = add_moving(graph, op_type, name, values)
        graph.types[target] = graph.types[name]
        for reader in others:
            names = [target if read == name else read for read in reader.inputs]
            graph.set_inputs(reader, names)
    graph.set_input(node, input_index, name)


def add_moving(graph: Graph, op_type: str, source: str, values: Sequence[int]) -> str:
    """Add a Transpose, Squeeze or Unsqueeze, and return its output.

    :param values: the permutation, or the axes.
    """
    inputs, attribute = [source], "perm" if op_type == "Transpose" else "axes"
    is_input = attribute == "axes" and graph.opsets.get("", 1) >= _AXES_INPUT
    if is_input:
        inputs.append(add_integers(graph, values))
    name = graph.fresh_node_name(op_type)
    target = graph.fresh_name(f"{name}_out0")
    added = add_node(graph, NewNode(op_type, inputs, [target], "", name))
    if not is_input:
        put(added, attribute, list(values))
    return target


def add_integers(graph: Graph, values: Sequence[int], dtype: type = np.int64) -> str:
    """Add a constant of integers."""
    name = graph.fresh_name("const_transpose_optimizer")
    return add_array(graph, name, np.array(list(values), dtype))


def _set_dims(graph: Graph, name: str, dims: Sequence[int]) -> None:
    """Change the dims of a constant, but not its elements."""
    changed = onnx.TensorProto()
    changed.CopyFrom(graph.initializers[name])
    del changed.dims[:]
    changed.dims.extend(dims)
    forget_content(changed)
    graph.add_initializer(changed)


# --------------------------------------------------------------------------------------------------
# QDQ units that a moved Transpose broke get new QuantizeLinear and DequantizeLinear nodes. Pairs
# without an operator between them are removed.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
# ``MakeQDQNodeUnit``, ``FixQDQNodeUnits`` and ``TryConstantFoldNode``.


_ZERO_POINT = 2


def insert_qdq_after(graph: Graph, dequantize: Node) -> bool:
    """Quantize and dequantize again after the only reader, a Transpose or Unsqueeze.

    Source: ``MakeQDQNodeUnit``.
    """
    reader = only_reader(graph, dequantize.outputs[0])
    known = quantization_of(graph, dequantize)
    if reader is None or known is None:
        return False
    axis = known.axis
    if known.is_per_axis:
        axis = _axis_after(graph, reader, axis)
    _insert_pair(graph, dequantize, reader, reader.outputs[0], axis)
    return True


def _axis_after(graph: Graph, node: Node, axis: int) -> int:
    """The output axis for an input axis of a Transpose, or of an Unsqueeze with leading axes."""
    perm = perm_of(node)
    return axis + len(axes_of(graph, node) or ()) if perm is None else inverse_perm(perm)[axis]


def _insert_pair(graph: Graph, like: Node, producer: Node, target: str, axis: int) -> None:
    """Quantize and dequantize an output of a node, with the parameters of another node.

    The readers still read the name ``target``, which the new DequantizeLinear writes.
    """
    parameters = [name for name in like.inputs[1:] if name]
    known, quantized = (
        TensorType(graph.elem_type_of(target), graph.dims_of(target)),
        like.outputs[0],
    )
    if is_dequantize(like):
        quantized = like.inputs[0]
    middle, quantize = _add(graph, "QuantizeLinear", ["", *parameters], axis, like.domain)
    _, dequantize = _add(graph, "DequantizeLinear", [middle, *parameters], axis, like.domain)
    # The new value gets the new name, so that no reader, and no graph output, has to change.
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
    added = add_node(graph, NewNode(op_type, inputs, [target], domain, name))
    if axis != 1:
        put(added, "axis", axis)
    return target, added


def fix_qdq_units(graph: Graph) -> bool:
    """Fold the operators that undo a change of a constant, and repair QDQ units."""
    changed = False
    # The two loops stay apart: folding may leave a pair without an operator between its nodes.
    for node in execution_order(graph):
        changed |= _fold(graph, node)
    for node in execution_order(graph):
        if node.op_type == "QuantizeLinear":
            changed |= _remove_empty_pair(graph, node)
        elif perm_of(node) is not None:
            changed |= _repair_after(graph, node) or _repair_before(graph, node)
    return changed


def _fold(graph: Graph, node: Node) -> bool:
    """Make the readers of a transposed or squeezed constant read a new constant."""
    if node.op_type not in {"Transpose", "Squeeze"}:
        return False
    source, target = node.inputs[0], node.outputs[0]
    tensor, readers = graph.initializers.get(source), graph.readers(target)
    if tensor is None or graph.constant(source) is None or not readers:
        return False
    # A Squeeze is a permutation that leaves out the axes of 1: both give the new dims by axis.
    source_axes = perm_of(node)
    if source_axes is None:
        axes = axes_of(graph, node) or []
        source_axes = tuple(a for a in range(len(tensor.dims)) if a not in axes)
    dims = [tensor.dims[axis] for axis in source_axes]
    value = graph.array(source)
    name = graph.fresh_name("const_transpose_optimizer")
    if value is None:
        add_absent(graph, name, tensor.data_type, dims)
    else:
        is_squeezed = len(source_axes) < value.ndim
        add_array(graph, name, value.reshape(dims) if is_squeezed else value.transpose(source_axes))
    for reader in readers:
        graph.set_inputs(reader, [name if read == target else read for read in reader.inputs])
    if target not in graph.outputs and not graph.readers(target):
        graph.remove(node)
    return True


def _remove_empty_pair(graph: Graph, quantize: Node) -> bool:
    """Remove a DequantizeLinear and the QuantizeLinear that reads it, if both have one reader."""
    first = graph.producers.get(quantize.inputs[0])
    if first is None or not is_dequantize(first) or not _matches(graph, first, quantize):
        return False
    if only_reader(graph, first.outputs[0]) is not quantize:
        return False
    source, target = first.inputs[0], quantize.outputs[0]
    reader = only_reader(graph, target)
    if reader is not None:
        names = [source if read == target else read for read in reader.inputs]
        graph.set_inputs(reader, names)
    # The name of a graph output must stay, so the producer of the source writes it instead.
    elif target in graph.outputs and not graph.readers(target):
        producer = graph.producers.get(source)
        if producer is None or only_reader(graph, source) is not first:
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
    parameters = range(1, _ZERO_POINT + 1)
    return all(_equal(graph, dequantize.input_at(i), quantize.input_at(i)) for i in parameters)


def _equal(graph: Graph, one: str, other: str) -> bool:
    """Whether two constants have the same elements; an omitted zero point is 0."""
    if one == other:
        return True
    values = [graph.array(name) for name in (one, other) if name]
    known = [value.ravel() for value in values if value is not None]
    if len(known) < len(values):
        return False
    return bool(np.array_equal(known[0], known[1]) if len(known) > 1 else not known[0].any())


def _repair_after(graph: Graph, transpose: Node) -> bool:
    """Quantize after a Transpose that reads a DequantizeLinear, unless a QuantizeLinear follows."""
    first = graph.producers.get(transpose.inputs[0])
    if first is None or not is_dequantize(first):
        return False
    readers = graph.readers(transpose.outputs[0])
    if len(readers) > 1 or any(reader.op_type == "QuantizeLinear" for reader in readers):
        return False
    return insert_qdq_after(graph, first)


def _repair_before(graph: Graph, transpose: Node) -> bool:
    """Quantize before a Transpose whose reader is a QuantizeLinear, unless it is dequantized."""
    quantize = only_reader(graph, transpose.outputs[0])
    if quantize is None or quantize.op_type != "QuantizeLinear":
        return False
    source = transpose.inputs[0]
    producer = graph.producers.get(source)
    if producer is None or is_dequantize(producer) or len(graph.readers(source)) != 1:
        return False
    known, perm = quantization_of(graph, quantize), perm_of(transpose)
    if known is None or perm is None:
        return False
    axis = perm[known.axis] if known.is_per_axis else known.axis
    _insert_pair(graph, quantize, producer, source, axis)
    return True


# --------------------------------------------------------------------------------------------------
# Inserting Transposes before a node's inputs and after its outputs.
#
# onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
# ``TransposeInput``, ``TransposeOutput``. The names of new values and nodes follow
# onnxruntime/core/optimizer/transpose_optimization/ort_optimizer_api_impl.cc.


@dataclass(frozen=True, slots=True)
class Push:
    """A Transpose before a node, to be moved behind it (``HandlerArgs``)."""

    graph: Graph
    transpose: Node
    node: Node
    perm: Perm
    """The permutation of the Transpose."""
    inputs: Sequence[int]
    """Indices of the node's inputs that must be transposed back."""
    is_assigned: bool
    """Whether the node is assigned to the CPU provider by now."""

    @property
    def rank(self) -> int:
        """Rank of the transposed value."""
        return len(self.perm)


def push_simple(push: Push) -> bool:
    """Move the Transposes from all inputs to all outputs (``HandleSimpleNode``)."""
    untranspose_inputs(push)
    transpose_outputs(push, push.perm)
    return True


def untranspose_inputs(push: Push) -> None:
    """Transpose each input back, which removes the Transpose before it or inserts one."""
    for input_index in push.inputs:
        transpose_input(push.graph, push.node, input_index, inverse_perm(push.perm))


def transpose_outputs(push: Push, perm: Perm) -> None:
    """Transpose each output after the node."""
    if perm == tuple(range(len(perm))):
        return
    for output_index, name in enumerate(list(push.node.outputs)):
        if name:
            transpose_output(push.graph, push.node, output_index, perm)


def transpose_input(graph: Graph, node: Node, input_index: int, perm: Perm) -> None:
    """Transpose an input of a node, with as few Transposes as possible.

    In this sequence: transpose a constant in place, cancel or merge with a Transpose above, use an
    equal Transpose of another reader, insert one.
    """
    if transpose_constant(graph, node, input_index, perm):
        return
    name = node.inputs[input_index]
    if _use_transpose_above(graph, (node, input_index), perm):
        return
    existing = next((r for r in graph.readers(name) if perm_of(r) == perm), None)
    if existing is not None:
        graph.set_input(node, input_index, existing.outputs[0])
        return
    target = _add_transpose(graph, name, perm)
    graph.set_input(node, input_index, target)
    producer = graph.producers.get(name)
    if producer is not None and is_dequantize(producer):
        insert_qdq_after(graph, producer)


def producer_above(graph: Graph, name: str) -> tuple[str, Node | None, Node | None]:
    """The tensor before an optional DequantizeLinear, its producer, and the DequantizeLinear."""
    producer = graph.producers.get(name)
    if producer is None or not is_dequantize(producer) or quantization_of(graph, producer) is None:
        return name, producer, None
    source = producer.inputs[0]
    return source, graph.producers.get(source), producer


def _use_transpose_above(graph: Graph, use: tuple[Node, int], perm: Perm) -> bool:
    """Cancel or merge with a Transpose above an input; a DequantizeLinear may be between."""
    node, input_index = use
    name, producer, dequantize = producer_above(graph, node.inputs[input_index])
    before = perm_of(producer)
    if producer is None or before is None or len(before) != len(perm):
        return False
    source, cancels = producer.inputs[0], before == inverse_perm(perm)
    if dequantize is not None:
        # onnxruntime looks past a DequantizeLinear only if the Transposes cancel.
        if not cancels:
            return False
        rewire_dequantize(graph, dequantize, source, perm)
    else:
        merged = source if cancels else _add_transpose(graph, source, composed_perm(before, perm))
        graph.set_input(node, input_index, merged)
    if name not in graph.outputs and not graph.readers(name):
        graph.remove(producer)
    return True


def _add_transpose(graph: Graph, source: str, perm: Perm) -> str:
    target = add_moving(graph, "Transpose", source, perm)
    graph.types[target] = _permuted_type(graph, source, perm)
    return target


def transpose_output(graph: Graph, node: Node, output_index: int, perm: Perm) -> str:
    """Insert a Transpose after an output; it writes the name that the readers read."""
    name = graph.fresh_node_name("Transpose")
    target = node.outputs[output_index]
    source = graph.fresh_name(node.name)
    transpose = add_node(graph, NewNode("Transpose", [source], [], "", name))
    put(transpose, "perm", perm)
    outputs = list(node.outputs)
    outputs[output_index] = source
    graph.set_outputs(node, outputs)
    graph.set_outputs(transpose, [target])
    graph.types[source] = _permuted_type(graph, target, inverse_perm(perm))
    return target


def _permuted_type(graph: Graph, name: str, perm: Perm) -> TensorType:
    dims = graph.dims_of(name)
    permuted = None if dims is None else tuple(dims[axis] for axis in perm)
    return TensorType(graph.elem_type_of(name), permuted)


def move_output(graph: Graph, node: Node, new: Node) -> str:
    """Let a new node write a node's output, and return the new name of the node's own output."""
    target = node.outputs[0]
    source = graph.fresh_name(node.name)
    graph.set_outputs(node, [source])
    graph.set_outputs(new, [target])
    return source


def permute_elements(push: Push, input_index: int, perm: Perm) -> None:
    """Permute the elements of an input of rank 1 (``PermuteInput``)."""
    graph, node = push.graph, push.node
    name = node.inputs[input_index]
    value = graph.array(name)
    if value is not None and value.shape in ((0,), (len(perm),)):
        constant = graph.fresh_name("const_transpose_optimizer")
        permuted = value[np.array(perm)] if value.size else value
        graph.set_input(node, input_index, add_array(graph, constant, permuted))
        return
    inputs = [name, add_integers(graph, perm)]
    node_name = graph.fresh_node_name("Gather")
    target = graph.fresh_name(f"{node_name}_out0")
    put(add_node(graph, NewNode("Gather", inputs, [target], "", node_name)), "axis", 0)
    graph.types[target] = TensorType(graph.elem_type_of(name), graph.dims_of(name))
    graph.set_input(node, input_index, target)
