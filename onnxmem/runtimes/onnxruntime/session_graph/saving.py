"""Runs in the child: lets onnxruntime optimize a model, once for each session, and saves results.

Two sessions of onnxruntime save the same graph. The file in ONNX format is in the order of
execution and has no shapes. The file in onnxruntime's own format has the shape of every value as
known to the planner, and all constants with their elements, folded ones included. The weights of
the first are written to the null device, and the second is deleted after reading.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypedDict

import onnx
import onnxruntime as ort
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

from onnxmem.children.running import JSON
from onnxmem.model.traversal import onnx_op
from onnxmem.runtimes.onnxruntime.session_graph.graph_paths import graphs_by_path

_Dims = list[int | str | None] | None
_Nodes = list[tuple[str, list[str], list[str]]]
"""Operator, inputs and outputs of each node of a graph."""


_HEAD_BYTES = 4096
"""Constants are compared by their first bytes before they are hashed: most differ there."""


def shapes_at_load(saved: bytes) -> dict[str, dict[str, _Dims]]:
    """The dims of every value, by the path of its graph and its name (``ShapesByPath``)."""
    return {
        path: {
            _text(value.Name()): _dims(value.Type())
            for value in (graph.NodeArgs(index) for index in range(graph.NodeArgsLength()))
        }
        for path, graph in _saved_graphs(saved)
    }


def contents_at_load(saved: bytes) -> dict[str, dict[str, str]]:
    """A value that constants of equal elements share, by path and name (``ContentsByPath``).

    Constants without an equal one are omitted.
    """
    candidates: dict[tuple[object, ...], list[tuple[str, fbs.Tensor.Tensor]]] = {}
    for path, graph in _saved_graphs(saved):
        for index in range(graph.InitializersLength()):
            tensor = graph.Initializers(index)
            if tensor.RawDataLength():
                dims = tuple(tensor.Dims(axis) for axis in range(tensor.DimsLength()))
                head = tensor.RawDataAsNumpy()[:_HEAD_BYTES].tobytes()
                candidates.setdefault((tensor.DataType(), dims, head), []).append((path, tensor))
    # Only candidates with an equal head are hashed in full: most constants are never read.
    found: dict[str, dict[str, str]] = {}
    for (kind, shape, _), tensors in candidates.items():
        for path, tensor in tensors if len(tensors) > 1 else ():
            digest = hashlib.sha256(tensor.RawDataAsNumpy()).hexdigest()
            found.setdefault(path, {})[_text(tensor.Name())] = f"{kind} {shape} {digest}"
    return found


def indices_at_load(saved: bytes) -> dict[str, dict[str, int]]:
    """The indices of the nodes, by the path of their graph and their first output."""
    return {
        path: {
            next(
                filter(None, (_text(node.Outputs(at)) for at in range(node.OutputsLength()))), ""
            ): (node.Index())
            for node in (graph.Nodes(index) for index in range(graph.NodesLength()))
        }
        for path, graph in _saved_graphs(saved)
    }


def _saved_graphs(saved: bytes) -> "Iterator[tuple[str, fbs.Graph.Graph]]":
    return _graphs(InferenceSession.GetRootAs(saved, 0).Model().Graph(), "")


def _graphs(graph: "fbs.Graph.Graph", path: str) -> "Iterator[tuple[str, fbs.Graph.Graph]]":
    yield path, graph
    for node in (graph.Nodes(index) for index in range(graph.NodesLength())):
        for attribute in (node.Attributes(index) for index in range(node.AttributesLength())):
            if (body := attribute.G()) is not None:
                here = f"{_text(node.Outputs(0))}/{_text(attribute.Name())}"
                yield from _graphs(body, f"{path}/{here}" if path else here)


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


_LEVELS: Final = {
    "off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_READ: Final[tuple[tuple[str, Callable[[bytes], Mapping[str, object]]], ...]] = (
    ("shapes", shapes_at_load),
    ("contents", contents_at_load),
    ("indices", indices_at_load),
)
"""Files of these names are written from the graph in onnxruntime's own format."""
_WEIGHTS: Final = "weights"
_INLINE_BYTES: Final = "8192"
"""Smaller constants stay in the file: shapes may depend on them, as on axes or target shapes.

The reader of the file omits larger integers as well (``onnxmem.model.wire``).
"""
# ``ORT_LOGGING_LEVEL_FATAL``.
_QUIET: Final = 4
_MOST_IN_OWN_FORMAT: Final = 1_500_000_000
"""Of weights in bytes: a file in onnxruntime's own format is limited to 2 GiB."""


class Session(TypedDict):
    """A session whose graph is saved."""

    folder: str
    """Made for it: its files have the same names in every folder."""
    level: str
    overrides: Mapping[str, int]


def save_optimized(model: str, sessions: Sequence[Session], weight_bytes: int) -> dict[str, JSON]:
    """Write ``optimized.onnx`` and the files of ``_READ`` into the folder of each session.

    The result has for each of the ``sessions`` onnxruntime's ``version``, ``changed``: whether any
    node differs from the file's, and ``in_file_order``: the paths of the graphs in which none does.
    An unchanged graph is saved in the order of the file, any other in the order of execution.
    Constants are ignored, for they always become initializers.
    """
    before = _nodes(model)
    return {"sessions": [_saved(model, each, weight_bytes, before) for each in sessions]}


def _saved(
    model: str, session: Session, weight_bytes: int, before: Mapping[str, _Nodes]
) -> dict[str, JSON]:
    folder, level, overrides = Path(session["folder"]), session["level"], session["overrides"]
    folder.mkdir()
    # onnxruntime opens the file of external weights by its name in the folder of the model, so a
    # link of that name is enough to write gigabytes nowhere.
    Path(folder, _WEIGHTS).symlink_to(os.devnull)
    target = Path(folder, "optimized.onnx")
    options = _options(level, overrides)
    options.optimized_model_filepath = str(target)
    for key, value in (("file_name", _WEIGHTS), ("min_size_in_bytes", _INLINE_BYTES)):
        options.add_session_config_entry(
            f"session.optimized_model_external_initializers_{key}", value
        )
    ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    saved = None
    if weight_bytes < _MOST_IN_OWN_FORMAT:
        saved = _in_own_format(model, Path(folder, "own.ort"), _options(level, overrides))
    for name, read in _READ:
        plain = {} if saved is None else read(saved)
        Path(folder, f"{name}.json").write_text(json.dumps(plain), encoding="utf-8")
    after = _nodes(str(target))
    unchanged: list[JSON] = [path for path, nodes in after.items() if before.get(path) == nodes]
    changed = len(unchanged) < len(after)
    return {"version": ort.__version__, "changed": changed, "in_file_order": unchanged}


def _options(level: str, overrides: Mapping[str, int]) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.graph_optimization_level = _LEVELS[level]
    options.intra_op_num_threads = 1
    options.log_severity_level = _QUIET
    # Prepacking comes after optimization, and would read every weight.
    options.add_session_config_entry("session.disable_prepacking", "1")
    for symbol, number in overrides.items():
        options.add_free_dimension_override_by_name(symbol, number)
    return options


def _in_own_format(model: str, target: Path, options: ort.SessionOptions) -> bytes:
    options.optimized_model_filepath = str(target)
    options.add_session_config_entry("session.save_model_format", "ORT")
    try:
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return target.read_bytes()
    finally:
        target.unlink(missing_ok=True)


def _nodes(path: str) -> dict[str, _Nodes]:
    """The nodes of each graph of a file, by the path of the graph."""
    main = onnx.load(path, load_external_data=False).graph
    return {
        path: [
            (node.op_type, list(node.input), list(node.output))
            for node in graph.node
            if onnx_op(node) != "Constant"
        ]
        for path, graph in graphs_by_path(main)
    }
