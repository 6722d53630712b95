"""Shape functions of our own, for what onnx and onnx-shape-inference both leave open."""

from collections.abc import Callable, Mapping

import onnx

from onnxmem.model.folding import Array

_Types = dict[str, onnx.TypeProto]
_ShapeFunction = Callable[
    [onnx.NodeProto, Mapping[str, onnx.TypeProto], Mapping[str, Array]], _Types
]

_DROPOUT_MASK_IS_BOOL = 10
"""From this version on Dropout's mask is bool; before, it has the data's type."""


def own_types(
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    values: Mapping[str, Array],
    opsets: Mapping[str, int],
) -> _Types:
    """The types of a node's outputs by our own rules; empty where there is none."""
    if node.op_type == "Dropout" and opsets.get("", 1) < _DROPOUT_MASK_IS_BOOL:
        return _dropout(node, types)
    if node.op_type == "If":
        return _if(node, values)
    return {}


def _dropout(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> _Types:
    """Output and mask are shaped like the data."""
    data = types.get(node.input[0])
    return {} if data is None else dict.fromkeys(node.output, data)


def _if(node: onnx.NodeProto, values: Mapping[str, Array]) -> _Types:
    """With a known condition the outputs are those of the branch that runs."""
    condition = values.get(node.input[0])
    if condition is None or condition.size != 1:
        return {}
    branch = "then_branch" if condition.item() else "else_branch"
    graph = next((a.g for a in node.attribute if a.name == branch), None)
    if graph is None:
        return {}
    known = [value.type for value in graph.output]
    return {
        name: proto
        for name, proto in zip(node.output, known, strict=False)
        if name and proto.WhichOneof("value")
    }
