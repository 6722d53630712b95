"""Convolutions and poolings in blocks.

Source: onnxruntime/core/optimizer/nchwc_transformer.cc, ``TransformConv``, ``TransformPool`` and
``ConvPoolShapeInference``.
"""

from collections.abc import Sequence

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, integers, put, text
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import FLOAT, NCHWC
from onnxmem.runtimes.onnxruntime.optimizer.nchwc.layout import (
    CHANNEL_ALIGNMENT,
    NUM_DIMS,
    Layout,
    Origins,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_absent, add_node

_BIAS = 2


def transform_conv(layout: Layout, node: Node) -> None:
    """Replace a two-dimensional Conv of floats with constant weights."""
    graph = layout.graph
    dims = _constant_dims(graph, node.inputs[1])
    form = None if dims is None or len(dims) != NUM_DIMS else _form(layout, node, dims)
    if dims is None or form is None:
        return
    reads_blocks, filter_channels, is_depthwise_like = form
    bias = node.input_at(_BIAS)
    if bias and _constant_dims(graph, bias) != (dims[0],):
        return
    padded = layout.padded(dims[0])
    key = (node.inputs[1], is_depthwise_like)
    if key not in layout.filters:
        shape = (padded, filter_channels, *dims[2:])
        layout.filters[key] = add_absent(graph, graph.fresh_name("reorder"), FLOAT, shape)
    inputs = [node.inputs[0], layout.filters[key], *node.inputs[2:]]
    if bias and padded != dims[0]:
        inputs[_BIAS] = _padded_bias(layout, bias, padded)
    made = _blocked_node(layout, node, "Conv", inputs)
    if is_depthwise_like and reads_blocks:
        put(made, "group", padded)
    origins = layout.plain(node.outputs[0])
    if reads_blocks:
        name, before = layout.in_blocks(node.inputs[0])
        graph.set_input(made, 0, name)
        if before is not None:
            origins = window_origins(node, before, origins, dims[2:])
    layout.record(node, made, dims[0], origins)


def _padded_bias(layout: Layout, bias: str, size: int) -> str:
    if bias not in layout.biases:
        name = layout.graph.fresh_name("reorder")
        layout.biases[bias] = add_absent(layout.graph, name, FLOAT, [size])
    return layout.biases[bias]


def _form(layout: Layout, node: Node, dims: Sequence[int]) -> tuple[bool, int, bool] | None:
    """Whether the input is read in blocks, the filter's input channels, and its kind."""
    outputs, inputs, groups = dims[0], dims[1], integer(node, "group", 1)
    if groups > 1:
        if inputs == 1 and outputs == groups:
            return None if outputs % CHANNEL_ALIGNMENT else (True, inputs, True)
        per_group = outputs // groups
        if inputs % layout.block or outputs % groups or per_group % layout.block:
            return None
        return True, inputs, False
    if inputs < layout.block:
        return False, inputs, True
    if inputs % CHANNEL_ALIGNMENT:
        return None
    return True, layout.padded(inputs), False


def _constant_dims(graph: Graph, name: str) -> tuple[int, ...] | None:
    """The dims of a constant of floats in this very graph: one of an outer graph doesn't count."""
    tensor = graph.constant(name) if name in graph.initializers else None
    is_float = tensor is not None and tensor.data_type == FLOAT
    return tuple(tensor.dims) if tensor is not None and is_float else None


def _blocked_node(layout: Layout, node: Node, op_type: str, inputs: Sequence[str]) -> Node:
    name = layout.graph.fresh_node_name(f"{node.outputs[0]}_nchwc")
    return add_node(
        layout.graph, NewNode(op_type, list(inputs), (), NCHWC, name, dict(node.attributes))
    )


def transform_pool(layout: Layout, node: Node) -> None:
    """Replace a two-dimensional pooling of floats whose channels are known."""
    graph = layout.graph
    dims = graph.dims_of(node.inputs[0])
    if len(node.outputs) > 1 or graph.elem_type_of(node.inputs[0]) != FLOAT:
        return
    if dims is None or len(dims) != NUM_DIMS:
        return
    channels = dims[1]
    if not isinstance(channels, int) or channels % layout.block:
        return
    made = _blocked_node(layout, node, node.op_type, node.inputs)
    origins = layout.plain(node.outputs[0])
    name, before = layout.in_blocks(node.inputs[0])
    graph.set_input(made, 0, name)
    if before is not None:
        origins = window_origins(node, before, origins, integers(node, "kernel_shape"))
    layout.record(node, made, channels, origins)


def window_origins(
    node: Node, before: Origins, own: Origins, kernel: Sequence[int] | None
) -> Origins:
    """Where the dims come from after a window: kept at stride 1, halved at stride 2."""
    if kernel is None:
        return own
    pads, strides, dilations = (integers(node, n) for n in ("pads", "strides", "dilations"))
    padding_mode = text(node, "auto_pad", "NOTSET")
    is_same = padding_mode.startswith("SAME")
    spatial = []
    for axis in range(NUM_DIMS - 2):
        stride = strides[axis] if strides else 1
        is_plain = (not dilations or dilations[axis] == 1) and stride in (1, 2)
        padding = 0
        if pads and padding_mode == "NOTSET":
            padding = pads[axis] + pads[axis + NUM_DIMS - 2]
        if is_plain and (padding + 1 == kernel[axis] or is_same):
            name, shifts = before[2 + axis]
            spatial.append((name, shifts + stride - 1))
        else:
            spatial.append(own[2 + axis])
    return before[0], own[1], spatial[0], spatial[1]
