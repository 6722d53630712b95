"""Normalisations that exporters write out: layer norm before opset 17, group norm."""

from collections.abc import Iterator

from onnxmem.model import Node
from onnxmem.ops import lookup
from onnxmem.training.axes import reduced_axes
from onnxmem.training.composites.rewriting import Match, Sight

_CHANNELS_AT = 1


def layer_norms(sight: Sight) -> Iterator[Match]:
    """Find ``(x - mean) / sqrt(mean((x - mean)^2) + eps)``, with its gain and shift if any."""
    for division in sight.graph.nodes:
        found = _centred_over_deviation(sight, division)
        if found is None:
            continue
        data, nodes = found
        if not _is_over_the_last_axes(sight, data, nodes):
            continue
        operands, rest = _gain_and_shift(sight, division.outputs[0])
        axis = {"axis": -1}
        yield Match(
            (*nodes, division, *rest), lookup("LayerNormalization"), (data, *operands), (), axis
        )


def _centred_over_deviation(sight: Sight, division: Node) -> tuple[str, tuple[Node, ...]] | None:
    """The data and the nodes before a Div that ends a layer norm."""
    if division.onnx_op != "Div":
        return None
    centred, deviation = division.inputs
    centring = sight.makers.get(centred)
    root = sight.maker(deviation, "Sqrt")
    added = None if root is None else sight.maker(root.inputs[0], "Add")
    if root is None or added is None or centring is None or centring.onnx_op != "Sub":
        return None
    variance = next(
        (node for name in added.inputs if (node := sight.maker(name, "ReduceMean"))), None
    )
    squaring = None if variance is None else sight.maker(variance.inputs[0], "Pow", "Mul")
    mean = sight.maker(centring.inputs[1], "ReduceMean")
    if variance is None or squaring is None or mean is None:
        return None
    if squaring.inputs[0] != centred or mean.inputs[0] != centring.inputs[0]:
        return None
    return mean.inputs[0], (mean, centring, squaring, variance, added, root)


def _is_over_the_last_axes(sight: Sight, data: str, nodes: tuple[Node, ...]) -> bool:
    """Whether both means are taken over the same last axes, as the framework's layer norm does."""
    dims = sight.dims(data)
    means = [node for node in nodes if node.onnx_op == "ReduceMean"]
    if dims is None:
        return False
    axes = (reduced_axes(sight.graph, mean) or () for mean in means)
    found = {tuple(sorted(axis % len(dims) for axis in each)) for each in axes}
    return len(found) == 1 and next(iter(found)) in {
        tuple(range(first, len(dims))) for first in range(len(dims))
    }


def _gain_and_shift(sight: Sight, name: str) -> tuple[tuple[str, ...], tuple[Node, ...]]:
    """The operands of the Mul and the Add by a weight that follow, and the nodes."""
    operands: list[str] = []
    nodes: list[Node] = []
    for op_type in ("Mul", "Add"):
        reader = sight.readers.get(name)
        if reader is None or reader.onnx_op != op_type or sight.reads[name] != 1:
            break
        other = next((o for one, o in sight.operands(reader) if one == name), "")
        if not other or not sight.is_weight(other):
            break
        operands.append(other)
        nodes.append(reader)
        name = reader.outputs[0]
    return tuple(operands), tuple(nodes)


def group_norms(sight: Sight) -> Iterator[Match]:
    """Find ``Reshape(InstanceNormalization(Reshape(x)))`` with the gain and shift of channels."""
    for node in sight.graph.nodes:
        if node.onnx_op != "InstanceNormalization":
            continue
        before = sight.maker(node.inputs[0], "Reshape")
        after = sight.readers.get(node.outputs[0])
        if before is None or after is None or after.onnx_op != "Reshape":
            continue
        grouped, data = sight.dims(node.inputs[0]), before.inputs[0]
        if grouped is None or sight.dims(after.outputs[0]) != sight.dims(data):
            continue
        operands, rest = _gain_and_shift(sight, after.outputs[0])
        if len(operands) != 2:  # noqa: PLR2004 - group norm has both
            continue
        groups = {"num_groups": grouped[_CHANNELS_AT]}
        operator = lookup("GroupNormalization")
        yield Match((before, node, after, *rest), operator, (data, *operands), (), groups)
