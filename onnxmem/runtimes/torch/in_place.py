"""Activations that write over their input."""

from collections import Counter
from collections.abc import Mapping

from onnxmem.model.graph import Graph, Node
from onnxmem.runtimes.torch.constants import data_reads

_KEEPING_OUTPUT = frozenset({"Relu", "Sigmoid", "Tanh"})
_KEEPING_INPUT = frozenset({"Celu", "Elu", "LeakyRelu", "Selu"})
"""They keep their output where they run in place."""


def in_place_activations(graph: Graph, asked: bool | None) -> Mapping[str, str]:  # noqa: FBT001 - a recipe's
    """Map each activation that writes over its input to that input.

    ``asked`` is what a recipe says: all that may (true), none (false), or those that would keep
    their input else and follow a BatchNormalization (``None``). Networks of such blocks (Darknet,
    CSPNet, YOLO) have ``inplace=True`` in their code; no file tells.
    """
    if asked is False:
        return {}
    found = _possible(graph)
    if asked:
        return {name: data for name, (data, _) in found.items()}
    return {
        name: data
        for name, (data, maker) in found.items()
        if maker == "BatchNormalization" and name in _names(graph, _KEEPING_INPUT)
    }


def inputs_kept_in_vain(graph: Graph) -> tuple[str, ...]:
    """Name the activations that keep their input as it is assumed, and would not in place.

    ReLU, Sigmoid and Tanh keep their output either way: in place they save nothing that is kept.
    """
    assumed = in_place_activations(graph, None)
    keeping = _names(graph, _KEEPING_INPUT)
    return tuple(name for name in _possible(graph) if name in keeping and name not in assumed)


def _names(graph: Graph, operators: frozenset[str]) -> frozenset[str]:
    return frozenset(node.name for node in graph.nodes if node.onnx_op in operators)


def _possible(graph: Graph) -> Mapping[str, tuple[str, str]]:
    """Map each activation that may write over its input to that input and the operator behind it.

    Its backward formula reads its output, so nothing is lost; what makes the input must not read
    what is overwritten in its own, and nothing else may read it. (Clip and the like keep a copy of
    their input when they run in place: nothing is gained.)
    """
    activations = [node for node in graph.nodes if node.onnx_op in _KEEPING_OUTPUT | _KEEPING_INPUT]
    if not activations:
        return {}
    reads = Counter(name for node in graph.nodes for name in data_reads(node))
    reads.update(graph.outputs)
    makers = {name: node for node in graph.nodes for name in node.writes}
    found: dict[str, tuple[str, str]] = {}
    for node in activations:
        data = next(iter(node.inputs), "")
        maker = makers.get(data)
        if maker is not None and reads[data] == 1 and _needs_no_output(maker):
            found[node.name] = data, maker.onnx_op
    return found


def _needs_no_output(maker: Node) -> bool:
    saved = {saved.name for saved in maker.operator.saved}
    return saved.isdisjoint(maker.operator.outputs) and not maker.operator.autograd_view
