"""Constants brought into another order or rank, in place.

Source: onnxruntime/core/optimizer/transpose_optimization/onnx_transpose_optimization.cc, the first
case of ``TransposeInputImpl`` and of ``UnsqueezeInput``. Other readers of the constant get a
Transpose or Squeeze that undoes the change; it is folded later.
"""

from collections.abc import Sequence

import numpy as np
import onnx

from onnxmem.runtimes.onnxruntime.optimizer.attributes import put
from onnxmem.runtimes.onnxruntime.optimizer.contents import forget_content
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_array, add_node
from onnxmem.runtimes.onnxruntime.optimizer.transposes.dequantised import (
    constant_before,
    is_comprehensive,
    read_moved,
)
from onnxmem.runtimes.onnxruntime.optimizer.transposes.permutations import Order, inverse

_AXES_INPUT = 13
"""Operator set from which Squeeze and Unsqueeze read their axes."""


def transpose_constant(graph: Graph, node: Node, place: int, order: Order) -> bool:
    """Bring a constant input into an order; false where the input is none."""
    found = _held(graph, node.inputs[place])
    if found is None:
        return False
    name, dequantise = found
    holder = (node, place) if dequantise is None else (dequantise, 0)
    tensor = graph.initializers[name]
    if int(np.prod(tensor.dims, dtype=np.int64)) == 1:
        return True
    _undo_for_others(graph, holder, "Transpose", inverse(order))
    value = graph.array(name)
    if value is not None:
        add_array(graph, name, value.transpose(order))
    else:
        _redim(graph, name, [tensor.dims[axis] for axis in order])
    if dequantise is not None:
        read_moved(graph, dequantise, name, order)
    return True


def unsqueeze_constant(graph: Graph, node: Node, place: int, num_dims: int) -> bool:
    """Give a constant input leading dims of 1; false where the input is none."""
    found = _held(graph, node.inputs[place])
    if found is None:
        return False
    name, dequantise = found
    holder = (node, place) if dequantise is None else (dequantise, 0)
    _undo_for_others(graph, holder, "Squeeze", list(range(num_dims)))
    dims = list(graph.initializers[name].dims)
    _redim(graph, name, [1] * num_dims + dims)
    if dequantise is not None:
        added = [-1] * num_dims
        read_moved(graph, dequantise, name, (*added, *range(len(dims))))
    return True


def is_constant_input(graph: Graph, name: str) -> bool:
    """Whether a value is a constant, or dequantised from one for a single reader."""
    return graph.constant(name) is not None or constant_before(graph, name) is not None


def _held(graph: Graph, name: str) -> tuple[str, Node | None] | None:
    dequantise = None
    if name in graph.makers:
        dequantise = constant_before(graph, name)
        if dequantise is None:
            return None
        name = dequantise.inputs[0]
    is_local = name in graph.initializers and graph.constant(name) is not None
    return (name, dequantise) if is_local and is_comprehensive(graph, name) else None


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
