"""Which tensors share a storage while an eager framework runs the graph forward.

A saved view keeps the whole storage that it looks into, and saving it twice costs nothing more.
Operators that are no views write a new storage in row-major order.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from onnxmem.model.graph import Graph, Node, record
from onnxmem.ops.spec import Attribute, known_dims
from onnxmem.runtimes.torch.axes import axes_order
from onnxmem.runtimes.torch.composites.framework import ATTENTION
from onnxmem.runtimes.torch.in_place import in_place_activations
from onnxmem.runtimes.torch.strides import (
    Dims,
    Strides,
    contiguous,
    expanded,
    like,
    permuted,
    reshaped,
)

_HEADS = (0, 2, 1, 3)
"""Attention kernels write [batch, rows, heads, width], and hand out [batch, heads, rows, width]."""


_HANDING_ON = frozenset({"Cast", "CastLike", "Dropout", "Slice"})
"""Operators that may hand their input on as it is."""
_LOOKING = _HANDING_ON | {"Gather"}
"""Operators that may look into a storage where their record does not say so."""


@record
class View:
    """A tensor as a look into a storage."""

    storage: str
    """The tensor that was first written there."""
    strides: Strides | None
    """``None`` where shapes are unknown: taken as row-major order."""


def views(graph: Graph, *, in_place: bool | None = False) -> Mapping[str, View]:
    """Find the storage of every tensor of a graph; subgraphs are left out.

    ``in_place`` says which activations write over their input: see ``in_place_activations``.
    """
    found: dict[str, View] = {}
    over = in_place_activations(graph, in_place)
    for node in graph.nodes:
        for name in node.reads:
            if name not in found:
                found[name] = _own_storage(graph, name)
        if node.name in over:
            found[node.outputs[0]] = found[over[node.name]]
            continue
        may_look = node.operator.autograd_view or node.op_type in _LOOKING
        for place, name in [(place, name) for place, name in enumerate(node.outputs) if name]:
            look = _view(graph, node, place, found) if may_look else None
            found[name] = look or _new_storage(graph, node, name, found)
    for name in graph.outputs:
        if name not in found:
            found[name] = _own_storage(graph, name)
    return found


def is_identity(graph: Graph, node: Node) -> bool:
    """Whether a node hands its input on: a Dropout that drops nothing, a Cast to the same type."""
    if node.op_type not in _HANDING_ON:
        return False
    operator = node.onnx_op
    if operator == "Dropout":
        return node.operator.saved_extra_bytes(graph.call(node)) == 0
    if operator in {"Cast", "CastLike"} and node.reads and node.writes:
        source, result = (graph.tensors[names[0]].dtype for names in (node.reads, node.writes))
        return source is not None and source == result
    return operator == "Slice" and _is_everything(graph, node)


def _is_everything(graph: Graph, node: Node) -> bool:
    """Whether a Slice takes all: Python's indexing makes no such call."""
    before, after = (known_dims(graph.tensors[n].shape) for n in (node.inputs[0], node.outputs[0]))
    steps = graph.values.get(node.inputs[4]) if len(node.inputs) > 4 else None  # noqa: PLR2004
    return before is not None and before == after and all(step > 0 for step in steps or ())


def _own_storage(graph: Graph, name: str) -> View:
    dims = known_dims(graph.tensors[name].shape)
    return View(name, None if dims is None else contiguous(dims))


def _new_storage(graph: Graph, node: Node, name: str, found: Mapping[str, View]) -> View:
    """Lay out what an operator writes: as its first operand of that shape, if it keeps strides."""
    dims = known_dims(graph.tensors[name].shape)
    if dims is not None and node.operator is ATTENTION and len(dims) == len(_HEADS):
        return View(name, permuted(contiguous(tuple(dims[axis] for axis in _HEADS)), _HEADS))
    if dims is None or not node.operator.keeps_strides:
        return _own_storage(graph, name)
    tensors = graph.tensors
    for read in node.reads:
        if tensors[read].shape == dims:
            return View(name, like(dims, found[read].strides))
    return View(name, contiguous(dims))


@dataclass(frozen=True, slots=True)
class _Look:
    """One operator that looks into a storage: what its strides follow from."""

    attributes: Mapping[str, Attribute]
    before: Dims
    strides: Strides
    after: Dims


def _view(graph: Graph, node: Node, place: int, found: Mapping[str, View]) -> View | None:
    """See an output as a view of an input; ``None`` where it has a storage of its own."""
    output = node.outputs[place]
    viewed = _viewed_input(graph, node, place)
    if not viewed:
        return None
    source = found[viewed]
    before = known_dims(graph.tensors[viewed].shape)
    after = known_dims(graph.tensors[output].shape)
    if before is None or after is None or source.strides is None:
        return View(source.storage, None)
    look = _Look(node.attributes, before, source.strides, after)
    strides = _STRIDES.get(node.onnx_op, _reshape)(look)
    return None if strides is None else View(source.storage, strides)


def _viewed_input(graph: Graph, node: Node, place: int) -> str | None:
    """Name the input that an output looks into."""
    if _is_select(graph, node) or (is_identity(graph, node) and place == 0):
        return next(iter(node.inputs), None)
    slot = node.operator.output_name(place)
    for source, result in node.operator.autograd_view:
        viewed = node.operator.input_index(source)
        if result == slot and viewed < len(node.inputs):
            return node.inputs[viewed]
    return None


def _is_select(graph: Graph, node: Node) -> bool:
    """Whether a Gather takes one slice by a constant number, as exporters write ``x[:, 0]``."""
    indices = node.inputs[1] if node.onnx_op == "Gather" and len(node.inputs) > 1 else ""
    return indices in graph.values and graph.tensors[indices].shape == ()


def _reshape(look: _Look) -> Strides | None:
    return reshaped(look.before, look.strides, look.after)


def _transpose(look: _Look) -> Strides | None:
    return permuted(look.strides, axes_order(look.attributes, len(look.before)))


def _expand(look: _Look) -> Strides | None:
    if len(look.after) < len(look.before):
        return None
    return expanded(look.before, look.strides, look.after)


def _keep(look: _Look) -> Strides | None:
    """Keep the strides: a piece of each axis, walked in steps of 1."""
    return look.strides


def _select(look: _Look) -> Strides | None:
    axis = look.attributes.get("axis", 0)
    dropped = axis % len(look.before) if isinstance(axis, int) else 0
    return look.strides[:dropped] + look.strides[dropped + 1 :]


_STRIDES: Mapping[str, Callable[[_Look], Strides | None]] = MappingProxyType(
    {
        "Cast": _keep,
        "Dropout": _keep,
        "Expand": _expand,
        "Gather": _select,
        "Slice": _keep,
        "Split": _keep,
        "Transpose": _transpose,
    }
)
"""How the strides change, by operator; every other view is a reshape."""
