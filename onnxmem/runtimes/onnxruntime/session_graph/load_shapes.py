"""The child's side: what onnxruntime plans with, read out of a file in its own format.

A session saves the shapes there of every value of its graph, exactly as its planner saw them, and
the constants with their elements, those that it has folded too.
"""

import hashlib
from collections.abc import Iterator

from onnxruntime.tools.ort_format_model.ort_flatbuffers_py import fbs
from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs.DimensionValueType import (
    DimensionValueType,
)
from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs.InferenceSession import (
    InferenceSession,
)
from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs.TensorTypeAndShape import (
    TensorTypeAndShape,
)
from onnxruntime.tools.ort_format_model.ort_flatbuffers_py.fbs.TypeInfoValue import TypeInfoValue

_Dims = list[int | str | None] | None


_HEAD_BYTES = 4096
"""Constants that differ do so here, but for few."""


def shapes_at_load(saved: bytes) -> dict[str, dict[str, _Dims]]:
    """The dims of every value by the place of its graph and its name (``PlacedShapes``)."""
    return {
        place: {
            _text(value.Name()): _dims(value.Type())
            for value in (graph.NodeArgs(index) for index in range(graph.NodeArgsLength()))
        }
        for place, graph in _saved_graphs(saved)
    }


def contents_at_load(saved: bytes) -> dict[str, dict[str, str]]:
    """What constants of equal elements have in common, by place and name (``PlacedContents``).

    Those whose elements no other constant of their type and dims has are left out.
    """
    alike: dict[tuple[object, ...], list[tuple[str, fbs.Tensor.Tensor]]] = {}
    for place, graph in _saved_graphs(saved):
        for index in range(graph.InitializersLength()):
            tensor = graph.Initializers(index)
            if tensor.RawDataLength():
                dims = tuple(tensor.Dims(axis) for axis in range(tensor.DimsLength()))
                head = tensor.RawDataAsNumpy()[:_HEAD_BYTES].tobytes()
                alike.setdefault((tensor.DataType(), dims, head), []).append((place, tensor))
    found: dict[str, dict[str, str]] = {}
    for (kind, shape, _), tensors in alike.items():
        for place, tensor in tensors if len(tensors) > 1 else ():
            digest = hashlib.sha256(tensor.RawDataAsNumpy()).hexdigest()
            found.setdefault(place, {})[_text(tensor.Name())] = f"{kind} {shape} {digest}"
    return found


def indices_at_load(saved: bytes) -> dict[str, dict[str, int]]:
    """The numbers of the nodes, by the place of their graph and their first output."""
    return {
        place: {
            next(
                filter(None, (_text(node.Outputs(at)) for at in range(node.OutputsLength()))), ""
            ): (node.Index())
            for node in (graph.Nodes(index) for index in range(graph.NodesLength()))
        }
        for place, graph in _saved_graphs(saved)
    }


def _saved_graphs(saved: bytes) -> "Iterator[tuple[str, fbs.Graph.Graph]]":
    return _graphs(InferenceSession.GetRootAs(saved, 0).Model().Graph(), "")


def _graphs(graph: "fbs.Graph.Graph", place: str) -> "Iterator[tuple[str, fbs.Graph.Graph]]":
    yield place, graph
    for node in (graph.Nodes(index) for index in range(graph.NodesLength())):
        for attribute in (node.Attributes(index) for index in range(node.AttributesLength())):
            if (body := attribute.G()) is not None:
                here = f"{_text(node.Outputs(0))}/{_text(attribute.Name())}"
                yield from _graphs(body, f"{place}/{here}" if place else here)


def _dims(info: "fbs.TypeInfo.TypeInfo | None") -> _Dims:
    if info is None or info.ValueType() != TypeInfoValue.tensor_type:
        return None
    tensor = TensorTypeAndShape()
    tensor.Init(info.Value().Bytes, info.Value().Pos)
    shape = tensor.Shape()
    return None if shape is None else [_dim(shape.Dim(i)) for i in range(shape.DimLength())]


def _dim(dim: "fbs.Dimension.Dimension") -> int | str | None:
    value = dim.Value()
    kind = DimensionValueType.UNKNOWN if value is None else value.DimType()
    if kind == DimensionValueType.VALUE:
        return int(value.DimValue())
    return _text(value.DimParam()) or None if kind == DimensionValueType.PARAM else None


def _text(raw: bytes | None) -> str:
    return "" if raw is None else raw.decode()
