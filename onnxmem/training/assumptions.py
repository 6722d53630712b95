"""What an inference export leaves out and a training run has: BatchNormalization and Dropout.

Exporters fold a BatchNormalization into the layer before it, even in training mode, and drop
Dropout. Where a reader says that they were there, they are put back where networks have them.
"""

import re

from onnxmem.model import Graph, Node
from onnxmem.ops.spec import known_dims
from onnxmem.training.insertion import Insertion, Part

_FOLDED_OUTPUT = re.compile(r"(^|/)getitem(_\d+)?$")
"""How torch.export names the output of a normalisation, which the folded convolution inherits."""
_FOLDED_WEIGHT = re.compile(r"(^|/)onnx::(Conv|ConvTranspose)_\d+$")
"""How the older exporter names a weight that it has changed."""
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_FOLDED_INTO = _CONVOLUTIONS | {"Gemm"}
_RATIO = 0.5
"""Any but 0: the mask is as large whatever the ratio."""


def folded_layers(graph: Graph) -> tuple[Node, ...]:
    """The layers that bear the trace of a BatchNormalization folded into them."""
    return tuple(
        node
        for node in graph.nodes
        if node.onnx_op in _FOLDED_INTO
        and (_FOLDED_OUTPUT.search(node.outputs[0]) or _FOLDED_WEIGHT.search(node.inputs[1]))
    )


def with_batchnorm(graph: Graph) -> Graph:
    """Put a BatchNormalization behind each folded layer; without traces, behind convolutions."""
    insertion = Insertion(graph)
    all_with_bias = (
        node
        for node in graph.nodes
        if node.onnx_op in _CONVOLUTIONS and len(node.inputs) > 2  # noqa: PLR2004
    )
    for node in folded_layers(graph) or all_with_bias:
        output = node.outputs[0]
        dims = known_dims(graph.tensors[output].shape)
        if dims is None:
            continue
        channels = (dims[1],)
        names = ("scale", "bias", "running_mean", "running_var")
        operands = [insertion.weight(f"{node.name}/{n}", output, channels) for n in names]
        shape = graph.tensors[output].shape
        part = Part("BatchNormalization", (output, *operands))
        insertion.take_over(output, insertion.node(node, part, output, shape))
        insertion.drop_input(node, 2)
    return insertion.done()


def with_dropout(graph: Graph) -> Graph:
    """Put a Dropout behind each softmax of an attention and each linear layer before a sum.

    That is where transformers have it; and before each linear layer but the first of a classifier.
    """
    insertion = Insertion(graph)
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.reads:
            readers.setdefault(name, []).append(node)
    for node in graph.nodes:
        if any(_is_dropped(graph, node, reader) for reader in readers.get(node.outputs[0], ())):
            output = node.outputs[0]
            shape = graph.tensors[output].shape
            part = Part("Dropout", (output,), {"ratio": _RATIO, "is_test": 0}, opset=1)
            insertion.take_over(output, insertion.node(node, part, output, shape))
    return insertion.done()


def _is_dropped(graph: Graph, node: Node, reader: Node) -> bool:
    """Whether networks drop between two operators."""
    if node.onnx_op == "Softmax":
        return reader.onnx_op == "MatMul"
    if node.onnx_op in {"Relu", "Gelu", "Tanh", "Flatten"}:
        return reader.onnx_op == "Gemm"
    is_linear = node.onnx_op in {"Gemm", "MatMul", "Add"}
    shapes = [graph.tensors[name].shape for name in (*reader.reads, node.outputs[0])]
    is_residual = reader.onnx_op == "Add" and len(set(shapes)) == 1
    return is_linear and is_residual and _is_layer(graph, node)


def _is_layer(graph: Graph, node: Node) -> bool:
    """Whether a node is the end of a linear layer: its last operand is a weight."""
    roles = {graph.tensors[name].role for name in node.reads}
    return len(roles) > 1 and "weight" in {role.value for role in roles}
