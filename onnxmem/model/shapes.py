"""Shapes of every tensor that can be known, by three engines in turn.

onnx's own inference with data propagation runs over the whole graph in C++ and leaves few shapes
open. Only then do the others run: a walk that works shape arithmetic out (``propagation``), and
onnx-shape-inference for operators that onnx has no inference for (``symbolic``). The file's own
word (``value_info``) is used where nothing derives a shape, and marked.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
import onnx.shape_inference

from onnxmem.findings import Finding
from onnxmem.model.binding import Binding, given_inputs
from onnxmem.model.order import subgraphs
from onnxmem.model.propagation import propagate
from onnxmem.model.symbolic import infer_symbolically
from onnxmem.model.types import is_complete


@dataclass(frozen=True, slots=True)
class Shaped:
    """A model whose ``value_info`` holds what is known of its shapes."""

    proto: onnx.ModelProto
    findings: tuple[Finding, ...]


def with_shapes(model: onnx.ModelProto, binding: Binding) -> Shaped:
    """Set the inputs' dims and infer the shapes of everything else."""
    bound = _with_bound_inputs(model, binding)
    return Shaped(inferred(bound), ())


def inferred(bound: onnx.ModelProto) -> onnx.ModelProto:
    """Run the engines until nothing is open or none of them helps."""
    try:
        proto = onnx.shape_inference.infer_shapes(bound, data_prop=True)
    except Exception:  # noqa: BLE001 - it refuses models that run; the walk starts from nothing
        proto = bound
    if not num_open(proto):
        return proto
    propagate(proto)
    before = num_open(proto)
    if before and infer_symbolically(proto):
        propagate(proto)
    return proto


def num_open(model: onnx.ModelProto) -> int:
    """Count the node outputs whose type is not complete, subgraphs included."""
    return sum(_num_open(graph) for graph in _graphs(model.graph))


def _num_open(graph: onnx.GraphProto) -> int:
    types = {value.name: value.type for value in (*graph.value_info, *graph.output)}
    return sum(
        not is_complete(types.get(name))
        for node in graph.node
        if node.op_type != "Constant"
        for name in node.output
        if name
    )


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    stack = [graph]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(inner for node in current.node for _, inner in subgraphs(node))


def _with_bound_inputs(model: onnx.ModelProto, binding: Binding) -> onnx.ModelProto:
    """Copy a model with numbers for the inputs' dims and without the shapes that it declares."""
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    for graph in _graphs(bound.graph):
        del graph.value_info[:]
        for value in graph.output:
            if value.type.WhichOneof("value") == "tensor_type":
                value.type.tensor_type.ClearField("shape")
    for value in given_inputs(bound.graph):
        if value.name in binding.shapes:
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            shape.dim.extend(
                onnx.TensorShapeProto.Dimension(dim_value=dim)
                for dim in binding.shapes[value.name]
            )
    return bound
