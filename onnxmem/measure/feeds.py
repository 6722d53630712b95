"""What a run is fed: an input of the bound shape for each of the graph's."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from onnxmem.measure.run_request import Feed
from onnxmem.model import BoundModel, DType, Graph, Tensor
from onnxmem.model.input_values import given_values, may_be_setting
from onnxmem.ops.spec import known_dims
from onnxmem.runtimes.onnxruntime.session_files import RefusedError
from onnxmem.settings import Values

NONE_GIVEN: Final[Mapping[str, Values]] = MappingProxyType({})

_INDICES: Final = {"Gather": (0, 1), "GatherElements": (0, 1)}
"""Operator -> the places of its data and its indices."""


def feeds_of(bound: BoundModel, values: Mapping[str, Values] = NONE_GIVEN) -> tuple[Feed, ...]:
    """Feeds for every input of a graph, with the values that are given.

    :raises RefusedError: an input that no array can be.
    :raises GivenValueError: a value that does not fit its input.
    """
    graph = bound.graph
    given_values(graph, values)
    return tuple(_feed(graph, graph.tensors[name], values.get(name, ())) for name in graph.inputs)


def fed_values(bound: BoundModel, feeds: Iterable[Feed]) -> dict[str, Values]:
    """What is fed, of the inputs that may decide what a run does."""
    tensors = bound.graph.tensors
    return {
        feed.name: feed.elements or (feed.number,)
        for feed in feeds
        if feed.elements or may_be_setting(tensors[feed.name])
    }


def _feed(graph: Graph, tensor: Tensor, elements: Values) -> Feed:
    dims = known_dims(tensor.shape)
    if tensor.dtype is None or dims is None:
        message = f"input {tensor.name!r} is no tensor of a known rank: nothing can be fed to it"
        raise RefusedError(message)
    elem_type = list(DType).index(tensor.dtype) + 1
    number = _number(graph, tensor)
    return Feed(tensor.name, tensor.dtype.value, elem_type, dims, number, elements)


def _number(graph: Graph, tensor: Tensor) -> int:
    """1, the least length there is, unless it indexes an axis of length 1."""
    return 0 if 1 in _indexed(graph, tensor.name) else 1


def _indexed(graph: Graph, name: str) -> Iterator[int | None]:
    """Lengths of the axes that an input indexes."""
    for node in graph.nodes:
        data, indices = _INDICES.get(node.onnx_op, (0, 0))
        if indices and node.inputs[indices : indices + 1] == (name,):
            shape, axis = graph.tensors[node.inputs[data]].shape, node.attributes.get("axis", 0)
            if shape is not None and isinstance(axis, int) and -len(shape) <= axis < len(shape):
                yield shape[axis]
