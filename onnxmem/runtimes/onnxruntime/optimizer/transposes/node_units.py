"""Units of a QDQ network that a moved Transpose left open are closed, and empty ones go.

Source: onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc,
``MakeQDQNodeUnit``, ``FixQDQNodeUnits`` and ``TryConstantFoldNode``.
"""

from collections.abc import Sequence

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.attributes import axes_of, put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.order import execution_order
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    NewNode,
    add_absent,
    add_array,
    add_node,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.dequantised import (
    is_dequantise,
    quantisation_of,
    single_reader,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.permutations import (
    inverse,
    order_of,
)
from onnxmem.runtimes.onnxruntime.optimizer.value_types import TensorType

_ZERO_POINT = 2


def close_unit(graph: Graph, dequantise: Node) -> bool:
    """After the only reader, a Transpose or Unsqueeze, quantise and dequantise again."""
    reader = single_reader(graph, dequantise.outputs[0])
    known = quantisation_of(graph, dequantise)
    if reader is None or known is None:
        return False
    axis = known.axis
    if known.is_per_axis:
        axis = _axis_after(graph, reader, axis)
    _insert_pair(graph, dequantise, reader, reader.outputs[0], axis)
    return True


def _axis_after(graph: Graph, node: Node, axis: int) -> int:
    """An axis after a Transpose, or after an Unsqueeze that adds leading dims."""
    order = order_of(node)
    return axis + len(axes_of(graph, node) or ()) if order is None else inverse(order)[axis]


def _insert_pair(graph: Graph, like: Node, maker: Node, target: str, axis: int) -> None:
    """Between a node and who reads an output of it; the readers keep the name."""
    parameters = [name for name in like.inputs[1:] if name]
    known, quantised = (
        TensorType(graph.elem_type_of(target), graph.dims_of(target)),
        like.outputs[0],
    )
    if is_dequantise(like):
        quantised = like.inputs[0]
    middle, quantise = _add(graph, "QuantizeLinear", ["", *parameters], axis, like.domain)
    _, dequantise = _add(graph, "DequantizeLinear", [middle, *parameters], axis, like.domain)
    source = graph.fresh_name(maker.name)
    graph.set_outputs(maker, [source if name == target else name for name in maker.outputs])
    graph.set_outputs(dequantise, [target])
    graph.set_input(quantise, 0, source)
    graph.types[source] = known
    graph.types[middle] = TensorType(graph.elem_type_of(quantised), known.dims)


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


def _drop_empty(graph: Graph, quantise: Node) -> bool:
    first = graph.makers.get(quantise.inputs[0])
    if first is None or not is_dequantise(first) or not _matches(graph, first, quantise):
        return False
    if single_reader(graph, first.outputs[0]) is not quantise:
        return False
    source, target = first.inputs[0], quantise.outputs[0]
    reader = single_reader(graph, target)
    if reader is not None:
        names = [source if read == target else read for read in reader.inputs]
        graph.set_inputs(reader, names)
    elif target in graph.outputs and not graph.readers(target):
        maker = graph.makers.get(source)
        if maker is None or single_reader(graph, source) is not first:
            return False
        graph.remove(first)
        graph.remove(quantise)
        outputs = [target if name == source else name for name in maker.outputs]
        graph.set_outputs(maker, outputs)
        return True
    else:
        return False
    graph.remove(first)
    graph.remove(quantise)
    return True


def _matches(graph: Graph, dequantise: Node, quantise: Node) -> bool:
    """Equal types, scales and zero points (``CheckQDQNodePairMatch``)."""
    kinds = graph.elem_type_of(dequantise.inputs[0]), graph.elem_type_of(quantise.outputs[0])
    if dequantise.domain != quantise.domain or kinds[0] != kinds[1] or not kinds[0]:
        return False
    places = range(1, _ZERO_POINT + 1)
    return all(_equal(graph, dequantise.input_at(p), quantise.input_at(p)) for p in places)


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
    first = graph.makers.get(transpose.inputs[0])
    if first is None or not is_dequantise(first):
        return False
    readers = graph.readers(transpose.outputs[0])
    if len(readers) > 1 or any(reader.op_type == "QuantizeLinear" for reader in readers):
        return False
    return close_unit(graph, first)


def _close_before(graph: Graph, transpose: Node) -> bool:
    quantise = single_reader(graph, transpose.outputs[0])
    if quantise is None or quantise.op_type != "QuantizeLinear":
        return False
    source = transpose.inputs[0]
    maker = graph.makers.get(source)
    if maker is None or is_dequantise(maker) or len(graph.readers(source)) != 1:
        return False
    known, order = quantisation_of(graph, quantise), order_of(transpose)
    if known is None or order is None:
        return False
    axis = order[known.axis] if known.is_per_axis else known.axis
    _insert_pair(graph, quantise, maker, source, axis)
    return True
