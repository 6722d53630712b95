"""Shapes of every tensor that can be known."""

from dataclasses import dataclass

import onnx
import onnx.shape_inference

from onnxmem.findings import Finding
from onnxmem.model.binding import Binding, given_inputs


@dataclass(frozen=True, slots=True)
class Shaped:
    """A model whose ``value_info`` holds what is known of its shapes."""

    proto: onnx.ModelProto
    findings: tuple[Finding, ...]


def with_shapes(model: onnx.ModelProto, binding: Binding) -> Shaped:
    """Set the inputs' dims and infer the shapes of everything else."""
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    del bound.graph.value_info[:]
    for value in bound.graph.output:
        value.type.tensor_type.ClearField("shape")
    for value in given_inputs(bound.graph):
        if value.name in binding.shapes:
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            shape.dim.extend(
                onnx.TensorShapeProto.Dimension(dim_value=n) for n in binding.shapes[value.name]
            )
    return Shaped(onnx.shape_inference.infer_shapes(bound, data_prop=True), ())
