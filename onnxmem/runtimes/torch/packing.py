"""Recurrent layers' weights, which exporters put together from the framework's own.

PyTorch keeps four matrices and vectors for each layer and direction; ONNX wants them in another
order of gates and packed into three tensors. Where a file does that by nodes, the framework does
nothing: the layer reads the parameters themselves, and makes their gradients.
"""

from collections.abc import Iterator, Mapping

from onnxmem.model.graph import Graph, Node, Role
from onnxmem.model.parameters import Parameters
from onnxmem.runtimes.torch.recurrent_layer import is_recurrent

_WEIGHTS_AT = slice(1, 4)
_LAYOUT = frozenset(
    {"Cast", "Concat", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)


def packed_weights(graph: Graph, parameters: Parameters) -> Mapping[str, tuple[str, ...]]:
    """Map each tensor that nodes pack from weights to the parameters that it is made of.

    What lies between is in the mapping too: none of it takes memory in a step.
    """
    recurrent = [node for node in graph.nodes if is_recurrent(node.onnx_op)]
    if not recurrent:
        return {}
    makers = {name: node for node in graph.nodes for name in node.writes}
    trained = {graph.tensors[name].storage_key: name for name in parameters.trained}
    found: dict[str, tuple[str, ...]] = {}
    for node in recurrent:
        for name in filter(None, node.inputs[_WEIGHTS_AT]):
            found.update(_unpacked(graph, makers, trained, name))
    return found


def _unpacked(
    graph: Graph, makers: Mapping[str, Node], trained: Mapping[str, str], name: str
) -> dict[str, tuple[str, ...]]:
    """The tensors on the way to a packed one, each with all its parameters; none if it is not."""
    passed: list[str] = []
    sources: dict[str, None] = {}
    for text in _walk(makers, name):
        maker = makers.get(text)
        if maker is not None:
            if maker.onnx_op not in _LAYOUT:
                return {}
            passed.append(text)
        elif graph.tensors[text].role is not Role.WEIGHT:
            return {}
        elif (key := graph.tensors[text].storage_key) in trained:
            sources[trained[key]] = None
    return dict.fromkeys(passed, tuple(sources)) if sources else {}


def _walk(makers: Mapping[str, Node], name: str) -> Iterator[str]:
    """A tensor and what layout operators make it of, back to where they start."""
    waiting, seen = [name], {name}
    while waiting:
        name = waiting.pop()
        yield name
        maker = makers.get(name)
        if maker is not None and maker.onnx_op in _LAYOUT:
            pieces = maker.inputs if maker.onnx_op == "Concat" else maker.inputs[:1]
            waiting += [piece for piece in pieces if piece not in seen]
            seen.update(pieces)
