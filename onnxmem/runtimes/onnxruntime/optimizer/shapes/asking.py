"""What onnx's own inference says of one node.

Source: onnxruntime/core/graph/graph.cc, ``InferenceContextImpl``: each operator is asked without
symbolic inputs; elements help where an input is a constant or follows from shapes.
"""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.defs
import onnx.numpy_helper
import onnx.shape_inference

from onnxmem.model.shapes.native_faults import ends_the_process
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph
from onnxmem.runtimes.onnxruntime.optimizer.value_types import ValueType, read_type

_MAX_ELEMENTS = 4096
"""Shapes, axes and the like are shorter; no inference reads more."""


def onnx_types(
    graph: Graph, proto: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]
) -> dict[str, ValueType]:
    """What onnx says of one node's outputs; nothing where it refuses or cannot be asked."""
    if ends_the_process([proto], graph.opsets, types):
        return {}
    try:
        schema = onnx.defs.get_schema(
            proto.op_type, graph.opsets.get(proto.domain, 1), proto.domain
        )
        inferred = onnx.shape_inference.infer_node_outputs(
            schema,
            proto,
            dict(types),
            _known_elements(graph, proto),
            opset_imports=[
                onnx.OperatorSetIdProto(domain=d, version=v) for d, v in graph.opsets.items()
            ],
            ir_version=graph.ir_version,
        )
    except Exception:  # noqa: BLE001 - whatever it raises costs this node's shapes alone
        return {}
    read = {name: read_type(found) for name, found in inferred.items()}
    return {name: known for name, known in read.items() if known is not None}


def _known_elements(graph: Graph, proto: onnx.NodeProto) -> dict[str, onnx.TensorProto]:
    """Constants with their elements, and values that follow from shapes in full."""
    elements: dict[str, onnx.TensorProto] = {}
    for name in proto.input:
        array = graph.array(name) if name else None
        if array is not None and array.size <= _MAX_ELEMENTS:
            elements[name] = onnx.numpy_helper.from_array(array, name)
        value = graph.shape_values.get(name)
        if array is None and value is not None:
            known = np.array(value.elements, np.int64)
            elements[name] = onnx.numpy_helper.from_array(
                known.reshape(()) if value.is_scalar else known, name
            )
    return elements
