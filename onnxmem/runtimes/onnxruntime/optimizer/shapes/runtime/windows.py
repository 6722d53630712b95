"""Shapes of convolutions and pools: blocked, with channels last, or quantised.

Source: onnxruntime/core/graph/contrib_ops/nchwc_schema_defs.cc (``NchwcPoolOpSchemaGenerator`` and
others) and nhwc_inference_context.h: the shape is that of the ONNX operator, and where channels are
last, dims are permuted before and after.
"""

from collections.abc import Sequence

import onnx

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.shapes.asking import onnx_types
from onnxmem.runtimes.onnxruntime.optimizer.value_types import Dims, TensorType, write_type

_FLOAT = 1
_STATED = ("auto_pad", "ceil_mode", "count_include_pad", "dilations", "group", "kernel_shape")
_WINDOW = (*_STATED, "pads", "strides")


def convolved(graph: Graph, node: Node, weight: int = 1) -> Dims | None:
    """Dims of a convolution whose filter is at a place."""
    return _asked(graph, node, "Conv", (0, weight))


def pooled(graph: Graph, node: Node, op_type: str) -> Dims | None:
    """Dims of a pool of the ONNX operator's kind."""
    return _asked(graph, node, op_type, (0,))


def _asked(graph: Graph, node: Node, op_type: str, places: Sequence[int]) -> Dims | None:
    """What onnx says of an operator with the node's window."""
    is_last = bool(integer(node, "channels_last")) or node.op_type == "NhwcMaxPool"
    types = {}
    for place in places:
        dims = graph.dims_of(node.input_at(place))
        if dims is None:
            return None
        if is_last and not place:
            dims = (dims[0], dims[-1], *dims[1:-1])
        types[f"in{place}"] = write_type(TensorType(_FLOAT, dims))
    proto = onnx.NodeProto(op_type=op_type, input=list(types), output=["out"])
    known = {"MaxPool": _WINDOW, "AveragePool": _WINDOW, "Conv": _WINDOW}.get(op_type, ())
    skipped = {
        "Conv": ("ceil_mode", "count_include_pad"),
        "MaxPool": ("group", "count_include_pad"),
    }
    names = [name for name in known if name not in skipped.get(op_type, ("group",))]
    proto.attribute.extend(node.attributes[name] for name in names if name in node.attributes)
    found = onnx_types(graph, proto, types).get("out")
    if not isinstance(found, TensorType) or found.dims is None:
        return None
    return (found.dims[0], *found.dims[2:], found.dims[1]) if is_last else found.dims


def upsampled(graph: Graph, node: Node) -> Dims | None:
    """Dims of the blocked Upsample: whole multiples."""
    dims = graph.dims_of(node.input_at(0))
    scales = list(node.attributes["scales"].ints) if "scales" in node.attributes else []
    if dims is None or len(dims) != len(scales):
        return None
    pairs = zip(dims, scales, strict=True)
    return tuple(_scaled(dim, scale) for dim, scale in pairs)


def _scaled(dim: int | str | None, scale: int) -> int | str | None:
    return dim * scale if isinstance(dim, int) else None


def reordered_in(graph: Graph, node: Node) -> Dims | None:
    """Dims of a value that goes into blocks, of which the last is filled up."""
    dims = graph.dims_of(node.input_at(0))
    if dims is None:
        return None
    if integer(node, "channels_last"):
        dims = (dims[0], dims[-1], *dims[1:-1])
    channels, block = dims[1], graph.cpu.channel_block
    padded = -(-channels // block) * block if isinstance(channels, int) else channels
    return (dims[0], padded, *dims[2:])


def reordered_out(graph: Graph, node: Node) -> Dims | None:
    """Dims of a value that leaves its blocks."""
    dims = graph.dims_of(node.input_at(0))
    if dims is None:
        return None
    channels = integer(node, "channels")
    is_last = integer(node, "channels_last")
    return (dims[0], *dims[2:], channels) if is_last else (dims[0], channels, *dims[2:])
