"""Shapes of the operators that onnxruntime puts in place of ONNX's own while it optimises.

Most of them shape their output as an ONNX operator does: that one is asked in their place. The
blocked image operators of ``com.microsoft.nchwc`` see channels rounded up to the block of the CPU
(8 or 16 of them), which the filters' dims tell (``nchwc_transformer.cc``,
``nchwc_schema_defs.cc``).
"""

from collections.abc import Callable, Mapping
from typing import Final

import onnx

from onnxmem.model.shapes.node_facts import NodeFacts
from onnxmem.ops.spec import Dims

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
    (_MICROSOFT, "GatherND"): ("GatherND", 2),
    (_MICROSOFT, "GridSample"): ("GridSample", 2),
    (_MICROSOFT, "Pad"): ("Pad", 3),
}
"""The ONNX operator of the same shapes, and how many inputs it has."""


def as_onnx(node: onnx.NodeProto, opset: int) -> onnx.NodeProto:
    """ONNX's own operator where a node has that one's shapes; else the node itself."""
    twin = _TWINS.get((node.domain, node.op_type))
    if twin is None:
        return node
    op_type, num_inputs = twin
    try:
        known = onnx.defs.get_schema(op_type, opset).attributes
    except onnx.defs.SchemaError:  # ONNX has it from a later opset on
        return node
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
    rule = _BLOCKED.get(node.op_type) if node.domain == NCHWC else None
    facts = NodeFacts(node, types)
    dims = facts.dims(0)
    if rule is None or dims is None or len(dims) != _IMAGE_RANK:
        return {}
    return facts.outputs(rule(facts, dims, block), elem_type=facts.elem_type(0))


def channel_block(graph: onnx.GraphProto) -> int:
    """Channels in a block, as the filters tell: they hold whole blocks of output channels."""
    dims = {tensor.name: tensor.dims for tensor in graph.initializer}
    filters = (
        dims.get(name, ())
        for node in graph.node
        if (node.domain, node.op_type) == (NCHWC, "Conv")
        for name in node.input[1:2]
    )
    return _LARGE if all(shape[0] % _LARGE == 0 for shape in filters if shape) else _SMALL


def _reordered_input(facts: NodeFacts, dims: Dims, block: int) -> Dims:
    """X: [N, C, H, W] or [N, H, W, C] -> [N, blocks x block, H, W]."""
    is_last = facts.integer("channels_last")
    batch, channels, *image = (dims[0], dims[3], *dims[1:3]) if is_last else dims
    return (batch, -(-channels // block) * block, *image)


def _reordered_output(facts: NodeFacts, dims: Dims, block: int) -> Dims | None:  # noqa: ARG001
    """X: [N, blocks x block, H, W] -> [N, channels, H, W] or [N, H, W, channels]."""
    if "channels" not in facts.attributes:
        return None
    channels, (batch, _, *image) = facts.integer("channels"), dims
    return (
        (batch, *image, channels) if facts.integer("channels_last") else (batch, channels, *image)
    )


def _upsampled(facts: NodeFacts, dims: Dims, block: int) -> Dims | None:  # noqa: ARG001
    """X: [N, C, H, W] -> its image times ``scales``, which name all axes."""
    scales = facts.integers("scales")
    if len(scales) != _IMAGE_RANK:
        return None
    return (*dims[:2], dims[2] * scales[2], dims[3] * scales[3])


_BLOCKED: Final[Mapping[str, Callable[[NodeFacts, Dims, int], Dims | None]]] = {
    "ReorderInput": _reordered_input,
    "ReorderOutput": _reordered_output,
    "Upsample": _upsampled,
}
