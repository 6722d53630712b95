"""Names of nodes: records of a run speak of nodes by their names alone."""

from collections import Counter
from collections.abc import Iterator

import onnx

from onnxmem.model.traversal import nodes_in


def has_own_names(model: onnx.ModelProto) -> bool:
    """Whether every node has a name that no other has."""
    names = [node.name for node in _nodes(model)]
    return all(names) and len(set(names)) == len(names)


def name_nodes(model: onnx.ModelProto) -> None:
    """Give the nodes without a name of their own one, in place; a name changes no memory."""
    taken = {node.name for node in _nodes(model)}
    seen = {""}
    numbers: Counter[str] = Counter()
    for node in _nodes(model):
        if node.name in seen:
            stem = node.name or node.op_type
            node.name = _free_name(stem, numbers, taken)
            taken.add(node.name)
        seen.add(node.name)


def _free_name(stem: str, numbers: Counter[str], taken: set[str]) -> str:
    while True:
        name = f"{stem}_{numbers[stem]}"
        numbers[stem] += 1
        if name not in taken:
            return name


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for body in (model.graph.node, *(function.node for function in model.functions)):
        yield from nodes_in(body)
