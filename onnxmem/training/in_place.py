"""Operators that write over their input: a linear layer's bias, and activations in place."""

from collections import Counter
from collections.abc import Mapping

from onnxmem.model import Graph, Role
from onnxmem.ops.spec import known_dims

_IN_PLACE = frozenset({"Celu", "Elu", "LeakyRelu", "Relu", "Selu", "Sigmoid", "Tanh"})


def linear_biases(graph: Graph) -> Mapping[str, str]:
    """Map each Add of a bias vector to the MatMul's output that it is added to.

    The MatMul is by a weight, and nothing else reads its output: ``torch.nn.Linear`` of more than
    two dims, which runs as one addmm.
    """
    reads = Counter(name for node in graph.nodes for name in node.reads)
    reads.update(graph.outputs)
    products = {
        node.outputs[0]
        for node in graph.nodes
        if node.onnx_op == "MatMul" and any(_is_matrix(graph, name) for name in node.inputs)
    }
    found: dict[str, str] = {}
    for node in graph.nodes:
        if node.onnx_op != "Add":
            continue
        for product, bias in (node.inputs, node.inputs[::-1]):
            if product in products and reads[product] == 1 and _is_vector(graph, bias):
                found[node.name] = product
    return found


def in_place_activations(graph: Graph) -> Mapping[str, str]:
    """Map each activation that may write over its input to that input.

    Its backward formula reads its output, so nothing is lost; what makes the input must not read
    what is overwritten in its own, and nothing else may read it. (Clip and the like keep a copy of
    their input when they run in place: nothing is gained.)
    """
    reads = Counter(name for node in graph.nodes for name in node.reads)
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


def _is_matrix(graph: Graph, name: str) -> bool:
    dims = known_dims(graph.tensors[name].shape)
    return dims is not None and len(dims) == 2  # noqa: PLR2004 - a matrix


def _is_vector(graph: Graph, name: str) -> bool:
    tensor = graph.tensors[name]
    return tensor.role is Role.WEIGHT and tensor.shape is not None and len(tensor.shape) == 1
