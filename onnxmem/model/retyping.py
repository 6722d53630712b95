"""The records of a graph at other dims: nodes and weights are read once, types each time."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from onnxmem.model.graph import Graph, Role, Tensor
from onnxmem.model.value_types import NOTHING_KNOWN, Known

_GIVEN = frozenset({Role.INPUT, Role.ACTIVATION})
_FILLS = "ConstantOfShape"
"""What it makes is a weight at times, as long as the dims say."""


def retyped(graph: Graph, types: Mapping[str, Known], assumed: AbstractSet[str]) -> Graph:
    """A graph that was read, with other types of what is handed in and of what nodes make.

    ``assumed`` names the tensors whose shapes nothing derives.
    """
    tensors = {**graph.tensors}
    filled = {name for node in graph.nodes if node.op_type == _FILLS for name in node.writes}
    for name, tensor in graph.tensors.items():
        if tensor.role not in _GIVEN and name not in filled:
            continue
        kind, is_assumed = types.get(name, NOTHING_KNOWN), name in assumed
        if (
            tensor.shape != kind.shape
            or tensor.dtype is not kind.dtype
            or tensor.is_assumed is not is_assumed
        ):
            tensors[name] = Tensor(name, kind.dtype, kind.shape, tensor.role, is_assumed=is_assumed)
    return replace(graph, tensors=tensors)
