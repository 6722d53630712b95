"""The shapes that onnxruntime knows after loading a graph, and those that onnxmem infers."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from installed_runtime import cpu_of_onnxruntime, require_verified
from runtimes.onnxruntime.optimized_graphs import filled, parsed

from onnxmem.model.building import prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.traversal import graphs_in
from onnxmem.runtimes.onnxruntime.cpu import Cpu
from onnxmem.runtimes.onnxruntime.optimizer.graph import Dims, TensorType, read_type
from onnxmem.runtimes.onnxruntime.optimizer.pipeline import optimized

Known = Mapping[str, Dims | None]


def by_onnxmem(
    text: str, level: str, dims: Mapping[str, int] | None = None, cpu: Cpu | None = None
) -> dict[str, Dims | None]:
    """The shapes of node outputs by name, also of subgraphs; for this CPU if none is given."""
    prepared = prepare(ModelFile("<text>", parsed(text, 21), 0)).proto
    model = optimized(prepared, level, dims=dims, cpu=cpu or cpu_of_onnxruntime())
    known: dict[str, Dims | None] = {}
    for graph in graphs_in(model.graph):
        declared = {value.name: _shape(value.type) for value in (*graph.value_info, *graph.output)}
        names = [name for node in graph.node for name in node.output if name]
        known |= {name: declared.get(name) for name in names}
    return known


def _shape(proto: onnx.TypeProto) -> Dims | None:
    known = read_type(proto)
    return known.dims if isinstance(known, TensorType) else None


def by_onnxruntime(text: str, level: str, dims: Mapping[str, int] | None = None) -> Known:
    """The same for every value, read from a file in onnxruntime's own format."""
    ort = pytest.importorskip("onnxruntime")
    require_verified()
    reader = pytest.importorskip("onnxmem.runtimes.onnxruntime.session_graph.saving")
    options = _options(ort, level, dims or {})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "optimized.ort")
        options.optimized_model_filepath = str(path)
        model = filled(parsed(text, 21)).SerializeToString()
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        placed = reader.shapes_at_load(path.read_bytes())
    shapes = (pair for values in placed.values() for pair in values.items())
    return {name: None if found is None else tuple(found) for name, found in shapes}


def _options(ort: Any, level: str, dims: Mapping[str, int]) -> Any:  # noqa: ANN401 - not typed
    options = ort.SessionOptions()
    name = {"off": "DISABLE_ALL", "all": "ENABLE_ALL"}[level]
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{name}")
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.save_model_format", "ORT")
    for symbol, number in dims.items():
        options.add_free_dimension_override_by_name(symbol, number)
    return options


def written(known: Known) -> str:
    """Shapes as text; ``?`` is unknown."""
    return " ".join(f"{name}{_dims(dims)}" for name, dims in known.items())


def _dims(dims: Dims | None) -> str:
    if dims is None:
        return "?"
    return f"[{','.join('?' if dim is None else str(dim) for dim in dims)}]"
