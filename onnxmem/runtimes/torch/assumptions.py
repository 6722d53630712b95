"""What an inference export leaves out and a training run has: BatchNormalization and Dropout.

Exporters fold a BatchNormalization into the layer before it and drop Dropout. What is put back, and
where, is said here; which layers had a BatchNormalization is read in ``folded``.
"""

from collections.abc import Iterable

from onnxmem.model.graph import Graph, Node
from onnxmem.runtimes.torch.folded import has_own_bias
from onnxmem.runtimes.torch.insertion import Insertion, Part

_RATIO = 0.5
"""Any but 0: the mask is as large whatever the ratio."""
_HIERARCHY = "pkg.torch.onnx.class_hierarchy"
_DROPOUT_MODULE = "torch.nn.modules.dropout."


def with_batchnorm(graph: Graph, layers: Iterable[Node]) -> Graph:
    """Put a BatchNormalization behind each of some layers, in place of the bias that it gave them.

    Their shapes are known.
    """
    insertion = Insertion(graph)
    for node in layers:
        output = node.outputs[0]
        shape = graph.tensors[output].shape
        channels = (shape or ())[1:2]
        names = ("scale", "bias", "running_mean", "running_var")
        operands = [insertion.weight(f"{node.name}/{n}", output, channels) for n in names]
        part = Part("BatchNormalization", (output, *operands))
        insertion.take_over(output, insertion.node(node, part, output, shape))
        if not has_own_bias(node):
            insertion.drop_input(node, 2)
    return insertion.done()


def with_dropout(graph: Graph, layers: Iterable[Node]) -> Graph:
    """Put a Dropout behind each of some nodes."""
    insertion = Insertion(graph)
    for node in layers:
        output = node.outputs[0]
        shape = graph.tensors[output].shape
        part = Part("Dropout", (output,), {"ratio": _RATIO, "is_test": 0}, opset=1)
        insertion.take_over(output, insertion.node(node, part, output, shape))
    return insertion.done()


def dropped_nodes(graph: Graph) -> tuple[Node, ...]:
    """The nodes behind which there was a Dropout, if there was any.

    None where the file runs Dropout itself. Where torch.export has left a Dropout module's node (an
    Identity), it is those. Else it is where networks have them: behind each softmax of an
    attention, behind each linear layer before a sum, and before each linear layer but the first of
    a classifier.
    """
    if any(node.onnx_op == "Dropout" for node in graph.nodes):
        return ()
    modules = tuple(node for node in graph.nodes if _is_dropout_module(node))
    if modules:
        return modules
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.reads:
            readers.setdefault(name, []).append(node)
    return tuple(
        node
        for node in graph.nodes
        if any(_is_dropped(graph, node, reader) for reader in readers.get(node.outputs[0], ()))
    )


def _is_dropout_module(node: Node) -> bool:
    """Whether the innermost module of a node is a Dropout that does nothing in inference."""
    is_identity = node.onnx_op == "Identity"
    return is_identity and _DROPOUT_MODULE in node.metadata.get(_HIERARCHY, "")


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
