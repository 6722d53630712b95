"""Recurrent layers that PyTorch runs in one call of cuDNN, as exporters write them.

A module of several layers becomes a node for each, whose output is reordered for the next one.
cuDNN runs what PyTorch's modules can ask for: no peepholes, no other activations, no lone reverse
direction. Other layers remain cells.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from onnxmem.model.graph import Node
from onnxmem.model.module_paths import paths_of
from onnxmem.runtimes.torch.composites.rewriting import GraphView, Match
from onnxmem.runtimes.torch.framework import CUDNN_RNN
from onnxmem.runtimes.torch.recurrent import RECURRENT

_ACTIVATIONS = {
    "LSTM": (("sigmoid", "tanh", "tanh"),),
    "GRU": (("sigmoid", "tanh"),),
    "RNN": (("tanh",), ("relu",)),
}
"""Of one direction."""
_NOT_OF_CUDNN = ("clip", "input_forget", "layout")
_SEQUENCE_LENS, _PEEPHOLES = 4, 7
_H, _C = 5, 6


def recurrent_calls(view: GraphView) -> Iterator[Match]:
    """Find the layers of each module, with what reorders and drops their outputs between."""
    positions = {node.name: index for index, node in enumerate(view.graph.nodes)}
    paths = dict(zip(positions, paths_of(view.graph.nodes), strict=True))
    used: set[str] = set()
    for node in view.graph.nodes:
        if node.name not in used and _is_of_cudnn(node):
            layers = _layers(view, node, paths)
            if not _ends_before_readers(view, layers, positions):
                layers = [_Layer(node, (node,), node.outputs[0])]
            used.update(layer.node.name for layer in layers)
            yield _match(view, layers)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer of a module."""

    node: Node
    nodes: tuple[Node, ...]
    """With those before it that drop outputs of the layer before, and those that reorder its own
    output to [T, B, D x H]."""
    output: str
    has_dropout: bool = False
    """Before it."""


def _layers(view: GraphView, first: Node, paths: dict[str, tuple[str, ...]]) -> list[_Layer]:
    """All layers of a module from its first one on."""
    layers = [_layer(view, first)]
    while (after := _next(view, layers[-1])) is not None and _are_alike(first, after.node, paths):
        layers.append(after)
    return layers


def _is_of_cudnn(node: Node) -> bool:
    if node.onnx_op not in RECURRENT or node.subgraphs:
        return False
    given = node.attributes
    if any(given.get(name) for name in _NOT_OF_CUDNN) or given.get("direction") == "reverse":
        return False
    if node.onnx_op == "GRU" and not given.get("linear_before_reset"):
        return False
    activations = given.get("activations")
    if isinstance(activations, tuple):
        known = _ACTIVATIONS[node.onnx_op]
        named = tuple(str(each).lower() for each in activations)
        if named not in {each * times for each in known for times in (1, 2)}:
            return False
    return not any(node.inputs[index : index + 1] > ("",) for index in (_SEQUENCE_LENS, _PEEPHOLES))


def _layer(view: GraphView, node: Node, before: Node | None = None) -> _Layer:
    """A layer, after a Dropout if one is given."""
    nodes = (*(() if before is None else (before,)), node)
    name = node.outputs[0]
    reordering = _reordering(view, name) if name else ()
    output = reordering[-1].outputs[0] if reordering else name
    return _Layer(node, (*nodes, *reordering), output, before is not None)


def _reordering(view: GraphView, name: str) -> tuple[Node, ...]:
    """The nodes that join the directions of Y, [T, D, B, H]: none, or to [T, B, D x H]."""
    first = _only_reader(view, name)
    if first is None:
        return ()
    if first.onnx_op == "Squeeze":
        return (first,) if _shape_of(view, first) == _joined(view, name) else ()
    if first.onnx_op != "Transpose" or first.attributes.get("perm") != (0, 2, 1, 3):
        return ()
    second = _only_reader(view, first.outputs[0])
    if second is None or second.onnx_op != "Reshape":
        return ()
    return (first, second) if _shape_of(view, second) == _joined(view, name) else ()


def _joined(view: GraphView, name: str) -> tuple[int | None, ...] | None:
    """The shape of Y as [T, B, D x H]."""
    dims = view.dims(name)
    return None if dims is None else (dims[0], dims[2], dims[1] * dims[3])


def _shape_of(view: GraphView, node: Node) -> tuple[int | None, ...]:
    return view.dims(node.outputs[0]) or ()


def _only_reader(view: GraphView, name: str) -> Node | None:
    return view.readers.get(name) if view.reads[name] == 1 else None


def _next(view: GraphView, layer: _Layer) -> _Layer | None:
    """The layer that reads the output of another, perhaps after a Dropout."""
    if layer.output == layer.node.outputs[0]:
        return None
    reader = _only_reader(view, layer.output)
    before = None
    if reader is not None and reader.onnx_op == "Dropout" and reader.inputs[0] == layer.output:
        before, reader = reader, _only_reader(view, reader.outputs[0])
    if reader is None or not _is_of_cudnn(reader):
        return None
    is_data = reader.inputs[0] == (layer.output if before is None else before.outputs[0])
    return _layer(view, reader, before) if is_data else None


def _are_alike(first: Node, node: Node, paths: dict[str, tuple[str, ...]]) -> bool:
    """Whether a node can be a further layer of a module: the same sizes, in the same module."""
    names = ("hidden_size", "direction", "activations")
    return (
        first.onnx_op == node.onnx_op
        and all(first.attributes.get(name) == node.attributes.get(name) for name in names)
        and paths[first.name] == paths[node.name]
    )


def _ends_before_readers(view: GraphView, layers: list[_Layer], positions: dict[str, int]) -> bool:
    """Whether all that reads a state of a layer runs after the last node of the last layer."""
    end = positions[layers[-1].nodes[-1].name]
    inside = {node.name for layer in layers for node in layer.nodes}
    states = {name for layer in layers for name in layer.node.outputs[1:] if name}
    readers = (node for node in view.graph.nodes[:end] if node.name not in inside)
    return all(states.isdisjoint(node.reads) for node in readers)


def _match(view: GraphView, layers: list[_Layer]) -> Match:
    first = layers[0].node
    states = [name for layer in layers for name in layer.node.outputs[1:] if view.reads[name]]
    weights = [name for layer in layers for name in (*layer.node.inputs[1:4], "", "")[:3]]
    initial = (*first.inputs, *("",) * _PEEPHOLES)
    return Match(
        tuple(node for layer in layers for node in layer.nodes),
        CUDNN_RNN,
        (first.inputs[0], initial[_H], initial[_C], *weights),
        (layers[-1].output, *states),
        {
            "mode": first.onnx_op,
            "num_layers": len(layers),
            "has_dropout": int(any(layer.has_dropout for layer in layers)),
        },
    )
