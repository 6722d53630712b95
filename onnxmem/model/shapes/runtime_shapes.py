"""Shapes of the operators that onnxruntime puts in place of ONNX's own while it optimises.

Most of them shape their output as an ONNX operator does: that one is asked in their place. The
blocked image operators of ``com.microsoft.nchwc`` see channels rounded up to the block of the CPU
(8 or 16 of them), which the filters' dims tell (``nchwc_transformer.cc``, ``nchwc_schema_defs.cc``).
"""

from collections.abc import Mapping
from typing import Final

import onnx

from onnxmem.model.value_types import dense_type, dims_of

NCHWC: Final = "com.microsoft.nchwc"
_MICROSOFT: Final = "com.microsoft"
_LARGE: Final = 16
_SMALL: Final = 8
_IMAGE_RANK: Final = 4

_TWINS: Final[Mapping[tuple[str, str], tuple[str, int]]] = {
    (NCHWC, "Conv"): ("Conv", 3),
    (NCHWC, "MaxPool"): ("MaxPool", 1),
    (NCHWC, "AveragePool"): ("AveragePool", 1),
    (NCHWC, "GlobalMaxPool"): ("GlobalMaxPool", 1),
    (NCHWC, "GlobalAveragePool"): ("GlobalAveragePool", 1),
    (_MICROSOFT, "FusedConv"): ("Conv", 3),
    (_MICROSOFT, "FusedGemm"): ("Gemm", 3),
}
"""The ONNX operator of the same shapes, and how many inputs it has."""


def as_onnx(node: onnx.NodeProto, opset: int) -> onnx.NodeProto:
    """ONNX's own operator where a node has that one's shapes; else the node itself."""
    twin = _TWINS.get((node.domain, node.op_type))
    if twin is None:
        return node
    op_type, num_inputs = twin
    known = onnx.defs.get_schema(op_type, opset).attributes
    attributes = [attribute for attribute in node.attribute if attribute.name in known]
    return onnx.NodeProto(
        op_type=op_type,
        input=node.input[:num_inputs],
        output=node.output,
        attribute=attributes,
        name=node.name,
    )


def blocked_types(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], block: int
) -> dict[str, onnx.TypeProto]:
    """The types of a reordering's or an Upsample's output; empty for any other node."""
    dims = dims_of(types.get(node.input[0])) if node.input else None
    if node.domain != NCHWC or dims is None or len(dims) != _IMAGE_RANK:
        return {}
    settings = {attribute.name: attribute for attribute in node.attribute}
    last = "channels_last" in settings and settings["channels_last"].i == 1
    batch, channels, height, width = dims
    if node.op_type == "ReorderInput":
        if last:
            height, width, channels = dims[1:]
        shape = (batch, _rounded_up(channels, block), height, width)
    elif node.op_type == "ReorderOutput" and "channels" in settings:
        channels = settings["channels"].i
        shape = (batch, height, width, channels) if last else (batch, channels, height, width)
    elif node.op_type == "Upsample" and "scales" in settings:
        scales = settings["scales"].ints
        shape = (batch, channels, height * scales[-2], width * scales[-1])
    else:
        return {}
    elem_type = types[node.input[0]].tensor_type.elem_type
    return {node.output[0]: dense_type(elem_type, shape)}


def channel_block(graph: onnx.GraphProto) -> int:
    """Channels in a block, as the filters tell: they hold whole blocks of output channels."""
    dims = {tensor.name: tensor.dims for tensor in graph.initializer}
    filters = (
        dims.get(node.input[1], ())
        for node in graph.node
        if (node.domain, node.op_type) == (NCHWC, "Conv")
    )
    return _LARGE if all(shape[0] % _LARGE == 0 for shape in filters if shape) else _SMALL


def _rounded_up(number: int, block: int) -> int:
    return -(-number // block) * block
