"""The records of a graph at other dims: nodes and weights are read once, types each time."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace

import onnx

from onnxmem.model.graph import Graph, Role, Tensor
from onnxmem.model.value_types import NOTHING_KNOWN, Known, known_of

_GIVEN = frozenset({Role.INPUT, Role.ACTIVATION})


def is_retypable(graph: Graph) -> bool:
    """Whether dims change nothing of a graph but the types of its tensors."""
    return not any(node.subgraphs or node.onnx_op == "ConstantOfShape" for node in graph.nodes)


def retyped(graph: Graph, proto: onnx.GraphProto, assumed: AbstractSet[str]) -> Graph:
    """A graph that was read, with the types that the same graph has in ``proto``.

    ``assumed`` names the tensors whose shapes nothing derives.
    """
    values = (*proto.value_info, *proto.output, *proto.input)
    known = {value.name: known_of(value.type) for value in values}
    tensors = {**graph.tensors}
    tensors.update((tensor.name, tensor) for tensor in _changed(graph, known, assumed))
    return replace(graph, tensors=tensors)


def _changed(graph: Graph, known: dict[str, Known], assumed: AbstractSet[str]) -> Iterator[Tensor]:
    for name, tensor in graph.tensors.items():
        if tensor.role not in _GIVEN:
            continue
        kind, is_assumed = known.get(name, NOTHING_KNOWN), name in assumed
        if (tensor.shape, tensor.dtype, tensor.is_assumed) != (kind.shape, kind.dtype, is_assumed):
            yield Tensor(name, kind.dtype, kind.shape, tensor.role, is_assumed=is_assumed)
