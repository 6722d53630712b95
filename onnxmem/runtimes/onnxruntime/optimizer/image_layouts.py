"""Layouts of images for the CPU's kernels: channels in blocks, and channels last.

A convolution or pooling that can work on blocks of 8 or 16 channels does (``block_channels``); its
results stay in blocks as far as the nodes behind can read them so. Integer convolutions get their
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
    inverse,
    transpose_input,
    transpose_output,
)

# --------------------------------------------------------------------------------------------------
# What is known of values in blocks while a graph is transformed.
#
# onnxruntime/core/optimizer/nchwc_transformer.cc, ``NchwcArgument`` and its ``Shape``.


CHANNEL_ALIGNMENT = 4
"""ReorderInput takes channels in fours."""
NUM_DIMS = 4

Origin = tuple[str, int]
"""The value that a dim comes from, and how often it was halved since."""
Origins = tuple[Origin, Origin, Origin, Origin]


@dataclass(slots=True)
class Blocked:
    """A value that some node makes in blocks."""

    node: Node
    """The node that makes it."""
    num_uses: int
    """Uses of the value in its plain layout, the graph output counted as one."""
    num_plain_uses: int
    """Those of them that still want the plain layout."""
    channels: int
    """Without the padding up to whole blocks."""
    origins: Origins

    @property
    def name(self) -> str:
        """The value in blocks."""
        return self.node.outputs[0]


@dataclass(slots=True)
class Layout:
    """A graph on its way to blocks."""

    graph: Graph
    block: int
    """Channels of a block: 8 or 16."""
    values: dict[str, Blocked] = field(default_factory=dict)
    """Values in blocks by their plain name."""
    removed: list[Node] = field(default_factory=list)
    """Nodes to take out at the end."""
    reordered_inputs: dict[str, str] = field(default_factory=dict)
    filters: dict[tuple[str, bool], str] = field(default_factory=dict)
    biases: dict[str, str] = field(default_factory=dict)
    targets: dict[tuple[int, bool], str] = field(default_factory=dict)
    """Targets of the Reshapes that split channels into blocks or join them again."""
    from_channels_last: dict[str, Node] = field(default_factory=dict)
    """Transposes from channels-last values by what they write."""

    def padded(self, channels: int) -> int:
        """Channels in whole blocks."""
        return -(-channels // self.block) * self.block

    def plain(self, name: str) -> Origins:
        """The dims of a value that come from nowhere else."""
        origin = (name, 0)
        return origin, origin, origin, origin

    def take(self, name: str) -> Blocked:
        """Use a value in blocks once."""
        found = self.values[name]
        found.num_plain_uses -= 1
        return found

    def record(self, old: Node, new: Node, channels: int, origins: Origins) -> None:
        """Note that a node makes in blocks what another made plain."""
        plain = old.outputs[0]
        uses = self._uses(old)
        reordered = self.graph.fresh_name("reorder")
        self.graph.set_outputs(new, [reordered])
        self.values[plain] = Blocked(new, uses, uses, channels, origins)
        if new is not old:
            self.removed.append(old)

    def fuse(self, old: Node, into: Blocked) -> None:
        """Note that a node's work is done by the one before it."""
        uses = self._uses(old)
        self.values[old.outputs[0]] = Blocked(into.node, uses, uses, into.channels, into.origins)
        self.removed.append(old)

    def _uses(self, node: Node) -> int:
        return self.graph.num_edges(node) + self.graph.is_output(node)

    def in_blocks(self, name: str) -> tuple[str, Origins | None]:
        """A plain value for a node that reads blocks, reordered if no node makes it so."""
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
        made = add_node(
            self.graph, NewNode("ReorderInput", [source], [reordered], NCHWC, node_name)
        )
        if transpose is not None:
            put(made, "channels_last", 1)
            self.removed.append(transpose)
        return reordered

    def finish(self) -> bool:
        """Give plain readers their layout back, and remove what is replaced.

        onnxruntime walks a table hashed by addresses here, so the order in which it adds these
        nodes, and hence runs them, differs from one process to the next; here it is theirs.
        """
        for name, found in self.values.items():
            if found.num_plain_uses > 0:
                node_name = self.graph.fresh_node_name("ReorderOutput")
                new = NewNode("ReorderOutput", [found.name], [], NCHWC, node_name)
                made = add_node(self.graph, new)
                put(made, "channels", found.channels)
                self.graph.set_outputs(made, [name])
        for node in dict.fromkeys(self.removed):
            self.graph.remove(node)
        return bool(self.removed)


# --------------------------------------------------------------------------------------------------
# Sums, products, concatenations, activations and the like on values in blocks.
#
# onnxruntime/core/optimizer/nchwc_transformer.cc, ``TransformBinary``, ``TransformConcat``,
# ``TransformActivation``, ``TransformBatchNormalization`` and ``TransformTranspose``; products
# with constants and HardSwish as onnxruntime 1.31.1 does them.


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
    """A normalization becomes a convolution of each channel by itself."""
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


# --------------------------------------------------------------------------------------------------
# Convolutions and poolings in blocks.
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


# --------------------------------------------------------------------------------------------------
# Resize of values in blocks: whole scales along height and width.
#
# onnxruntime/core/optimizer/nchwc_transformer.cc, ``TransformResize``.


_SCALES, _SIZES = 2, 3
_RESIZE_READS_REGION = 11


def transform_resize(layout: Layout, node: Node) -> None:
    """Repeat or interpolate pixels a whole number of times."""
    found = layout.values.get(node.inputs[0])
    scales = None if found is None else _whole_scales(layout, node)
    if found is None or scales is None:
        return
    graph = layout.graph
    name = graph.fresh_node_name(f"{node.outputs[0]}_nchwc")
    made = add_node(graph, NewNode("Upsample", [found.name], (), NCHWC, name))
    put(made, "scales", scales)
    if text(node, "mode") == "linear":
        put(made, "mode", "linear")
        mode = text(node, "coordinate_transformation_mode", "asymmetric")
        put(made, "coordinate_transformation_mode", mode)
    layout.take(node.inputs[0])
    layout.record(node, made, found.channels, layout.plain(node.outputs[0]))


def _whole_scales(layout: Layout, node: Node) -> list[int] | None:
    place = 1
    if node.op_type == "Resize" and node.since_version >= _RESIZE_READS_REGION:
        if not _is_supported_mode(node):
            return None
        if node.input_at(_SIZES):
            return _scales_to(layout, node)
        place = _SCALES
    values = layout.graph.array(node.input_at(place)) if node.input_at(place) else None
    if values is None or values.dtype != np.float32 or values.shape != (NUM_DIMS,):
        return None
    return _whole([float(value) for value in values])


def _scales_to(layout: Layout, node: Node) -> list[int] | None:
    """Scales from the sizes asked for, where the input's are known."""
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
# Which nodes work on blocks of channels, in the order of execution.
#
# onnxruntime/core/optimizer/nchwc_transformer.cc, ``NchwcTransformerImpl::Transform``.


_POOLS = {"MaxPool": {1, 8, 10, 11, 12, 22}, "AveragePool": {1, 7, 10, 11, 19, 22}}
_ACTIVATIONS = frozenset({"Relu", "Sigmoid", "Tanh", "HardSigmoid", "Gelu", "QuickGelu"})
"""As onnxruntime 1.31.1 has them; the first four may go into a convolution."""


def block_channels(graph: Graph, block: int) -> bool:
    """Transform a graph and its subgraphs; true if anything changed.

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
    """Whether a node makes a value in its plain layout, so that the reader keeps its edge."""
    producer = layout.graph.producers.get(name)
    return producer is not None and producer.domain != NCHWC and name not in layout.values


def _transform_reader(layout: Layout, node: Node) -> None:
    """Nodes none of whose inputs a plain node makes; most of them ask for an input in blocks.

    A global pooling does not: it takes a graph input into blocks as well.
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
# Integer convolutions with the channels last, and Transposes around them that then meet.
#
# onnxruntime/core/optimizer/nhwc_transformer.cc. Float and half precision convolutions get
# channels last on some ARM processors only, which is left out.


def put_channels_last(graph: Graph) -> bool:
    """Transform every QLinearConv of known rank, subgraphs' too; true if there was one."""
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
    order = (0, *range(2, rank), 1)
    transpose_input(graph, node, 0, order)
    transpose_output(graph, node, 0, inverse(order))
    if not node.domain:
        swap_operator(graph, node, "QLinearConv")
    return True
