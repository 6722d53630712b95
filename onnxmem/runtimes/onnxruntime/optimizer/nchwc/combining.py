"""Sums, products, concatenations, activations and the like on values in blocks.

Source: onnxruntime/core/optimizer/nchwc_transformer.cc, ``TransformBinary``, ``TransformConcat``,
``TransformActivation``, ``TransformBatchNormalization`` and ``TransformTranspose``; products with
constants and HardSwish as onnxruntime 1.31.1 does them.
"""

from collections.abc import Sequence

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.attributes import integer, integers, number, put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import FLOAT, NCHWC
from onnxmem.runtimes.onnxruntime.optimizer.nchwc.layout import NUM_DIMS, Blocked, Layout
from onnxmem.runtimes.onnxruntime.optimizer.passes.conv_activation import activation_parameters
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    NewNode,
    add_absent,
    add_array,
    add_node,
)

_SUM_INPUT = 3
"""Place at which a convolution in blocks takes what is added to its result."""
_PAIR = 2
_TOLERANCE = 1e-6
_TO_CHANNELS_LAST = [0, 2, 3, 1]
_FROM_CHANNELS_LAST = [0, 3, 1, 2]


def transform_binary(layout: Layout, node: Node, *, is_sum: bool) -> None:
    """An elementwise operation on blocks of equal shape; a sum may go into a convolution."""
    parts = [layout.values.get(name) for name in node.inputs]
    found = [part for part in parts if part is not None]
    if len(found) == 1 and not is_sum:
        _scale_channels(layout, node, found[0])
    if len(found) != len(parts) or len({part.channels for part in found}) != 1:
        return
    if not is_sum and _fuse_hard_swish(layout, node, found):
        return
    names = list(node.inputs)
    if all(_same_shape(layout, names[0], name) for name in names[1:]):
        for name in names:
            layout.take(name)
        layout.graph.set_inputs(node, [part.name for part in found])
        if is_sum and len(found) == _PAIR and _fuse_sum(layout, node, found):
            return
        layout.record(node, node, found[0].channels, found[0].origins)
    elif is_sum:
        _sum_by_reshaping(layout, node, found)


def _scale_channels(layout: Layout, node: Node, found: Blocked) -> None:
    """A product with a constant per channel becomes a convolution of each channel by itself."""
    graph, channels = layout.graph, found.channels
    name, factor = node.inputs if node.inputs[0] in layout.values else node.inputs[::-1]
    tensor = graph.constant(factor)
    if tensor is None or tensor.data_type != FLOAT:
        return
    if list(tensor.dims) not in ([channels, 1, 1], [1, channels, 1, 1]):
        return
    padded = layout.padded(channels)
    weight = add_absent(graph, graph.fresh_name("mul_scale"), FLOAT, [padded, 1, 1, 1])
    node_name = graph.fresh_node_name(f"{node.outputs[0]}_mul_nchwc")
    made = add_node(graph, NewNode("Conv", [found.name, weight], (), NCHWC, node_name))
    put(made, "group", padded)
    layout.take(name)
    layout.record(node, made, channels, found.origins)


def _fuse_hard_swish(layout: Layout, node: Node, parts: Sequence[Blocked]) -> bool:
    """A product x * HardSigmoid(x) on a convolution's result becomes its activation.

    Measured on onnxruntime 1.31.1: not where the product is a graph output.
    """
    if len(parts) != _PAIR or layout.graph.is_output(node):
        return False
    gate = next((part for part in parts if part.node.op_type == "HardSigmoid"), None)
    conv = next((part for part in parts if part.node.op_type == "Conv"), None)
    if gate is None or conv is None or conv.node.domain != NCHWC:
        return False
    is_same = gate.node.inputs[0] == conv.name
    is_only_use = (gate.num_uses, conv.num_uses) == (1, _PAIR)
    if not is_same or not is_only_use or "activation" in conv.node.attributes:
        return False
    slope, offset = number(gate.node, "alpha"), number(gate.node, "beta")
    if abs(slope - 1 / 6) > _TOLERANCE or abs(offset - 0.5) > _TOLERANCE:
        return False
    for name in node.inputs:
        layout.take(name)
    put(conv.node, "activation", "HardSwish")
    layout.removed.append(gate.node)
    layout.fuse(node, conv)
    return True


def _same_shape(layout: Layout, one: str, other: str) -> bool:
    first, second = layout.values[one].origins, layout.values[other].origins
    dims, others = layout.graph.dims_of(one), layout.graph.dims_of(other)
    for axis in range(NUM_DIMS):
        if first[axis] == second[axis]:
            continue
        if dims is None or others is None or dims[axis] is None or dims[axis] != others[axis]:
            return False
    return True


def _fuse_sum(layout: Layout, node: Node, parts: Sequence[Blocked]) -> bool:
    for part, other in zip(parts, reversed(parts), strict=True):
        conv = part.node
        is_free = len(conv.inputs) <= _SUM_INPUT and "activation" not in conv.attributes
        if conv.op_type == "Conv" and conv.domain == NCHWC and is_free and part.num_uses == 1:
            layout.graph.set_input(conv, _SUM_INPUT, other.name)
            layout.fuse(node, part)
            return True
    return False


def _sum_by_reshaping(layout: Layout, node: Node, parts: Sequence[Blocked]) -> None:
    """Shapes that may differ: the blocks become a dim of their own, and of the sum's again."""
    graph, channels = layout.graph, parts[0].channels
    names = list(node.inputs)
    inputs = []
    for name, part in zip(names, parts, strict=True):
        split = graph.fresh_name("reshape")
        _add_reshape(layout, part.name, split, channels, is_split=True)
        layout.take(name)
        inputs.append(split)
    plain = node.outputs[0]
    uses = graph.num_edges(node) + graph.is_output(node)
    total = graph.fresh_name("reshape")
    joined = _add_reshape(layout, total, "", channels, is_split=False)
    graph.set_inputs(node, inputs)
    graph.set_outputs(node, [total])
    graph.set_outputs(joined, [graph.fresh_name("reorder")])
    layout.values[plain] = Blocked(joined, uses, uses, channels, layout.plain(plain))


def _add_reshape(
    layout: Layout, source: str, target: str, channels: int, *, is_split: bool
) -> Node:
    graph, padded = layout.graph, layout.padded(channels)
    key = (padded, is_split)
    if key not in layout.targets:
        dims = [0, padded // layout.block, 0, 0, layout.block] if is_split else [0, padded, 0, 0]
        name = graph.fresh_name("Reshape")
        layout.targets[key] = add_array(graph, name, np.array(dims, np.int64))
    outputs = [target] if target else []
    inputs = [source, layout.targets[key]]
    name = graph.fresh_node_name("Reshape")
    return add_node(graph, NewNode("Reshape", inputs, outputs, "", name))


def transform_concat(layout: Layout, node: Node) -> None:
    """A concatenation of channels of whole blocks."""
    found = [layout.values[name] for name in node.inputs if name in layout.values]
    if integer(node, "axis") != 1 or len(found) != len(node.inputs):
        return
    if any(part.channels % layout.block for part in found):
        return
    for name in node.inputs:
        layout.take(name)
    layout.graph.set_inputs(node, [part.name for part in found])
    batch, _, height, width = found[0].origins
    origins = (batch, (node.outputs[0], 0), height, width)
    layout.record(node, node, sum(part.channels for part in found), origins)


def transform_activation(layout: Layout, node: Node) -> None:
    """An activation goes into the convolution that it alone reads, or works on blocks."""
    if node.inputs[0] not in layout.values:
        return
    found = layout.take(node.inputs[0])
    parameters = activation_parameters(layout.graph, node)
    layout.graph.set_input(node, 0, found.name)
    conv = found.node
    is_conv = conv.op_type == "Conv" and conv.domain == NCHWC and parameters is not None
    if is_conv and found.num_uses == 1 and "activation" not in conv.attributes:
        put(conv, "activation", node.op_type)
        if parameters:
            put(conv, "activation_params", parameters)
        layout.fuse(node, found)
    else:
        layout.record(node, node, found.channels, found.origins)


def transform_batch_norm(layout: Layout, node: Node) -> None:
    """A normalisation becomes a convolution of each channel by itself."""
    graph = layout.graph
    found = layout.values.get(node.inputs[0])
    if found is None or len(node.outputs) > 1 or integer(node, "spatial", 1) != 1:
        return
    for name in node.inputs[1:]:
        tensor = graph.constant(name)
        if tensor is None or tensor.data_type != FLOAT or list(tensor.dims) != [found.channels]:
            return
    padded = layout.padded(found.channels)
    weight = add_absent(graph, graph.fresh_name("bn_scale"), FLOAT, [padded, 1, 1, 1])
    bias = add_absent(graph, graph.fresh_name("bn_B"), FLOAT, [padded])
    name = graph.fresh_node_name(f"{node.outputs[0]}_bn_nchwc")
    made = add_node(graph, NewNode("Conv", [found.name, weight, bias], (), NCHWC, name))
    put(made, "group", padded)
    layout.take(node.inputs[0])
    layout.record(node, made, found.channels, found.origins)


def transform_transpose(layout: Layout, node: Node) -> None:
    """To channels-last: ReorderOutput does it; from channels-last: ReorderInput may."""
    graph, order = layout.graph, integers(node, "perm")
    if order == _FROM_CHANNELS_LAST:
        layout_from_channels_last(layout, node)
    if order != _TO_CHANNELS_LAST or node.inputs[0] not in layout.values:
        return
    found = layout.take(node.inputs[0])
    name = graph.fresh_node_name("ReorderOutput")
    made = add_node(graph, NewNode("ReorderOutput", [found.name], (), NCHWC, name))
    put(made, "channels", found.channels)
    put(made, "channels_last", 1)
    graph.set_outputs(made, list(node.outputs))
    layout.removed.append(node)


def layout_from_channels_last(layout: Layout, node: Node) -> None:
    """Remember a Transpose that one node reads."""
    graph = layout.graph
    if not graph.is_output(node) and graph.num_edges(node) == 1:
        layout.from_channels_last[node.outputs[0]] = node
