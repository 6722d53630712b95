"""Normalizations, linear layers, dropout and layout operators that exporters write as nodes."""

import re
from collections.abc import Iterator

from onnxmem.model.graph import FX_NODE, Node
from onnxmem.ops.registry import lookup
from onnxmem.runtimes.torch.composites.rewriting import GraphView, Match
from onnxmem.runtimes.torch.framework import (
    INDEX_ADD,
    LINEAR,
    MAXIMA,
    MIRRORED_PAD,
    ROLL,
    RSQRT,
    VARIANCE,
    WEIGHT_NORM,
    data_reads,
)
from onnxmem.runtimes.torch.strides import reduced_axes

_CHANNELS_AT = 1
_GROUP_NORM = "[target=torch.ops.aten.group_norm."
_HIERARCHY = "pkg.torch.onnx.class_hierarchy"
_EXTREMES = frozenset({"ReduceMax", "ReduceMin"})
_OF_DIM = re.compile(r"\[target=torch\.ops\.aten\.(max|min)\.dim\]")
_ITEM = re.compile(r"getitem(_\d+)?")
"""The name that torch.export gives to an item of what a call returns."""
_RMS_NORM = "'torch.nn.modules.normalization.RMSNorm'"
_STATISTICS = ("mean", "var")
"""The last operands of BatchNormalization."""


# This matcher tells whether the arithmetic in the file is layer normalization, in whatever form an
# exporter wrote it: the training step then runs PyTorch's own kernel, whatever a graph optimizer
# would do. ``fuse_layer_norm`` of the emulated onnxruntime optimizer is another one, because it
# must fire exactly when onnxruntime's pass does, on a graph that earlier passes changed.
def layer_norms(view: GraphView) -> Iterator[Match]:
    """Find ``(x - mean) / sqrt(mean((x - mean)^2) + eps)``, with its scale and bias if any."""
    for division in view.graph.nodes:
        found = _centered_over_deviation(view, division)
        if found is None:
            continue
        data, nodes = found
        if not _is_over_the_last_axes(view, data, nodes):
            continue
        operands, rest = _scale_and_bias(view, division.outputs[0])
        axis = {"axis": -1}
        yield Match(
            (*nodes, division, *rest), lookup("LayerNormalization"), (data, *operands), (), axis
        )


def _centered_over_deviation(
    view: GraphView, division: Node
) -> tuple[str, tuple[Node, ...]] | None:
    """The data and the nodes before a Div that ends a layer norm."""
    if division.onnx_op != "Div":
        return None
    centered, deviation = division.inputs
    centering = view.producers.get(centered)
    root = view.producer(deviation, "Sqrt")
    added = None if root is None else view.producer(root.inputs[0], "Add")
    if root is None or added is None or centering is None or centering.onnx_op != "Sub":
        return None
    variance = next(
        (node for name in added.inputs if (node := view.producer(name, "ReduceMean"))), None
    )
    squaring = None if variance is None else view.producer(variance.inputs[0], "Pow", "Mul")
    mean = view.producer(centering.inputs[1], "ReduceMean")
    if variance is None or squaring is None or mean is None:
        return None
    # The variance must be that of the centered data, and the mean that of the data itself.
    if squaring.inputs[0] != centered or mean.inputs[0] != centering.inputs[0]:
        return None
    return mean.inputs[0], (mean, centering, squaring, variance, added, root)


def _is_over_the_last_axes(view: GraphView, data: str, nodes: tuple[Node, ...]) -> bool:
    """Whether both means are taken over the same last axes, as the framework's layer norm does."""
    dims = view.dims(data)
    means = [node for node in nodes if node.onnx_op == "ReduceMean"]
    if dims is None:
        return False
    axes = (reduced_axes(view.graph, mean) or () for mean in means)
    # Mean and variance reduce the same axes, which end with the last one.
    found = {tuple(sorted(axis % len(dims) for axis in each)) for each in axes}
    return len(found) == 1 and next(iter(found)) in {
        tuple(range(first, len(dims))) for first in range(len(dims))
    }


def _scale_and_bias(view: GraphView, name: str) -> tuple[tuple[str, ...], tuple[Node, ...]]:
    """The weights of a Mul and an Add that follow, and the two nodes."""
    operands: list[str] = []
    nodes: list[Node] = []
    # In this order: `y = (x - mean) / deviation * scale + bias`.
    for op_type in ("Mul", "Add"):
        reader = view.readers.get(name)
        if reader is None or reader.onnx_op != op_type or view.reads[name] != 1:
            break
        other = next((o for one, o in view.operands(reader) if one == name), "")
        if not other or not view.is_weight(other):
            break
        operands.append(other)
        nodes.append(reader)
        name = reader.outputs[0]
    return tuple(operands), tuple(nodes)


def rms_norms(view: GraphView) -> Iterator[Match]:
    """Find ``x / sqrt(mean(x^2) + eps)``, scaled, where torch.export says that RMSNorm ran it."""
    # Networks write the same by hand, which runs as it is written; and so did RMSNorm before
    # `_fused_rms_norm`.
    for root in view.graph.nodes:
        if root.operator is not RSQRT or _RMS_NORM not in root.metadata.get(_HIERARCHY, ""):
            continue
        added = view.producer(root.inputs[0], "Add")
        means = (
            () if added is None else (view.producer(name, "ReduceMean") for name in added.inputs)
        )
        mean = next((node for node in means if node is not None), None)
        power = None if mean is None else view.producers.get(mean.inputs[0])
        normed = view.readers.get(root.outputs[0])
        if added is None or mean is None or power is None or normed is None:
            continue
        data = power.inputs[0]
        rows, dims = view.dims(mean.outputs[0]), view.dims(data)
        if normed.onnx_op != "Mul" or data not in normed.inputs or not rows or not dims:
            continue
        normed_dims = [axis for axis, row in enumerate(rows) if row == 1 and axis]
        scale, scaling = _scale_and_bias(view, normed.outputs[0])
        nodes = (power, mean, added, root, normed, *scaling[:1])
        result = view.readers.get(nodes[-1].outputs[0])
        if result is not None and _RMS_NORM in result.metadata.get(_HIERARCHY, ""):
            nodes = (*nodes, result)  # `type_as` of its input, which the kernel does not call
        axis = {"axis": min(normed_dims, default=-1)}
        yield Match(nodes, lookup("RMSNormalization", opset=23), (data, *scale[:1]), (), axis)


def maxima(view: GraphView) -> Iterator[Match]:
    """Find ``max(dim)`` and ``min(dim)``, which torch.export names, or a name of the result tells.

    ``amax`` and ``amin`` are exported as the same node, and return no pair to take an item of.
    """
    for node in view.graph.nodes:
        if node.onnx_op not in _EXTREMES:
            continue
        is_named = _OF_DIM.search(node.metadata.get(FX_NODE, "")) is not None
        if is_named or _ITEM.fullmatch(node.outputs[0]):
            yield Match((node,), MAXIMA, node.inputs[:1])


def weight_norms(view: GraphView) -> Iterator[Match]:
    """Find ``v / |v| * g``, and ``v * (g / |v|)``, of two weights."""
    # The first is `_weight_norm` of torch/onnx/symbolic_opset9.py, the second
    # `_weight_norm_interface` of torch/_decomp/decompositions.py.
    for product in view.graph.nodes:
        for quotient, factor in view.operands(product) if product.onnx_op == "Mul" else ():
            division = view.producer(quotient, "Div")
            norm = None if division is None else view.producer(division.inputs[1], "ReduceL2")
            if division is None or norm is None:
                continue
            # `v / |v| * g`: one of the two factors is the direction, the other the length.
            pair = {factor, division.inputs[0]} - {norm.inputs[0]}
            if len(pair) == 1 and all(map(view.is_weight, (norm.inputs[0], *pair))):
                yield Match((norm, division, product), WEIGHT_NORM, (norm.inputs[0], *pair))


def batch_norms(view: GraphView) -> Iterator[Match]:
    """Find a BatchNormalization whose statistics of the batch the file computes with nodes."""
    # `batch_norm` of torch/onnx/symbolic_opset9.py writes them where there are no running ones, as
    # in networks that standardize the weights of their convolutions; so does
    # `aten__native_batch_norm_legit_no_stats` of onnxscript's function_libs/torch_lib/ops/core.py,
    # without a transpose.
    for norm in view.graph.nodes:
        if norm.onnx_op != "BatchNormalization" or len(norm.inputs) != len(_STATISTICS) + 3:
            continue
        data, (mean, variance) = norm.inputs[0], norm.inputs[-len(_STATISTICS) :]
        averaging = view.producer(mean, "ReduceMean")
        if averaging is None:
            continue
        varying = _variance(view, variance, averaging.inputs[0])
        is_of_data = averaging.inputs[0] == data
        channels_last = _channels_last(view, averaging.inputs[0], data)
        if varying and (is_of_data or channels_last):
            nodes = (*channels_last, averaging, *varying, norm)
            yield Match(nodes, norm.operator, norm.inputs[:3], (), dict(norm.attributes))


def _variance(view: GraphView, name: str, data: str, reads: int = 1) -> tuple[Node, ...]:
    """The nodes of ``mean((x - mean(x))^2)`` of ``data``; empty if others compute the tensor."""
    average = view.producer(name, "ReduceMean", reads=reads)
    square = None if average is None else view.producer(average.inputs[0], "Mul")
    centered = None if square is None else view.producer(square.inputs[0], "Sub", reads=2)
    mean = None if centered is None else view.producer(centered.inputs[1], "ReduceMean")
    if average is None or square is None or centered is None or mean is None:
        return ()
    if len(set(square.inputs)) > 1 or {centered.inputs[0], mean.inputs[0]} != {data}:
        return ()
    return mean, centered, square, average


def variances(view: GraphView) -> Iterator[Match]:
    """Find ``mean((x - mean(x))^2)``, which is one operator of the framework."""
    for average in view.graph.nodes:
        square = (
            view.producer(average.inputs[0], "Mul") if average.onnx_op == "ReduceMean" else None
        )
        centered = None if square is None else view.producer(square.inputs[0], "Sub", reads=2)
        if centered is None:
            continue
        data, (name,) = centered.inputs[0], average.outputs
        if nodes := _variance(view, name, data, reads=view.reads[name]):
            yield Match(nodes, VARIANCE, (data,))


def _channels_last(view: GraphView, name: str, data: str) -> tuple[Node, ...]:
    """The nodes that make the channels of data the last axis: a Transpose of a Reshape."""
    transpose = view.producer(name, "Transpose", reads=3)
    flat = None if transpose is None else view.producer(transpose.inputs[0], "Reshape")
    if transpose is None or flat is None or flat.inputs[0] != data:
        return ()
    return flat, transpose


def group_norms(view: GraphView) -> Iterator[Match]:
    """Find ``Reshape(InstanceNormalization(Reshape(x)))`` with scale and bias of the channels.

    With one channel in each group a reshape may change nothing; then exporters may leave it out.
    """
    for node in view.graph.nodes:
        if node.onnx_op != "InstanceNormalization":
            continue
        nodes = _between_reshapes(view, node)
        data, normed = nodes[0].inputs[0], nodes[-1].outputs[0]
        grouped, dims = view.dims(node.inputs[0]), view.dims(data)
        is_group_norm = len(nodes) > 1 or _GROUP_NORM in node.metadata.get(FX_NODE, "")
        if not is_group_norm or grouped is None or view.dims(normed) != dims:
            continue
        operands, rest = _scale_and_bias(view, normed)
        if len(operands) != 2:  # noqa: PLR2004 - group norm has both
            continue
        groups = {"num_groups": grouped[_CHANNELS_AT]}
        operator = lookup("GroupNormalization")
        yield Match((*nodes, *rest), operator, (data, *operands), (), groups)


def _between_reshapes(view: GraphView, node: Node) -> tuple[Node, ...]:
    """A node and the Reshapes before and after it, where there are such."""
    before = view.producer(node.inputs[0], "Reshape")
    after = view.readers.get(node.outputs[0])
    is_reshaped = after is not None and after.onnx_op == "Reshape"
    found = (before, node, after if is_reshaped else None)
    return tuple(each for each in found if each is not None)


_MATRIX_RANK = 2


def linears(view: GraphView) -> Iterator[Match]:
    """Find the Add of a bias vector to a MatMul by a matrix: the framework's one addmm."""
    for node in view.graph.nodes:
        if node.onnx_op != "Add":
            continue
        for name, bias in view.operands(node):
            product = view.producer(name, "MatMul")
            if product is None or not _is_bias(view, bias):
                continue
            if any(len(view.dims(each) or ()) == _MATRIX_RANK for each in product.inputs):
                yield Match((product, node), LINEAR, (*product.inputs, bias))


def _is_bias(view: GraphView, name: str) -> bool:
    """Whether a tensor is a vector of weights, or several of them and of constants joined.

    A piece of a vector too: ``_in_projection_packed`` of torch/nn/functional.py chunks the packed
    bias. Networks whose keys have no bias join zeros to those of queries and values, or write them
    over a copy.
    """
    if len(view.dims(name) or ()) != 1:
        return False
    joined = view.producers.get(name)
    parts: tuple[str, ...] = (name,)
    if joined is not None and joined.onnx_op in {"Concat", "ScatterND"}:
        parts = joined.inputs if joined.onnx_op == "Concat" else joined.inputs[:1]
    return all(
        view.is_weight(part, or_piece=True)
        or ((producer := view.producers.get(part)) is not None and producer.onnx_op == "Constant")
        for part in parts
    )


_PAIR = 2
_MIRRORING = frozenset({"edge", "reflect"})


def sequences(view: GraphView) -> Iterator[Match]:
    """Find a SplitToSequence that only SequenceAt reads: a Split."""
    for node in view.graph.nodes:
        if node.onnx_op != "SplitToSequence":
            continue
        readers = [n for n in view.graph.nodes if node.outputs[0] in n.reads]
        if not readers or any(reader.onnx_op != "SequenceAt" for reader in readers):
            continue
        pieces = tuple(reader.outputs[0] for reader in readers)
        # The Split is at the position of the first SequenceAt: a match's node replaces its last.
        nodes = (node, *readers[1:], readers[0])
        yield Match(nodes, lookup("Split"), node.inputs[:1], pieces, node.attributes)


def unbinds(view: GraphView) -> Iterator[Match]:
    """Find Slices of one element each that together cover an axis and are squeezed: an unbind."""
    slices: dict[tuple[str, tuple[int | float, ...]], list[Node]] = {}
    for node in view.graph.nodes:
        if node.onnx_op == "Slice" and len(node.inputs) > 3:  # noqa: PLR2004 - axes are given
            axes = view.graph.values.get(node.inputs[3])
            reader = view.readers.get(node.outputs[0])
            if axes is not None and reader is not None and reader.onnx_op == "Squeeze":
                slices.setdefault((node.inputs[0], axes), []).append(node)
    for (name, axes), nodes in slices.items():
        dims, pieces = view.dims(name), [view.dims(node.outputs[0]) for node in nodes]
        if dims is None or len(axes) != 1 or len(nodes) != dims[int(axes[0])] or len(nodes) == 1:
            continue
        axis = int(axes[0])
        if all(piece is not None and piece[axis] == 1 for piece in pieces):
            outputs = tuple(node.outputs[0] for node in nodes)
            operator = lookup("Split")
            # The Split is at the position of the first Slice: readers may follow it at once.
            yield Match((*nodes[1:], nodes[0]), operator, (name,), outputs, {"axis": axis})


def rolls(view: GraphView) -> Iterator[Match]:
    """Find a Concat of two Slices of one tensor, the end before the start."""
    for node in view.graph.nodes:
        if node.onnx_op != "Concat" or len(node.inputs) != _PAIR:
            continue
        producers = [view.producer(name, "Slice") for name in node.inputs]
        end, start = producers
        if end is None or start is None or end.inputs[0] != start.inputs[0]:
            continue
        # Of a weight it reorders a recurrent layer's gates
        is_moved = view.dims(node.outputs[0]) == view.dims(end.inputs[0]) is not None
        if is_moved and not view.is_weight(end.inputs[0]):
            yield Match((end, start, node), ROLL, end.inputs[:1])


def mirrored_pads(view: GraphView) -> Iterator[Match]:
    """Find a Pad that repeats elements: unlike one with a constant it saves its operand."""
    for node in view.graph.nodes:
        if node.onnx_op == "Pad" and node.attributes.get("mode") in _MIRRORING:
            yield Match((node,), MIRRORED_PAD, node.inputs[:1])


def index_adds(view: GraphView) -> Iterator[Match]:
    """Find a ScatterND that adds: ``index_add`` saves what it adds, ``index_put`` does not.

    torch.export writes both so; networks accumulate messages of edges by the first.
    """
    for node in view.graph.nodes:
        if node.onnx_op == "ScatterND" and node.attributes.get("reduction") == "add":
            yield Match((node,), INDEX_ADD, node.inputs[:3])


_RANDOM = ("RandomUniformLike", "RandomUniform", "Bernoulli")
_STEPS = ("Cast", "CastLike", "Div", "Mul", "Less", "LessOrEqual", "Greater", "Not")


def dropouts(view: GraphView) -> Iterator[Match]:
    """Find ``x * Cast(RandomUniformLike(x) < keep) / keep``: a mask as large as ``x``."""
    for node in view.graph.nodes:
        if node.onnx_op != "Mul":
            continue
        for data, mask in view.operands(node):
            steps = _mask(view, mask)
            if steps and view.dims(mask) == view.dims(data) is not None:
                dropout = lookup("Dropout", opset=1)
                yield Match((*steps, node), dropout, (data,), (), {"ratio": 0.5, "is_test": 0})


def _mask(view: GraphView, name: str) -> tuple[Node, ...]:
    """The nodes from random numbers to a mask that nothing else reads; else empty."""
    nodes: list[Node] = []
    while (producer := view.producer(name, *_STEPS, *_RANDOM)) is not None:
        nodes.insert(0, producer)
        if producer.onnx_op in _RANDOM:
            return tuple(nodes)
        data = [text for text in data_reads(producer) if view.number(text) is None]
        if len(data) != 1:
            return ()
        name = data[0]
    return ()
