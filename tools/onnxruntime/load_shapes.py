"""The static shapes that onnxruntime plans with, read out of a file in ORT format.

A session saves them there for every value of the optimized graph: exactly what its planner saw.
"""

from collections.abc import Iterator
from pathlib import Path

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

Dims = list[int | str | None] | None
"""Number, symbol or unknown for each dim; None where even the rank is unknown or no tensor is."""


def shapes_at_load(path: Path) -> dict[str, dict[str, Dims]]:
    """The dims of every value by name, for each graph by its place.

    The main graph's place is empty; that of a subgraph is ``OUTPUT/ATTRIBUTE``, the first output of
    the node that holds it and the attribute's name, behind the place of the graph that node is in.
    """
    session = InferenceSession.GetRootAs(path.read_bytes(), 0)
    return dict(_graphs(session.Model().Graph(), ""))


def _graphs(graph: "fbs.Graph.Graph", place: str) -> Iterator[tuple[str, dict[str, Dims]]]:
    values = (graph.NodeArgs(index) for index in range(graph.NodeArgsLength()))
    yield place, {_text(value.Name()): _dims(value.Type()) for value in values}
    for node in (graph.Nodes(index) for index in range(graph.NodesLength())):
        for attribute in (node.Attributes(index) for index in range(node.AttributesLength())):
            if (body := attribute.G()) is not None:
                here = f"{_text(node.Outputs(0))}/{_text(attribute.Name())}"
                yield from _graphs(body, f"{place}/{here}" if place else here)


def _dims(info: "fbs.TypeInfo.TypeInfo | None") -> Dims:
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
