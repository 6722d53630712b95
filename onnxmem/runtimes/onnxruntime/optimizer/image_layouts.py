"""Layout passes for images on the CPU: blocked channels (NCHWc), and channels last (NHWC).

Convolutions and pools work on blocks of 8 or 16 channels if they can (``block_channels``). Their
outputs stay blocked as long as the nodes after them can read them. Integer convolutions get
channels last (``put_channels_last``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from onnxmem.runtimes.onnxruntime.optimizer.fusions.convolutions import activation_parameters
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node, execution_order
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    FLOAT,
    MICROSOFT,
    NCHWC,
    has_kernel,
    integer,
    integers,
    integers_of,
    is_op,
    number,
    put,
    rank_of,
    text,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import (
    NewNode,
    add_absent,
    add_array,
    add_node,
    swap_operator,
)
from onnxmem.runtimes.onnxruntime.optimizer.transpose_pushing import push_transposes
from onnxmem.runtimes.onnxruntime.optimizer.transposes import (
    inverse_perm,
    transpose_input,
    transpose_output,
)

# --------------------------------------------------------------------------------------------------
# Values in the blocked layout while a graph is transformed.
#
# onnxruntime/core/optimizer/nchwc_transformer.cc, ``NchwcArgument`` and its ``Shape``.


CHANNEL_ALIGNMENT = 4
"""The number of channels that ReorderInput reads must be a multiple of it."""
NUM_DIMS = 4

Origin = tuple[str, int]
"""The value that a dim comes from, and how often the dim was halved since.

Two values with equal origins have equal shapes, even if no dim is known.
"""
Origins = tuple[Origin, Origin, Origin, Origin]


@dataclass(slots=True)
class Blocked:
    """A value in the blocked layout (``NchwcArgument``)."""

    node: Node
    """The producer."""
    num_uses: int
    """Reads of the value in the graph before, plus one if it is a graph output."""
    num_plain_uses: int
    """How many of them still need the plain layout."""
    channels: int
    """Without the padding to whole blocks."""
    origins: Origins

    @property
    def name(self) -> str:
        """The name of the blocked value."""
        return self.node.outputs[0]


@dataclass(slots=True)
class Layout:
    """The state of the transformation of one graph (``NchwcTransformerImpl``).

    Nodes that are replaced stay in the graph until the end, because the plain values that they
    produce may still have readers.
    """

    graph: Graph
    block: int
    """Channels of a block: 8 or 16."""
    values: dict[str, Blocked] = field(default_factory=dict)
    """Blocked values by their name in the plain layout."""
    removed: list[Node] = field(default_factory=list)
    """Nodes to remove at the end."""
    reordered_inputs: dict[str, str] = field(default_factory=dict)
    """Outputs of the ReorderInput nodes by their plain input, which several readers share."""
    filters: dict[tuple[str, bool], str] = field(default_factory=dict)
    biases: dict[str, str] = field(default_factory=dict)
    targets: dict[tuple[int, bool], str] = field(default_factory=dict)
    """Targets of the Reshapes that split channels into blocks or merge them again."""
    from_channels_last: dict[str, Node] = field(default_factory=dict)
    """Transposes from channels last by their output."""

    def padded(self, channels: int) -> int:
        """The number of channels rounded up to whole blocks."""
        return -(-channels // self.block) * self.block

    def plain(self, name: str) -> Origins:
        """The origins of a value whose dims equal no other's."""
        origin = (name, 0)
        return origin, origin, origin, origin

    def take(self, name: str) -> Blocked:
        """Let one reader read a value in the blocked layout."""
        found = self.values[name]
        found.num_plain_uses -= 1
        return found

    def record(self, old: Node, new: Node, channels: int, origins: Origins) -> None:
        """Record that a new node produces the blocked output of an old one."""
        plain = old.outputs[0]
        uses = self._uses(old)
        reordered = self.graph.fresh_name("reorder")
        self.graph.set_outputs(new, [reordered])
        self.values[plain] = Blocked(new, uses, uses, channels, origins)
        if new is not old:
            self.removed.append(old)

    def fuse(self, old: Node, into: Blocked) -> None:
        """Record that a node was fused into the one before it."""
        uses = self._uses(old)
        self.values[old.outputs[0]] = Blocked(into.node, uses, uses, into.channels, into.origins)
        self.removed.append(old)

    def _uses(self, node: Node) -> int:
        return self.graph.num_edges(node) + self.graph.is_output(node)

    def in_blocks(self, name: str) -> tuple[str, Origins | None]:
        """The blocked value for a reader of a plain one; a ReorderInput is added if none exists."""
        if name in self.values:
            found = self.take(name)
            return found.name, found.origins
        if name not in self.reordered_inputs:
            self.reordered_inputs[name] = self._reorder(name)
        return self.reordered_inputs[name], None

    def _reorder(self, name: str) -> str:
        reordered = self.graph.fresh_name("reorder")
        transpose = self.from_channels_last.get(name)
        source = name if transpose is None else transpose.inputs[0]
        node_name = self.graph.fresh_node_name("ReorderInput")
        reorder = add_node(
            self.graph, NewNode("ReorderInput", [source], [reordered], NCHWC, node_name)
        )
        if transpose is not None:
            put(reorder, "channels_last", 1)
            self.removed.append(transpose)
        return reordered

    def finish(self) -> bool:
        """Add ReorderOutput nodes for readers of the plain layout, and remove replaced nodes.

        Source: ``NchwcTransformerImpl::Finalize``. It iterates over a table hashed by addresses, so
        the order in which onnxruntime adds these nodes, and then runs them, differs between
        processes. Here it is the order of their producers.
        """
        for name, found in self.values.items():
            if found.num_plain_uses > 0:
                node_name = self.graph.fresh_node_name("ReorderOutput")
                new = NewNode("ReorderOutput", [found.name], [], NCHWC, node_name)
                reorder = add_node(self.graph, new)
                put(reorder, "channels", found.channels)
                self.graph.set_outputs(reorder, [name])
        for node in dict.fromkeys(self.removed):
            self.graph.remove(node)
        return bool(self.removed)


# --------------------------------------------------------------------------------------------------
# Elementwise operators, Concat, BatchNormalization and Transpose of blocked values.
#
# onnxruntime/core/optimizer/nchwc_transformer.cc, ``TransformBinary``, ``TransformConcat``,
# ``TransformActivation``, ``TransformBatchNormalization`` and ``TransformTranspose``; products
# with constants and HardSwish as in onnxruntime 1.31.1.


_SUM_INPUT = 3
"""Index of the input that a blocked Conv adds to its result."""
_PAIR = 2
_TOLERANCE = 1e-6
_TO_CHANNELS_LAST = [0, 2, 3, 1]
_FROM_CHANNELS_LAST = [0, 3, 1, 2]


def transform_binary(layout: Layout, node: Node, *, is_sum: bool) -> None:
    """Add or multiply blocked values in the blocked layout, or fuse that into a convolution."""
    parts = [layout.values.get(name) for name in node.inputs]
    found = [part for part in parts if part is not None]
    if len(found) == 1 and not is_sum:
        _scale_channels(layout, node, found[0])
    # A plain operand would have to be reordered first, and blocks of other numbers of channels do
    # not match element by element.
    if len(found) != len(parts) or len({part.channels for part in found}) != 1:
        return
    if not is_sum and _fuse_hard_swish(layout, node, found):
        return
    # Without broadcasting the blocks are added as they are.
    names = list(node.inputs)
    if all(_same_shape(layout, names[0], name) for name in names[1:]):
        for name in names:
            layout.take(name)
        layout.graph.set_inputs(node, [part.name for part in found])
        if is_sum and len(found) == _PAIR and _fuse_sum(layout, node, found):
            return
        layout.record(node, node, found[0].channels, found[0].origins)
    # A product would be right as well, but most are by [N, C, 1, 1], for which onnxruntime's Mul is
    # slow over blocks: it keeps those in the plain layout.
    elif is_sum:
        _sum_by_reshaping(layout, node, found)


def _scale_channels(layout: Layout, node: Node, found: Blocked) -> None:
    """Replace a product with a constant per channel by a depthwise convolution."""
    graph, channels = layout.graph, found.channels
    name, factor = node.inputs if node.inputs[0] in layout.values else node.inputs[::-1]
    tensor = graph.constant(factor)
    if tensor is None or tensor.data_type != FLOAT:
        return
    if list(tensor.dims) not in ([channels, 1, 1], [1, channels, 1, 1]):
        return
    padded = layout.padded(channels)
    # A filter of one element per channel is the same product, and its kernel reads blocks.
    weight = add_absent(graph, graph.fresh_name("mul_scale"), FLOAT, [padded, 1, 1, 1])
    node_name = graph.fresh_node_name(f"{node.outputs[0]}_mul_nchwc")
    conv = add_node(graph, NewNode("Conv", [found.name, weight], (), NCHWC, node_name))
    put(conv, "group", padded)
    layout.take(name)
    layout.record(node, conv, channels, found.origins)


def _fuse_hard_swish(layout: Layout, node: Node, parts: Sequence[Blocked]) -> bool:
    """Fuse x * HardSigmoid(x) into the convolution that produces x, as its activation HardSwish.

    Measured on onnxruntime 1.31.1: not if the product is a graph output.
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
    # HardSwish(x) = x max(0, min(1, x / 6 + 1 / 2)): other slopes and offsets are no HardSwish.
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
    """Whether two blocked values are sure to have the same shape, by origins or by known dims."""
    first, second = layout.values[one].origins, layout.values[other].origins
    dims, others = layout.graph.dims_of(one), layout.graph.dims_of(other)
    for axis in range(NUM_DIMS):
        if first[axis] == second[axis]:
            continue
        if dims is None or others is None or dims[axis] is None or dims[axis] != others[axis]:
            return False
    return True


def _fuse_sum(layout: Layout, node: Node, parts: Sequence[Blocked]) -> bool:
    """Fuse a sum into the first operand that is a Conv without activation and with one reader."""
    for part, other in zip(parts, reversed(parts), strict=True):
        conv = part.node
        is_free = len(conv.inputs) <= _SUM_INPUT and "activation" not in conv.attributes
        # The first operand that can take the other one: a Conv adds its fourth input before it
        # applies an activation, so one that has an activation already cannot.
        if conv.op_type == "Conv" and conv.domain == NCHWC and is_free and part.num_uses == 1:
            layout.graph.set_input(conv, _SUM_INPUT, other.name)
            layout.fuse(node, part)
            return True
    return False


def _sum_by_reshaping(layout: Layout, node: Node, parts: Sequence[Blocked]) -> None:
    """Add values that may broadcast: a Reshape makes the blocks a dim of their own, and back."""
    graph, channels = layout.graph, parts[0].channels
    names = list(node.inputs)
    inputs = []
    for name, part in zip(names, parts, strict=True):
        # With [N, C / block, H, W, block], dims of 1 broadcast as in the plain layout.
        split = graph.fresh_name("reshape")
        _add_reshape(layout, part.name, split, channels, is_split=True)
        layout.take(name)
        inputs.append(split)
    plain = node.outputs[0]
    uses = graph.num_edges(node) + graph.is_output(node)
    total = graph.fresh_name("reshape")
    merged = _add_reshape(layout, total, "", channels, is_split=False)
    graph.set_inputs(node, inputs)
    graph.set_outputs(node, [total])
    graph.set_outputs(merged, [graph.fresh_name("reorder")])
    layout.values[plain] = Blocked(merged, uses, uses, channels, layout.plain(plain))


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
    """Concatenate blocked values along the channels, if each has whole blocks."""
    found = [layout.values[name] for name in node.inputs if name in layout.values]
    if integer(node, "axis") != 1 or len(found) != len(node.inputs):
        return
    # Padding within a part would otherwise end up between its channels and those of the next.
    if any(part.channels % layout.block for part in found):
        return
    for name in node.inputs:
        layout.take(name)
    layout.graph.set_inputs(node, [part.name for part in found])
    batch, _, height, width = found[0].origins
    origins = (batch, (node.outputs[0], 0), height, width)
    layout.record(node, node, sum(part.channels for part in found), origins)


def transform_activation(layout: Layout, node: Node) -> None:
    """Fuse an activation into the Conv before it, if it is its only reader, or keep it blocked."""
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
    """Replace a BatchNormalization by a depthwise convolution."""
    graph = layout.graph
    found = layout.values.get(node.inputs[0])
    if found is None or len(node.outputs) > 1 or integer(node, "spatial", 1) != 1:
        return
    for name in node.inputs[1:]:
        tensor = graph.constant(name)
        if tensor is None or tensor.data_type != FLOAT or list(tensor.dims) != [found.channels]:
            return
    padded = layout.padded(found.channels)
    # y = x s + (B - mean s) with s = scale / sqrt(var + epsilon): a filter of one element per
    # channel and a bias.
    weight = add_absent(graph, graph.fresh_name("bn_scale"), FLOAT, [padded, 1, 1, 1])
    bias = add_absent(graph, graph.fresh_name("bn_B"), FLOAT, [padded])
    name = graph.fresh_node_name(f"{node.outputs[0]}_bn_nchwc")
    conv = add_node(graph, NewNode("Conv", [found.name, weight, bias], (), NCHWC, name))
    put(conv, "group", padded)
    layout.take(node.inputs[0])
    layout.record(node, conv, found.channels, found.origins)


def transform_transpose(layout: Layout, node: Node) -> None:
    """Replace a Transpose to channels last by ReorderOutput, and one from them by ReorderInput."""
    graph, perm = layout.graph, integers(node, "perm")
    if perm == _FROM_CHANNELS_LAST:
        _record_from_channels_last(layout, node)
    if perm != _TO_CHANNELS_LAST or node.inputs[0] not in layout.values:
        return
    found = layout.take(node.inputs[0])
    name = graph.fresh_node_name("ReorderOutput")
    reorder = add_node(graph, NewNode("ReorderOutput", [found.name], (), NCHWC, name))
    put(reorder, "channels", found.channels)
    put(reorder, "channels_last", 1)
    graph.set_outputs(reorder, list(node.outputs))
    layout.removed.append(node)


def _record_from_channels_last(layout: Layout, node: Node) -> None:
    """Record a Transpose with one reader, which can do without it if it needs a ReorderInput."""
    graph = layout.graph
    if not graph.is_output(node) and graph.num_edges(node) == 1:
        layout.from_channels_last[node.outputs[0]] = node


# --------------------------------------------------------------------------------------------------
# Convolutions and pools in the blocked layout.
#
# onnxruntime/core/optimizer/nchwc_transformer.cc, ``TransformConv``, ``TransformPool`` and
# ``ConvPoolShapeInference``.


_BIAS = 2


def transform_conv(layout: Layout, node: Node) -> None:
    """Replace a two-dimensional Conv of floats with constant weights."""
    graph = layout.graph
    dims = _constant_dims(graph, node.inputs[1])
    form = None if dims is None or len(dims) != NUM_DIMS else _form(layout, node, dims)
    if dims is None or form is None:
        return
    reads_blocks, filter_channels, is_oihwbo = form
    bias = node.input_at(_BIAS)
    if bias and _constant_dims(graph, bias) != (dims[0],):
        return
    padded = layout.padded(dims[0])
    # Convolutions that share a weight share its reordered copy: its bytes count once.
    key = (node.inputs[1], is_oihwbo)
    if key not in layout.filters:
        shape = (padded, filter_channels, *dims[2:])
        layout.filters[key] = add_absent(graph, graph.fresh_name("reorder"), FLOAT, shape)
    inputs = [node.inputs[0], layout.filters[key], *node.inputs[2:]]
    if bias and padded != dims[0]:
        inputs[_BIAS] = _padded_bias(layout, bias, padded)
    conv = _blocked_node(layout, node, "Conv", inputs)
    if is_oihwbo and reads_blocks:
        put(conv, "group", padded)
    origins = layout.plain(node.outputs[0])
    if reads_blocks:
        # A kernel that reads blocks takes the blocked value, or has its input reordered; one that
        # reads few channels in the plain layout only writes blocks.
        name, before = layout.in_blocks(node.inputs[0])
        graph.set_input(conv, 0, name)
        if before is not None:
            origins = window_origins(node, before, origins, dims[2:])
    layout.record(node, conv, dims[0], origins)


def _padded_bias(layout: Layout, bias: str, size: int) -> str:
    if bias not in layout.biases:
        name = layout.graph.fresh_name("reorder")
        layout.biases[bias] = add_absent(layout.graph, name, FLOAT, [size])
    return layout.biases[bias]


def _form(layout: Layout, node: Node, dims: Sequence[int]) -> tuple[bool, int, bool] | None:
    """Whether the input must be blocked, the filter's input channels, and the filter's layout.

    The layout is OIHWBo (true) or OIHWBiBo (false). ``None`` if the numbers of channels allow no
    blocked kernel.
    """
    outputs, inputs, groups = dims[0], dims[1], integer(node, "group", 1)
    if groups > 1:
        if inputs == 1 and outputs == groups:
            return None if outputs % CHANNEL_ALIGNMENT else (True, inputs, True)
        per_group = outputs // groups
        if inputs % layout.block or outputs % groups or per_group % layout.block:
            return None
        return True, inputs, False
    # Few input channels, as of the first convolution, are read in the plain layout.
    if inputs < layout.block:
        return False, inputs, True
    if inputs % CHANNEL_ALIGNMENT:
        return None
    return True, layout.padded(inputs), False


def _constant_dims(graph: Graph, name: str) -> tuple[int, ...] | None:
    """The dims of a float constant of this very graph; ``None`` for one of an outer graph."""
    tensor = graph.constant(name) if name in graph.initializers else None
    is_float = tensor is not None and tensor.data_type == FLOAT
    return tuple(tensor.dims) if tensor is not None and is_float else None


def _blocked_node(layout: Layout, node: Node, op_type: str, inputs: Sequence[str]) -> Node:
    name = layout.graph.fresh_node_name(f"{node.outputs[0]}_nchwc")
    return add_node(
        layout.graph, NewNode(op_type, list(inputs), (), NCHWC, name, dict(node.attributes))
    )


def transform_pool(layout: Layout, node: Node) -> None:
    """Replace a two-dimensional pool of floats with a known number of channels."""
    graph = layout.graph
    dims = graph.dims_of(node.inputs[0])
    if len(node.outputs) > 1 or graph.elem_type_of(node.inputs[0]) != FLOAT:
        return
    if dims is None or len(dims) != NUM_DIMS:
        return
    channels = dims[1]
    if not isinstance(channels, int) or channels % layout.block:
        return
    # A pool has no weights that could be padded: it needs whole blocks, and their number at load.
    pool = _blocked_node(layout, node, node.op_type, node.inputs)
    origins = layout.plain(node.outputs[0])
    name, before = layout.in_blocks(node.inputs[0])
    graph.set_input(pool, 0, name)
    if before is not None:
        origins = window_origins(node, before, origins, integers(node, "kernel_shape"))
    layout.record(node, pool, channels, origins)


def window_origins(
    node: Node, before: Origins, own: Origins, kernel: Sequence[int] | None
) -> Origins:
    """The origins of dims after a window: unchanged at stride 1, halved at stride 2."""
    if kernel is None:
        return own
    pads, strides, dilations = (integers(node, n) for n in ("pads", "strides", "dilations"))
    padding_mode = text(node, "auto_pad", "NOTSET")
    is_same = padding_mode.startswith("SAME")
    spatial = []
    for axis in range(NUM_DIMS - 2):
        stride = strides[axis] if strides else 1
        # With padding of kernel - 1 elements, or SAME, there are ceil(size / stride) windows
        # whatever the size is, so equal dims remain equal. Any other window makes a dim of its own.
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


# --------------------------------------------------------------------------------------------------
# Resize of blocked values, by integer scales of height and width.
#
# onnxruntime/core/optimizer/nchwc_transformer.cc, ``TransformResize``.


_SCALES, _SIZES = 2, 3
_RESIZE_READS_REGION = 11


def transform_resize(layout: Layout, node: Node) -> None:
    """Replace a Resize with integer scales by the blocked Upsample."""
    found = layout.values.get(node.inputs[0])
    scales = None if found is None else _whole_scales(layout, node)
    if found is None or scales is None:
        return
    graph = layout.graph
    name = graph.fresh_node_name(f"{node.outputs[0]}_nchwc")
    upsample = add_node(graph, NewNode("Upsample", [found.name], (), NCHWC, name))
    put(upsample, "scales", scales)
    if text(node, "mode") == "linear":
        put(upsample, "mode", "linear")
        mode = text(node, "coordinate_transformation_mode", "asymmetric")
        put(upsample, "coordinate_transformation_mode", mode)
    layout.take(node.inputs[0])
    layout.record(node, upsample, found.channels, layout.plain(node.outputs[0]))


def _whole_scales(layout: Layout, node: Node) -> list[int] | None:
    input_index = 1
    if node.op_type == "Resize" and node.since_version >= _RESIZE_READS_REGION:
        if not _is_supported_mode(node):
            return None
        if node.input_at(_SIZES):
            return _scales_to(layout, node)
        input_index = _SCALES
    values = layout.graph.array(node.input_at(input_index)) if node.input_at(input_index) else None
    if values is None or values.dtype != np.float32 or values.shape != (NUM_DIMS,):
        return None
    return _whole([float(value) for value in values])


def _scales_to(layout: Layout, node: Node) -> list[int] | None:
    """Scales from the requested sizes; ``None`` if they or the input's dims are unknown."""
    sizes = integers_of(layout.graph, node.inputs[_SIZES])
    dims = layout.graph.dims_of(node.inputs[0])
    if sizes is None or dims is None or len(sizes) != len(dims) or len(dims) != NUM_DIMS:
        return None
    known = [dim for dim in dims if isinstance(dim, int) and dim > 0]
    if len(known) != NUM_DIMS:
        return None
    return _whole([size / dim for size, dim in zip(sizes, known, strict=True)])


def _whole(scales: list[float]) -> list[int] | None:
    whole = [int(scale) for scale in scales]
    is_whole = all(s > 0 and float(s) == scale for s, scale in zip(whole, scales, strict=True))
    return whole if is_whole and whole[:2] == [1, 1] else None


def _is_supported_mode(node: Node) -> bool:
    mode, transformation = text(node, "mode"), text(node, "coordinate_transformation_mode")
    if mode == "nearest":
        return transformation == "asymmetric" and text(node, "nearest_mode") == "floor"
    is_known = transformation in {"asymmetric", "align_corners", "half_pixel"}
    return mode == "linear" and is_known


# --------------------------------------------------------------------------------------------------
# The pass itself, in order of execution.
#
# onnxruntime/core/optimizer/nchwc_transformer.cc, ``NchwcTransformerImpl::Transform``.


_POOLS = {"MaxPool": {1, 8, 10, 11, 12, 22}, "AveragePool": {1, 7, 10, 11, 19, 22}}
_ACTIVATIONS = frozenset({"Relu", "Sigmoid", "Tanh", "HardSigmoid", "Gelu", "QuickGelu"})
"""Those of onnxruntime 1.31.1; the first four can be fused into a convolution."""


def block_channels(graph: Graph, block: int) -> bool:
    """Transform a graph and its subgraphs to the blocked layout.

    :param block: channels of a block, 8 with AVX2 and 16 with AVX-512.
    """
    layout = Layout(graph, block)
    changed = False
    for node in execution_order(graph):
        for body in node.bodies.values():
            changed |= block_channels(body, block)
        if has_kernel(graph, node):
            _transform(layout, node)
    return layout.finish() or changed


def _transform(layout: Layout, node: Node) -> None:
    if is_op(node, "Conv", {1, 11, 22}) or is_op(node, "FusedConv", {1}, MICROSOFT):
        transform_conv(layout, node)
    elif node.op_type in _ACTIVATIONS and node.domain in ("", MICROSOFT):
        transform_activation(layout, node)
    elif node.domain:
        return
    elif node.op_type in _POOLS and node.since_version in _POOLS[node.op_type]:
        transform_pool(layout, node)
    elif node.op_type == "Transpose":
        transform_transpose(layout, node)
    elif not any(_is_plain_result(layout, name) for name in node.inputs):
        _transform_reader(layout, node)


def _is_plain_result(layout: Layout, name: str) -> bool:
    """Whether a node produces a value in the plain layout."""
    producer = layout.graph.producers.get(name)
    return producer is not None and producer.domain != NCHWC and name not in layout.values


def _transform_reader(layout: Layout, node: Node) -> None:
    """Transform a node if no node produces one of its inputs in the plain layout.

    onnxruntime gets here once all input edges of a node are gone. Most of these transformations
    need a blocked input; a global pool reorders a graph input too.
    """
    if node.op_type in {"Add", "Sum"}:
        transform_binary(layout, node, is_sum=True)
    elif node.op_type == "Mul":
        transform_binary(layout, node, is_sum=False)
    elif node.op_type == "Concat":
        transform_concat(layout, node)
    elif node.op_type == "BatchNormalization":
        transform_batch_norm(layout, node)
    elif node.op_type in {"Resize", "Upsample"}:
        transform_resize(layout, node)
    elif node.op_type in {"GlobalMaxPool", "GlobalAveragePool"}:
        transform_pool(layout, node)


# --------------------------------------------------------------------------------------------------
# Integer convolutions get channels last and Transposes around them, which are then pushed together.
#
# onnxruntime/core/optimizer/nhwc_transformer.cc (``NhwcTransformer``). Float and half precision
# convolutions get channels last on some ARM processors only, which is not emulated.


def put_channels_last(graph: Graph) -> bool:
    """Transform every QLinearConv of known rank, also in subgraphs."""
    changed = moved = False
    for node in execution_order(graph):
        for body in node.bodies.values():
            changed |= put_channels_last(body)
        if node.op_type == "QLinearConv" and not integer(node, "channels_last"):
            moved |= _transform_channels_last(graph, node)
    if moved:
        push_transposes(graph, is_assigned=True)
    return moved or changed


def _transform_channels_last(graph: Graph, node: Node) -> bool:
    rank = rank_of(graph, node.inputs[0])
    if rank is None:
        return False
    put(node, "channels_last", 1)
    perm = (0, *range(2, rank), 1)
    transpose_input(graph, node, 0, perm)
    transpose_output(graph, node, 0, inverse_perm(perm))
    if not node.domain:
        swap_operator(graph, node, "QLinearConv")
    return True
