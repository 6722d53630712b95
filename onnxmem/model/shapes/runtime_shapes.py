"""Shapes of the operators that onnxruntime puts in place of ONNX's own while it optimises.

Most of them shape their output as an ONNX operator does: that one is asked in their place. The
blocked image operators of ``com.microsoft.nchwc`` see channels rounded up to the block of the CPU
(8 or 16 of them): the session's, or what the nodes of a file tell (``nchwc_transformer.cc``,
``nchwc_schema_defs.cc``).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import onnx
import onnx.helper

from onnxmem.model.shapes.node_facts import NodeFacts
from onnxmem.model.traversal import graphs_in
from onnxmem.ops.spec import Dims

NCHWC: Final = "com.microsoft.nchwc"
_MICROSOFT: Final = "com.microsoft"
_POOLS: Final = frozenset({"MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"})
_BLOCK: Final = "onnxmem.channel_block"
"""Of a model's ``metadata_props``."""
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


def with_channel_block(model: onnx.ModelProto, block: int) -> None:
    """Note in a model for which blocks of channels it was optimised; 0: for none."""
    onnx.helper.set_model_props(
        model, {entry.key: entry.value for entry in model.metadata_props} | {_BLOCK: str(block)}
    )


def channel_block(model: onnx.ModelProto) -> int:
    """Channels in a block: as noted in the model, or else as all of its nodes tell.

    Images without a part that only blocks of 8 can have may be of either; 16 is taken for them.
    """
    noted = {entry.value for entry in model.metadata_props if entry.key == _BLOCK}
    for block in (_LARGE, _SMALL):
        if str(block) in noted:
            return block
    numbers = (number for graph in graphs_in(model.graph) for number in _whole_blocks(graph))
    return _LARGE if all(number % _LARGE == 0 for number in numbers) else _SMALL


def _whole_blocks(graph: onnx.GraphProto) -> Iterator[int]:
    """Numbers of channels that make whole blocks.

    core/optimizer/nchwc_transformer.cc: ``TransformConv`` rounds the filters up to blocks, while
    ``TransformPool`` leaves an image in its plain layout whose channels make no whole blocks.
    """
    filters = {tensor.name: tensor.dims for tensor in graph.initializer if tensor.dims}
    reordered: set[str] = set()
    pooled: set[str] = set()
    for node in graph.node:
        if node.domain != NCHWC:
            continue
        if node.op_type == "Conv":
            yield from (filters[name][0] for name in node.input[1:2] if name in filters)
        elif node.op_type == "ReorderInput":
            reordered.update(node.output)
        elif node.op_type in _POOLS and not (reordered | pooled).isdisjoint(node.input[:1]):
            pooled.update(node.output)
        elif node.op_type == "ReorderOutput" and not pooled.isdisjoint(node.input[:1]):
            yield NodeFacts(node, {}).integer("channels")


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
