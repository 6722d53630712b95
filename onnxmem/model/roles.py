"""Which tensors are weights, by who reads them (definition 1).

Weights are initializers and Constant tensors that some node reads or that are graph outputs, and
the outputs of ConstantOfShape with a constant input. An initializer that only sizes a
ConstantOfShape, or that nothing reads, is none.
"""

from collections.abc import Sequence
from dataclasses import replace

from onnxmem.model.graph import Graph, Node, Role, Tensor


def weight_roles(graph: Graph) -> dict[str, Tensor]:
    """Tell the weights from what only looks like one, by who reads it: the tensors that change."""
    nodes = list(graph.all_nodes())
    tensors = graph.tensors
    changed: dict[str, Tensor] = {}
    for node in [node for node in nodes if node.op_type == "ConstantOfShape" and not node.domain]:
        sizes = next(iter(node.inputs), "")
        shape = changed.get(sizes) or tensors.get(sizes)
        if shape is not None and shape.role is Role.WEIGHT:
            for name in node.writes:
                changed[name] = replace(tensors[name], role=Role.WEIGHT)
    read = _really_read(graph, nodes)
    weights = {name: tensor for name, tensor in tensors.items() if tensor.role is Role.WEIGHT}
    for name, tensor in (weights | changed).items():
        if name not in read:
            changed[name] = replace(tensor, role=Role.UNREAD)
    return changed


def _really_read(graph: Graph, nodes: Sequence[Node]) -> set[str]:
    """Names that a node reads for their elements, or that a graph hands out."""
    read = set(graph.outputs)
    for node in nodes:
        if node.op_type != "ConstantOfShape" or node.domain:
            read.update(node.inputs)
        for _, inner in node.subgraphs:
            read.update(inner.outputs)
    return read
