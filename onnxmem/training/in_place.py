"""Activations that write over their input."""

from collections import Counter
from collections.abc import Mapping

from onnxmem.model import Graph
from onnxmem.training.constants import data_reads

_KEEPING_OUTPUT = frozenset({"Relu", "Sigmoid", "Tanh"})
_IN_PLACE = _KEEPING_OUTPUT | frozenset({"Celu", "Elu", "LeakyRelu", "Selu"})


def in_place_activations(graph: Graph) -> Mapping[str, str]:
    """Map each activation that may write over its input to that input.

    Its backward formula reads its output, so nothing is lost; what makes the input must not read
    what is overwritten in its own, and nothing else may read it. (Clip and the like keep a copy of
    their input when they run in place: nothing is gained.)
    """
    reads = Counter(name for node in graph.nodes for name in data_reads(node))
    reads.update(graph.outputs)
    makers = {name: node for node in graph.nodes for name in node.writes}
    found: dict[str, str] = {}
    for node in graph.nodes:
        data = next(iter(node.inputs), "")
        maker = makers.get(data)
        if node.onnx_op in _IN_PLACE and maker is not None and reads[data] == 1:
            outputs = {saved.name for saved in maker.operator.saved}
            if outputs.isdisjoint(maker.operator.outputs) and not maker.operator.autograd_view:
                found[node.name] = data
    return found


def inputs_kept_in_vain(graph: Graph) -> tuple[str, ...]:
    """Name the activations that keep their input, and in place would keep their output alone.

    ReLU, Sigmoid and Tanh keep their output either way: in place they save nothing that is kept.
    """
    if all(node.onnx_op not in _IN_PLACE - _KEEPING_OUTPUT for node in graph.nodes):
        return ()
    may_be = in_place_activations(graph)
    return tuple(
        node.name
        for node in graph.nodes
        if node.name in may_be and node.onnx_op not in _KEEPING_OUTPUT
    )
