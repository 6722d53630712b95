"""Narrower networks: half the channels of every layer, or half of the fully connected part.

A copy of the file has other dims: the outputs of the chosen layers are halved, and with them the
inputs of the layers that read them and what normalizes or scales them in between. The inputs and
outputs of the network stay. A network that this cannot be done to (attention, whose heads are in
the shapes of reshapes; odd channels; an operator of unknown effect on channels) is left alone: the
copy is analyzed like any other file, and must have consistent products and reshapes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import onnx

from onnxmem.decisions.advise.proposals import Subject, Suggestion, Tradeoff, with_file
from onnxmem.decisions.advise.settings import flops_text
from onnxmem.errors import OnnxmemError
from onnxmem.model.graph import Graph, Node
from onnxmem.units import format_count

_WEIGHTED: Final = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_LINEAR: Final = frozenset({"Gemm", "MatMul"})
_UNARY: Final = frozenset(
    "Abs Cast Celu Clip Dropout Elu Erf Exp Gelu HardSigmoid HardSwish Identity LeakyRelu Mish Neg "
    "Relu Selu Sigmoid Softplus Softsign Sqrt Swish Tanh ThresholdedRelu".split()
)
_BINARY: Final = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "PRelu"})
_SPATIAL: Final = frozenset(
    "AveragePool Concat Flatten GlobalAveragePool GlobalMaxPool LRN MaxPool Pad ReduceMean Reshape "
    "Resize Squeeze Transpose Unsqueeze Upsample".split()
)
_NORMS: Final = frozenset({"BatchNormalization", "InstanceNormalization", "LayerNormalization"})
_FOLLOWED: Final = _UNARY | _BINARY | _SPATIAL | _NORMS
_JOINING: Final = _BINARY | {"Concat"}
"""Operators all of whose inputs are data; the others read shapes and limits beside it."""
_FACTOR: Final = 2
_MATRIX: Final = 2
"""The rank of a matrix."""
Dims = tuple[int, ...]


class _UnsuitableError(Exception):
    """The network cannot be narrowed in this way."""


@dataclass(slots=True)
class _Narrowing:
    """Mutable: the new dims of weights and groups of convolutions, found in file order.

    Invariant: ``halved`` has the tensors whose channels are half as many as in the file.
    """

    weights: Mapping[str, Dims]
    """Initializers and constants."""
    chosen: frozenset[int]
    """Indices of the layers whose outputs are halved."""
    halved: set[str] = field(default_factory=set)
    dims: dict[str, Dims] = field(default_factory=dict)
    groups: dict[int, int] = field(default_factory=dict)

    def visit(self, index: int, node: onnx.NodeProto) -> None:
        """Follow the channels through one node.

        :raises _UnsuitableError: its effect on them is not known, or a dim is odd.
        """
        read = node.input if node.op_type in _JOINING else node.input[:1]
        found = [name in self.halved for name in read if name and name not in self.weights]
        if _is_layer(node, self.weights):
            if self._layer(index, node, is_in=any(found)):
                self._halve(node.input[2:], node.output)
            return
        if node.op_type in {"Constant", "Shape"} or self.halved.isdisjoint(node.input):
            return
        # Of what a node joins all channels are halved, or the model is left alone.
        if not found or not all(found) or node.op_type not in _FOLLOWED:
            raise _UnsuitableError
        self._halve(node.input if node.op_type in _BINARY | _NORMS else (), node.output)

    def _layer(self, index: int, node: onnx.NodeProto, *, is_in: bool) -> bool:
        """Halve what a layer reads, and what it writes if it is chosen; whether that is halved."""
        weight = self.weights[node.input[1]]
        attributes = {each.name: each.i for each in node.attribute}
        group = max(attributes.get("group", 1), 1)
        if group > 1 and weight[1] == 1:
            # Depthwise: an output for each input, so both are halved or neither is.
            if is_in:
                self.groups[index] = _half(group)
                self._set(node.input[1], (_half(weight[0]), *weight[1:]))
            return is_in
        out_axis = int(node.op_type != "Conv" and not attributes.get("transB"))
        changes = {1 - out_axis: is_in, out_axis: index in self.chosen}
        dims = tuple(_half(n) if changes.get(axis) else n for axis, n in enumerate(weight))
        if attributes.get("transA") or (node.op_type == "Conv" and dims[0] % group):
            raise _UnsuitableError
        self._set(node.input[1], dims)
        return index in self.chosen

    def _halve(self, vectors: Iterable[str], tensors: Iterable[str]) -> None:
        """Halve weights along their only dim above 1, and the channels of tensors."""
        for name in vectors:
            dims = self.weights.get(name, ())
            above = sum(dim != 1 for dim in dims)
            if above > 1:
                raise _UnsuitableError
            if above:
                self._set(name, tuple(dim if dim == 1 else _half(dim) for dim in dims))
        self.halved.update(name for name in tensors if name)

    def _set(self, name: str, dims: Dims) -> None:
        """A weight that several nodes read must have the same dims for all of them."""
        if self.dims.setdefault(name, dims) != dims:
            raise _UnsuitableError


def _half(dim: int) -> int:
    if dim % _FACTOR:
        raise _UnsuitableError
    return dim // _FACTOR


def width_suggestions(subject: Subject) -> Iterator[Suggestion]:
    """Half the channels of every layer but the last, and half of the fully connected part."""
    proto = subject.request.source.proto
    if proto.functions:
        return
    weights = dict(_weights(proto.graph))
    before = subject.results().bound.graph
    made: list[_Changes] = []
    for word, what, chosen, most in (
        ("half_width", "half the channels of every layer but the last", _all_but_last, 1 / 2),
        ("half_linear", "half the outputs of fully connected layers inside", _linear_inside, 0.95),
    ):
        changes = _changes_of(proto.graph, weights, chosen(proto.graph, weights))
        after = None if changes is None or changes in made else _changed(subject, changes)
        if changes is None or after is None or _elements(after) > most * _elements(before):
            continue
        made.append(changes)
        counts = " -> ".join(format_count(_elements(each)) for each in (before, after))
        flops = flops_text(before, after)
        yield Suggestion(
            id=word,
            group="width",
            what=f"{what}: {counts} elements of weights",
            tradeoff=Tradeoff.ACCURACY,
            cost=f"another network, to be trained anew and evaluated{flops}",
            change=with_file(changes.make),
            settings={"width": word},
            changes_training=True,
        )


def _weights(graph: onnx.GraphProto) -> Iterator[tuple[str, Dims]]:
    """The dims of initializers and constants."""
    for node in graph.node:
        if node.op_type == "Constant":
            dims = next((each.t.dims for each in node.attribute if each.HasField("t")), ())
            yield node.output[0], tuple(dims)
    for tensor in graph.initializer:
        yield tensor.name, tuple(tensor.dims)


def _is_layer(node: onnx.NodeProto, weights: Mapping[str, Dims]) -> bool:
    """Whether a node multiplies data by a weight of at least two dims."""
    if node.op_type not in _WEIGHTED or len(node.input) < _MATRIX:
        return False
    data, weight = node.input[:_MATRIX]
    rank = len(weights.get(weight, ()))
    is_matrix = rank == _MATRIX if node.op_type in _LINEAR else rank > _MATRIX
    return data not in weights and is_matrix


def _elements(graph: Graph) -> int:
    return sum(each.num_elements or 0 for each in graph.weights)


@dataclass(frozen=True, slots=True)
class _Changes:
    """New dims of initializers by name, and groups of convolutions by the index of the node."""

    dims: Mapping[str, Dims]
    groups: Mapping[int, int]

    def make(self, proto: onnx.ModelProto) -> None:
        """Change a copy of the file."""
        for tensor in proto.graph.initializer:
            if tensor.name in self.dims:
                _resize(tensor, self.dims[tensor.name])
        for index, group in self.groups.items():
            for attribute in proto.graph.node[index].attribute:
                if attribute.name == "group":
                    attribute.i = group
        # Shapes of the file's own activations are those of the wider network.
        del proto.graph.value_info[:]


def _changes_of(
    graph: onnx.GraphProto, weights: Mapping[str, Dims], chosen: frozenset[int]
) -> _Changes | None:
    """What has to change; ``None``: it cannot, or nothing has to."""
    found = _Narrowing(weights, chosen)
    try:
        for index, node in enumerate(graph.node):
            found.visit(index, node)
    except _UnsuitableError:
        return None
    changed = {name: dims for name, dims in found.dims.items() if dims != weights[name]}
    stored = {tensor.name for tensor in graph.initializer}
    # Outputs of the model keep their shape, or it would be another model to its caller.
    is_outside = any(value.name in found.halved for value in graph.output)
    if not changed or is_outside or not stored.issuperset(changed):
        return None
    return _Changes(changed, found.groups)


def _resize(tensor: onnx.TensorProto, dims: Dims) -> None:
    """Give a weight other dims; its elements are dropped, as those of every large weight are."""
    for name in ("raw_data", "float_data", "double_data", "int32_data", "int64_data"):
        tensor.ClearField(name)
    del tensor.dims[:]
    tensor.dims.extend(dims)


def _changed(subject: Subject, changes: _Changes) -> Graph | None:
    """The graph of the changed file; ``None``: it is not a sound one of its own."""
    before = subject.results()
    try:
        after = with_file(changes.make)(subject).results()
    except OnnxmemError:
        return None
    known = {finding.code for finding in before.bound.findings}
    is_known = all(finding.code in known for finding in after.bound.findings)
    graph = after.bound.graph
    return graph if after.is_whole and is_known and is_consistent(graph) else None


def is_consistent(graph: Graph) -> bool:
    """Whether products have operands that fit, and reshapes keep every element."""
    return all(_fits(graph, node) for node in graph.nodes)


def _fits(graph: Graph, node: Node) -> bool:
    shapes = [graph.tensors[name].shape if name else None for name in node.inputs]
    if node.op_type in {"Reshape", "Flatten"}:
        names = (node.inputs[0], node.outputs[0])
        counts = {graph.tensors[name].num_elements for name in names}
        return len(counts) == 1 or None in counts
    if node.op_type not in _WEIGHTED or len(shapes) < _MATRIX:
        return True
    data, weight = shapes[0], shapes[1]
    if data is None or weight is None or len(data) < _MATRIX or len(weight) < _MATRIX:
        return True
    if node.op_type == "Conv":
        return data[1] == (weight[1] or 0) * int(str(node.attributes.get("group", 1)))
    if node.op_type == "ConvTranspose":
        return data[1] == weight[0]
    is_turned = node.op_type == "Gemm" and bool(node.attributes.get("transB", 0))
    return data[-1] == weight[-1 if is_turned else -2]


def _all_but_last(graph: onnx.GraphProto, weights: Mapping[str, Dims]) -> frozenset[int]:
    """The layers with weights, except for those that an output follows without another one."""
    producers = {name: index for index, node in enumerate(graph.node) for name in node.output}
    layers = frozenset(index for index, node in enumerate(graph.node) if _is_layer(node, weights))
    last: set[int] = set()
    seen: set[str] = set()
    names = [value.name for value in graph.output]
    # Upwards from the outputs, and no further than the first layer on each path: what it makes
    # is an output of the network, which keeps its width.
    while names:
        name = names.pop()
        index = producers.get(name)
        if name in seen or index is None:
            continue
        seen.add(name)
        if index in layers:
            last.add(index)
        else:
            names += graph.node[index].input
    return layers - last


def _linear_inside(graph: onnx.GraphProto, weights: Mapping[str, Dims]) -> frozenset[int]:
    """The fully connected layers that only such layers read, with activations between."""
    readers: dict[str, list[int]] = {}
    for index, node in enumerate(graph.node):
        for name in node.input:
            readers.setdefault(name, []).append(index)
    outputs = {value.name for value in graph.output}
    layers = frozenset(
        index
        for index, node in enumerate(graph.node)
        if node.op_type in _LINEAR and _is_layer(node, weights)
    )
    return frozenset(
        index
        for index in layers
        if _ends_in(graph.node[index].output, graph.node, readers, layers, outputs)
    )


def _ends_in(
    names: Iterable[str],
    nodes: Sequence[onnx.NodeProto],
    readers: Mapping[str, Sequence[int]],
    layers: frozenset[int],
    outputs: set[str],
) -> bool:
    """Whether only the layers read tensors, through operators of single elements."""
    found, left, seen = False, list(names), set[str]()
    # Every path down has to end in a layer: one reader of another kind (a reduction, a shape, an
    # output) would see the new width, and the model would compute something else.
    while left:
        name = left.pop()
        if name in seen or not name:
            continue
        seen.add(name)
        if name in outputs:
            return False
        for index in readers.get(name, ()):
            if index in layers and nodes[index].input[0] == name:
                found = True
            elif nodes[index].op_type in _UNARY | _BINARY:
                left += nodes[index].output
            else:
                return False
    return found
