"""Which tensors of a graph share a storage in PyTorch, and the strides of each.

``find_views`` gives every tensor a ``View``: the storage that it is in, and its strides there. A
tensor is a view of an input where its operator is a view in PyTorch (aten/src/ATen/native/
TensorShape.cpp), where the node is an identity, or where an activation runs in place.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from onnxmem.model.graph import STACK_TRACE, Graph, Node, record
from onnxmem.ops.spec import Attribute, known_dims
from onnxmem.runtimes.torch.framework import ATTENTION, CONTIGUOUS, data_reads, keeps_type
from onnxmem.runtimes.torch.strides import (
    Dims,
    Strides,
    axes_order,
    contiguous,
    expanded,
    is_row_major,
    like,
    permuted,
    reshaped,
)

_SAVES_OUTPUT = frozenset({"Relu", "Sigmoid", "Tanh"})
"""Activations whose backward formula reads the output (derivatives.yaml: result)."""

_SAVES_INPUT = frozenset({"Celu", "Elu", "LeakyRelu", "Selu"})
"""Activations whose backward formula reads the input, and the output where they run in place
(derivatives.yaml: elu_backward and leaky_relu_backward, is_result=True)."""

_ARITHMETIC = MappingProxyType({"Add": "+", "Div": "/", "Mul": "*", "Sub": "-"})
_AUGMENTED = re.compile(r"[\w.\[\]]+ ([-+*/])= [^-+*/]+")
"""A line such as ``x += shortcut``, which makes one call of an operator."""

_ATTENTION_OUTPUT = (0, 2, 1, 3)
"""The memory-efficient attention kernel writes [batch, rows, heads, width] and returns [batch,
heads, rows, width] (``_scaled_dot_product_efficient_attention_cuda`` of
aten/src/ATen/native/transformers/cuda/attention.cu)."""

_IDENTITY_IN_SOME_NODES = frozenset({"Cast", "CastLike", "Dropout", "Slice"})
_VIEW_IN_SOME_NODES = _IDENTITY_IN_SOME_NODES | {"Gather"}
"""Operators that return a view in some nodes only, so that their record lists no view."""


@record
class View:
    """The storage that a tensor is in, and how it is laid out there."""

    storage: str
    """The first tensor that was written there."""
    strides: Strides | None
    """``None`` where shapes are unknown: assumed to be row-major."""


@dataclass(frozen=True, slots=True)
class _ViewCall:
    """One node that returns a view: what the view's strides follow from."""

    attributes: Mapping[str, Attribute]
    before: Dims
    strides: Strides
    after: Dims


def find_views(
    graph: Graph, *, in_place: bool | None, like_query: frozenset[str]
) -> Mapping[str, View]:
    """Find the storage and the strides of every tensor of a graph; subgraphs are left out.

    ``in_place`` selects the activations that overwrite their input: see ``in_place_activations``.
    ``like_query`` names the attentions whose kernel lays its output out like the query.
    """
    found: dict[str, View] = {}
    overwritten = in_place_activations(graph, in_place)
    # Running order: a node's inputs are in `found` before its outputs are looked at.
    for node in graph.nodes:
        for name in node.reads:
            if name not in found:
                found[name] = _own_storage(graph, name)
        # In place is no view to autograd, but the output is in the input's storage all the same.
        if node.name in overwritten:
            found[node.outputs[0]] = found[overwritten[node.name]]
            continue
        may_be_view = node.operator.autograd_view or node.op_type in _VIEW_IN_SOME_NODES
        for index, name in [(index, name) for index, name in enumerate(node.outputs) if name]:
            view = _view(graph, node, index, found) if may_be_view else None
            found[name] = view or _new_storage(graph, node, name, found, like_query)
    for name in graph.outputs:
        if name not in found:
            found[name] = _own_storage(graph, name)
    return found


def is_identity(graph: Graph, node: Node) -> bool:
    """Whether a node returns its input: a Dropout in eval mode, a Cast to the same type."""
    if node.op_type not in _IDENTITY_IN_SOME_NODES:
        return False
    operator = node.onnx_op
    if operator == "Dropout":
        return node.operator.saved_extra_bytes(graph.call(node)) == 0
    if operator in {"Cast", "CastLike"} and node.reads and node.writes:
        return keeps_type(graph, node)
    return operator == "Slice" and _is_full_slice(graph, node)


def in_place_activations(graph: Graph, requested: bool | None) -> Mapping[str, str]:  # noqa: FBT001 - an option
    """Map each activation that overwrites its input to that input.

    ``requested`` is ``TrainingConfig.in_place_activations``: all that can (true), none (false), or
    those that would otherwise save their input and follow a BatchNormalization (``None``). Networks
    of such blocks (Darknet, CSPNet, YOLO) have ``inplace=True`` in their code; no file shows it.
    """
    if requested is False:
        return {}
    found = _in_place_candidates(graph)
    if requested:
        return {name: data for name, (data, _) in found.items()}
    saves_input = _names(graph, _SAVES_INPUT)
    return {
        name: data
        for name, (data, producer) in found.items()
        if producer == "BatchNormalization" and name in saves_input
    }


def out_of_place_activations(graph: Graph) -> tuple[str, ...]:
    """Name the activations that are assumed to save their input, and would not in place.

    ReLU, Sigmoid and Tanh save their output either way, so running them in place gains nothing.
    """
    assumed = in_place_activations(graph, None)
    saves_input = _names(graph, _SAVES_INPUT)
    candidates = _in_place_candidates(graph)
    return tuple(name for name in candidates if name in saves_input and name not in assumed)


def in_place_arithmetic(graph: Graph, requested: bool | None) -> Mapping[str, bool]:  # noqa: FBT001 - an option
    """The nodes that write over their first operand, each with whether that is assumed.

    Files of torch.export have the line of code: ``x += shortcut``. Without it, the sum that ends a
    residual block is assumed to be one, unless ``requested`` is false: of a BatchNormalization and
    a shortcut, with an activation behind it. ResNet, ResNeXt, HRNet and DLA are written so in
    torchvision, timm and mmdetection; no file of the script exporter shows it.
    """
    found = {node.name: False for node in graph.nodes if _is_augmented(node)}
    if requested is not False:
        found.update((name, True) for name in _residual_sums(graph))
    return found


def _is_augmented(node: Node) -> bool:
    """Whether the line of code that made a node is an assignment such as ``x += shortcut``."""
    if node.onnx_op not in _ARITHMETIC or STACK_TRACE not in node.metadata:
        return False
    line = _AUGMENTED.fullmatch(node.metadata[STACK_TRACE].rpartition("\n")[2].strip())
    return line is not None and line[1] == _ARITHMETIC[node.onnx_op]


def _residual_sums(graph: Graph) -> Iterator[str]:
    """Name the sums of a BatchNormalization and a shortcut that an activation alone reads."""
    candidates = {
        data for data, producer in _in_place_candidates(graph).values() if producer == "Add"
    }
    if not candidates:
        return
    reads = Counter(name for node in graph.nodes for name in data_reads(node))
    producers = {name: node.onnx_op for node in graph.nodes for name in node.writes}
    for node in graph.nodes:
        if candidates.isdisjoint(node.writes) or STACK_TRACE in node.metadata:
            continue
        data = node.inputs[0]
        if producers.get(data) == "BatchNormalization" and reads[data] == 1:
            yield node.name


def _names(graph: Graph, operators: frozenset[str]) -> frozenset[str]:
    return frozenset(node.name for node in graph.nodes if node.onnx_op in operators)


def _in_place_candidates(graph: Graph) -> Mapping[str, tuple[str, str]]:
    """Map each activation that can overwrite its input to that input and its producer's operator.

    Autograd's version counters (torch/csrc/autograd/saved_variable.cpp) raise an error where a
    saved tensor was overwritten: so the producer must not have saved its output, and nothing else
    may read it. Clip and the like save a copy of their input in place, which gains nothing.
    """
    # Reads are counted over the whole graph: an output of the graph has one more, the caller's.
    activations = [node for node in graph.nodes if node.onnx_op in _SAVES_OUTPUT | _SAVES_INPUT]
    if not activations:
        return {}
    reads = Counter(name for node in graph.nodes for name in data_reads(node))
    reads.update(graph.outputs)
    producers = {name: node for node in graph.nodes for name in node.writes}
    found: dict[str, tuple[str, str]] = {}
    for node in activations:
        data = next(iter(node.inputs), "")
        producer = producers.get(data)
        if producer is not None and reads[data] == 1 and not _saves_its_output(producer):
            found[node.name] = data, producer.onnx_op
    return found


def _saves_its_output(producer: Node) -> bool:
    """Whether a backward formula may read what a node writes; a view's base may be saved too."""
    saved = {saved.name for saved in producer.operator.saved}
    return bool(producer.operator.autograd_view) or not saved.isdisjoint(producer.operator.outputs)


def _is_full_slice(graph: Graph, node: Node) -> bool:
    """Whether a Slice takes every element in order: Python's indexing makes no call then."""
    before, after = (known_dims(graph.tensors[n].shape) for n in (node.inputs[0], node.outputs[0]))
    steps = graph.values.get(node.inputs[4]) if len(node.inputs) > 4 else None  # noqa: PLR2004 - the steps are its fifth input
    return before is not None and before == after and all(step > 0 for step in steps or ())


def _own_storage(graph: Graph, name: str) -> View:
    dims = known_dims(graph.tensors[name].shape)
    return View(name, None if dims is None else contiguous(dims))


def _new_storage(
    graph: Graph,
    node: Node,
    name: str,
    found: Mapping[str, View],
    like_query: frozenset[str],
) -> View:
    """Lay out what a node allocates: like its first input of that shape, if it keeps strides.

    Element-wise operators do: TensorIterator's ``allocate_or_resize_outputs`` permutes the output
    as its operands are permuted (aten/src/ATen/TensorIterator.cpp).
    """
    dims = known_dims(graph.tensors[name].shape)
    if node.name in like_query and dims is not None and graph.tensors[node.inputs[0]].shape == dims:
        return View(name, like(dims, found[node.inputs[0]].strides))
    if dims is not None and node.operator is ATTENTION and len(dims) == len(_ATTENTION_OUTPUT):
        written = tuple(dims[axis] for axis in _ATTENTION_OUTPUT)
        return View(name, permuted(contiguous(written), _ATTENTION_OUTPUT))
    if dims is None or not node.operator.preserves_strides:
        return _own_storage(graph, name)
    tensors = graph.tensors
    for read in node.reads:
        if tensors[read].shape == dims:
            return View(name, like(dims, found[read].strides))
    return View(name, contiguous(dims))


def _view(graph: Graph, node: Node, index: int, found: Mapping[str, View]) -> View | None:
    """An output as a view of an input; ``None`` where it has a storage of its own."""
    output = node.outputs[index]
    viewed = _viewed_input(graph, node, index)
    if not viewed:
        return None
    source = found[viewed]
    before = known_dims(graph.tensors[viewed].shape)
    after = known_dims(graph.tensors[output].shape)
    if before is None or after is None or source.strides is None:
        return View(source.storage, None)
    call = _ViewCall(node.attributes, before, source.strides, after)
    is_contiguous = node.operator is CONTIGUOUS
    of_view = _contiguous if is_contiguous else _VIEW_STRIDES.get(node.onnx_op, _reshape)
    strides = of_view(call)
    # No strides: the reshape must copy, so that the output has a storage of its own.
    if strides is None:
        return None
    # A file may declare an output of another rank than its operator gives it.
    return View(source.storage, strides if len(strides) == len(after) else None)


def _viewed_input(graph: Graph, node: Node, index: int) -> str | None:
    """Name the input that an output is a view of."""
    if _is_select(graph, node) or (is_identity(graph, node) and index == 0):
        return next(iter(node.inputs), None)
    slot = node.operator.output_name(index)
    for source, result in node.operator.autograd_view:
        viewed = node.operator.input_index(source)
        if result == slot and viewed < len(node.inputs):
            return node.inputs[viewed]
    return None


def _is_select(graph: Graph, node: Node) -> bool:
    """Whether a Gather is ``torch.select``: by one constant index, as ``x[:, 0]`` is exported."""
    indices = node.inputs[1] if node.onnx_op == "Gather" and len(node.inputs) > 1 else ""
    return indices in graph.values and graph.tensors[indices].shape == ()


def _reshape(call: _ViewCall) -> Strides | None:
    return reshaped(call.before, call.strides, call.after)


def _contiguous(call: _ViewCall) -> Strides | None:
    """The same strides if they are in row-major order; otherwise the elements are copied."""
    return call.strides if is_row_major(call.before, call.strides) else None


def _transpose(call: _ViewCall) -> Strides | None:
    return permuted(call.strides, axes_order(call.attributes, len(call.before)))


def _expand(call: _ViewCall) -> Strides | None:
    if len(call.after) < len(call.before):
        return None
    return expanded(call.before, call.strides, call.after)


def _narrow(call: _ViewCall) -> Strides | None:
    """A range of each axis with step 1: the same strides from another offset."""
    return call.strides


def _select(call: _ViewCall) -> Strides | None:
    axis = call.attributes.get("axis", 0)
    dropped = axis % len(call.before) if isinstance(axis, int) else 0
    return call.strides[:dropped] + call.strides[dropped + 1 :]


_VIEW_STRIDES: Mapping[str, Callable[[_ViewCall], Strides | None]] = MappingProxyType(
    {
        "Cast": _narrow,
        "Dropout": _narrow,
        "Expand": _expand,
        "Gather": _select,
        "Slice": _narrow,
        "Split": _narrow,
        "Transpose": _transpose,
    }
)
"""The strides of a view, by operator; every other view is a reshape."""
